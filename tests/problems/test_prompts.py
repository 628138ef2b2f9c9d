"""The text that the model reads, letter by letter."""

import pytest

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.prompts import count_tokens, problem_message, render

SHOT = {"problem": "1 + 1", "response": r"\boxed{2}"}


def test_the_template_replaces_problem_and_nothing_else():
    data = DataConfig(prompt_template=r"{problem} Put it in \boxed{x}. {} {{x}}")
    assert (
        problem_message(data, "{y} {problem}") == r"{y} {problem} Put it in \boxed{x}. {} {x}"
    )


def test_worked_examples(byte_tokenizer):
    data = DataConfig(system_prompt="S", few_shot=[SHOT], prompt_template="Q: {problem}")
    assert render(byte_tokenizer, data, problem_message(data, "2 + 2")) == (
        r"<system>S</system><user>Q: 1 + 1</user><assistant>\boxed{2}</assistant><user>Q: 2 + 2</user><assistant>"
    )
    data = DataConfig(
        chat_template=False, system_prompt="S", few_shot=[SHOT], prompt_template="Q: {problem}"
    )
    assert render(byte_tokenizer, data, problem_message(data, "2 + 2")) == (
        "S\n\nQ: 1 + 1\n\\boxed{2}\n\nQ: 2 + 2\n"
    )


def test_tokens_are_counted_without_special_tokens(byte_tokenizer):
    assert count_tokens(byte_tokenizer, "äb") == 3  # two bytes and one


def test_a_template_that_is_missing_or_refuses_a_role(byte_tokenizer, monkeypatch):
    monkeypatch.setattr(byte_tokenizer, "chat_template", None)
    with pytest.raises(DataError, match="no chat template; use data.chat_template=false"):
        render(byte_tokenizer, DataConfig(), "2 + 2")
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    monkeypatch.setattr(byte_tokenizer, "chat_template", template)
    with pytest.raises(
        DataError,
        match=r"refuses the turns system, user \(no system role\); drop data.system_prompt",
    ):
        render(byte_tokenizer, DataConfig(system_prompt="S"), "2 + 2")


def test_a_template_reads_parts_or_is_refused(byte_tokenizer, monkeypatch):
    parts = (
        "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    )
    monkeypatch.setattr(byte_tokenizer, "chat_template", parts)
    assert render(byte_tokenizer, DataConfig(system_prompt="S"), "2 + 2") == "[S][2 + 2]"
    monkeypatch.setattr(byte_tokenizer, "chat_template", "Hello")
    with pytest.raises(DataError, match="leaves out the problem: '2 . 2'"):
        render(byte_tokenizer, DataConfig(), "2 + 2")
