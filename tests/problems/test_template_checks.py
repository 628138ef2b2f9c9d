"""The chat template's text holds the text of each turn, once and in order, and begins the answer; else a sentence."""

import copy
import importlib.util
from pathlib import Path

import pytest
from transformers import AddedToken

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompts import render
from r3_openrlhf.problems.template_checks import template_findings

PROBLEM = "What is 2 + 2?"
SYSTEM = {"role": "system", "content": "Be brief, always."}
THOUGHT = {
    "role": "assistant",
    "content": "<think>\nOne, two, three.\n</think>\n\nThere are three.",
}
TOOL = {"role": "tool", "content": "7 found"}


def pair(number):
    return [
        {"role": "user", "content": f"How many are {number} apples?"},
        {"role": "assistant", "content": f"There are {number}."},
    ]


CONVERSATIONS = {
    "one turn": [],
    "a system turn": [SYSTEM],
    "two turns": pair(1),
    "three turns": [*pair(1), *pair(2)],
    "a system turn before turns": [SYSTEM, *pair(1), *pair(2)],
    "a system turn between turns": [*pair(1), SYSTEM],
    "an earlier thought": [pair(1)[0], THOUGHT],
    "thoughts and a system turn": [SYSTEM, pair(1)[0], THOUGHT, *pair(2)],
    "a result of a tool": [*pair(1), TOOL],
    "two turns of the user": pair(1)[:1],
    "the same turn twice": [*pair(1), *pair(1)],
    "lines": [{"role": "user", "content": " a\n\n  b "}, pair(1)[1]],
}


def sentences(tokenizer, turns=(), **settings):
    label = Label(uid="", problem=PROBLEM, references=[], task="", turns=list(turns) or None)
    found = template_findings(tokenizer, DataConfig(**settings), [label])
    return [one.sentence.removeprefix("the chat template of ") for one in found]


def holds(prompt, turns):
    """Each text, without the thoughts that templates drop, after the one before it."""
    place, prompt = 0, "".join(prompt.split())
    for turn in [*turns, {"role": "user", "content": PROBLEM}]:
        said = turn["content"].rpartition("</think>")[2]
        found = prompt.find("".join(said.split()), place)
        if found < 0:
            return False
        place = found + len("".join(said.split()))
    return True


@pytest.mark.parametrize("kind", CONVERSATIONS)
def test_published_templates_hold_every_turn_or_a_sentence_says_it(
    byte_tokenizer, monkeypatch, kind
):
    spec = importlib.util.find_spec("trl")
    folder = Path(spec.origin).parent / "chat_templates" if spec else Path("none")
    paths = [path for path in folder.glob("*.jinja") if "_training" not in path.name]
    if not paths:
        pytest.skip("TRL, which has published templates, is not installed")
    turns, num_held = CONVERSATIONS[kind], 0
    for path in paths:
        monkeypatch.setattr(byte_tokenizer, "chat_template", path.read_text())
        try:
            prompt = render(byte_tokenizer, DataConfig(), PROBLEM, turns=turns)
        except DataError as error:
            assert "leaves out " in str(error) or "refuses the turns " in str(error)
            continue
        num_held += 1
        said = sentences(byte_tokenizer, turns)
        assert holds(prompt, turns) or "in another order" in said[0], (path.name, prompt)
        assert not [one for one in said if "in another order" not in one], path.name
    assert num_held > len(paths) / 3


TURN = "<{{ m.role }}>{{ m.content }}</{{ m.role }}>"
BEGIN = "{% if add_generation_prompt %}<assistant>{% endif %}"
ALL = "{% for m in messages %}" + TURN + "{% endfor %}"
WITH_SYSTEM = [SYSTEM, *pair(1)]


@pytest.mark.parametrize(
    ("template", "turns", "sentence"),
    [
        (
            "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}" + BEGIN,
            [SYSTEM],
            "leaves out the system turn: 'Be brief, always.' is not in its prompt",
        ),
        (
            "{% for m in messages[-1:] %}" + TURN + "{% endfor %}" + BEGIN,
            pair(1),
            "leaves out turn 1 of 3, of role user: 'How many are 1 apples",
        ),
        (
            "{% for m in messages if m.role != 'assistant' %}" + TURN + "{% endfor %}" + BEGIN,
            pair(1),
            "leaves out turn 2 of 3, of role assistant: 'There are 1.'",
        ),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('x') }}"
            "{% elif m.content is string %}{{ raise_exception('texts') }}{% endif %}{% endfor %}",
            [SYSTEM],
            r"refuses the turns system, user \(x\)",
        ),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", [], "leaves out the problem: "),
    ],
)
def test_a_turn_that_is_left_out_is_refused(
    byte_tokenizer, monkeypatch, template, turns, sentence
):
    monkeypatch.setattr(byte_tokenizer, "chat_template", template)
    with pytest.raises(DataError, match=sentence):
        render(byte_tokenizer, DataConfig(), PROBLEM, turns=turns)


def test_a_dropped_system_prompt_or_example_is_refused(byte_tokenizer, monkeypatch):
    last = "{{ messages[-1].content }}<assistant>"
    monkeypatch.setattr(byte_tokenizer, "chat_template", last)
    assert render(byte_tokenizer, DataConfig(), PROBLEM) == f"{PROBLEM}<assistant>"
    with pytest.raises(DataError, match="leaves out the system turn: 'S0'"):
        render(byte_tokenizer, DataConfig(system_prompt="S0"), PROBLEM)
    shots = [{"problem": "1 + 1", "response": "two"}]
    with pytest.raises(DataError, match="turn 1 of 3, of role user: '1 . 1'.*few_shot"):
        render(byte_tokenizer, DataConfig(few_shot=shots), PROBLEM)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (ALL + BEGIN, None),
        (ALL + "<assistant>", None),  # for an answer, it is there always
        (ALL, "does not begin the assistant's turn: '<assistant>'"),
        (
            "{{ messages[0].content }}" + ALL + BEGIN,
            "shows the system turn 2 times, of the turns system, user, assistant, user",
        ),
        (
            "{% for m in messages[1:-1] %}"
            + TURN
            + "{% endfor %}<system>{{ messages[0].content }}</system>"
            "<user>{{ messages[-1].content }}</user>" + BEGIN,
            "in another order: user, assistant, system, user",
        ),
        (
            "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} </s>"
            "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}",
            None,  # Mistral's: an answer begins after the mark of the instruction's end
        ),
    ],
)
def test_what_a_template_does_to_its_turns_is_said(
    byte_tokenizer, monkeypatch, template, sentence
):
    monkeypatch.setattr(byte_tokenizer, "chat_template", template)
    found = sentences(byte_tokenizer, WITH_SYSTEM)
    assert len(found) == (sentence is not None)
    assert sentence is None or sentence in found[0]


def test_marks_of_another_model_are_named(byte_tokenizer):
    tokenizer = copy.deepcopy(byte_tokenizer)
    chatml = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer.chat_template = chatml
    assert sentences(tokenizer) == []  # it has no marks at all
    tokenizer.add_tokens([AddedToken("<|start_header_id|>", special=True)])
    (found,) = sentences(tokenizer)
    assert "'<|im_start|>', which the tokenizer splits into pieces" in found
    assert "its own marks are <|start_header_id|>, so" in found
    tokenizer.add_tokens([AddedToken("<|im_start|>", special=True)])
    assert sentences(tokenizer) == []
