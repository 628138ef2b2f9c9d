"""Thinking that the prompt has opened: what the graders hear of it."""

from dataclasses import replace

import pytest

from r3_openrlhf.config import DataConfig, RewardConfig
from r3_openrlhf.evaluation.grading import Grading
from r3_openrlhf.problems.prompts import problem_message, render
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.rewards.thinking import as_graded, opened_thinking, response_text
from tests.families import FAMILIES, load_tokenizer, write_model


@pytest.mark.parametrize(
    "mark", ["<think>", "<think >", "<thinking>", "<Think>", "[THINK]", "◁think▷"]
)
def test_known_marks_are_found_at_the_end_alone(mark):
    assert opened_thinking(f"<|im_start|>assistant\n{mark}\n") == mark
    assert opened_thinking(f"Write {mark} first.") == ""
    assert opened_thinking(f"{mark}\n\n</think>\n\n") == ""


def test_an_open_mark_of_the_prompt_is_put_in_front():
    assert as_graded("Q<think>\n", "7 + 1</think> 8") == "<think>7 + 1</think> 8"
    assert as_graded("Q\n", "<think>7") == "<think>7"


def test_marks_that_are_special_tokens_stay(tmp_path):
    """Magistral's [THINK]: without it the grader would read the thinking as the answer."""
    family = replace(
        FAMILIES["Qwen2.5-Instruct"],
        tokens=(*FAMILIES["Qwen2.5-Instruct"].tokens, "[THINK]", "[/THINK]", "<|s|>"),
    )
    tokenizer = load_tokenizer(write_model(tmp_path / "m", family))
    ids = tokenizer(text="[THINK]so 8<|s|>[/THINK]7<|im_end|>", add_special_tokens=False)[
        "input_ids"
    ]
    assert response_text(tokenizer, ids) == "[THINK]so 8[/THINK]7"
    plain = load_tokenizer(write_model(tmp_path / "plain", FAMILIES["Qwen2.5-Instruct"]))
    assert response_text(plain, plain(text="7<|im_end|>")["input_ids"]) == "7"


@pytest.mark.parametrize("name", ["DeepSeek-R1-Distill-Qwen", "Qwen3-Thinking", "QwQ"])
def test_thinking_that_never_closes_is_not_paid(name, tmp_path):
    """The template opens it, so the response has no mark of its own."""
    tokenizer = load_tokenizer(write_model(tmp_path / "m", FAMILIES[name]))
    prompt = render(tokenizer, DataConfig(), problem_message(DataConfig(), "3 + 4"))
    label = Label(uid="u", problem="3 + 4", references=["7"], task="math")
    responses = [r"3 + 4 is \boxed{7}", r"3 + 4 is \boxed{7} </think> The answer is \boxed{7}"]
    with Grading(RewardConfig(num_workers=1, timeout_s=60), prompt=prompt) as grading:
        for truncated in (False, True):
            found = grading.grade(
                [
                    grading.request(label, text, num_tokens=9, truncated=truncated)
                    for text in responses
                ]
            )
            assert [grade.verdict for grade in found] == ["wrong", "correct"]
            assert found[0].reward == 0.0 and found[0].reason == "no_answer"
