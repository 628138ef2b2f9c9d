"""Where the final answer of a response is found."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.rewards.answers.extraction import after_thinking, final_answer
from r3_openrlhf.rewards.answers.marks import boxed_answer


def exact(response, **kwargs):
    answer = final_answer(response, truncated=kwargs.get("truncated", False))
    return answer.text if answer and answer.exact else None


@pytest.mark.parametrize(
    ("response", "part"),
    [
        ("<think>a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("no thinking", "no thinking"),
        ("<think>it never stops", None),
        ("<think>a</think>b<think>c", None),
        ("<think>a<think>b</think>c", "c"),
        ("<thinking>a</thinking>b", "b"),
        ("<Think >a", None),
        ("[THINK]a[/THINK]b", "b"),
        ("◁think▷a", None),
        ("◁think▷a◁/think▷b", "b"),
        ("<seed:think>a</seed:think>b", "b"),
        ("I think [so] <b>", "I think [so] <b>"),
    ],
)
def test_what_follows_the_thinking(response, part):
    assert after_thinking(response) == part


@given(st.lists(st.sampled_from([r"\boxed{", "}", "{", r"\{", "5", " ", "and", r"\boxed"]), max_size=30))
def test_a_box_is_found_exactly_where_its_braces_close(parts):
    text = "".join(parts)
    if (answer := boxed_answer(text)) is not None:
        assert all(content and content in text for content in re.split(", | or ", answer))


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"<think>\boxed{1}</think>It is \boxed{2}.", "2"),
        (r"\boxed{1} Final Answer: The final answer is $2$. I hope it is correct.", "2"),
        (r"The final answer is \boxed{2}.", "2"),
        ("Final Answer: The final answer is 1,234. I hope it is correct.", "1,234"),
        ("<answer> 5 </answer>", "5"),
        ("So 3 + 4 = 7.\n#### 7", "7"),
        (r"<think>only \boxed{1}", None),
        ("It may be 7 or 8", None),
    ],
)
def test_the_field_s_order_of_places(response, answer):
    assert exact(response) == answer


def test_guesses_are_not_made_for_truncated_responses():
    assert final_answer("so it is 12 and the next is 1", truncated=True) is None
    guess = final_answer("so it is 12", truncated=False)
    assert (guess.text, guess.exact, guess.stated) == ("so it is 12", False, False)
    assert exact(r"\boxed{12} and more", truncated=True) == "12"
    assert exact("<answer>12</answer> and more", truncated=True) == "12"
