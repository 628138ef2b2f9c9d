"""Where the final answer of a response is found."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.rewards.answers.extraction import after_thinking, final_answer, last_line
from r3_openrlhf.rewards.answers.marks import boxed_answer, tagged_answer


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


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed{1} so \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed 5.", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{5} and then \boxed{6", "5"),
        (r"\boxed{}", None),
        (r"\boxedsomething{5}", None),
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"$\boxed{1}$, $\boxed{2}$ or $\boxed{3}$", "1 or 2 or 3"),
        (r"\boxed{1} papers and \boxed{2} bins", "1, 2"),
        (r"\boxed{1}, therefore the answer is \boxed{2}", "2"),
        (r"\boxed{1} no no no no no \boxed{2}", "2"),
        (r"\boxed{5} \boxed{5}", "5"),
    ],
)
def test_boxes(text, answer):
    assert boxed_answer(text) == answer


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


def test_a_text_that_broke_off_is_no_guess():
    assert final_answer("which is 2 + 3 +", truncated=False) is None
    assert final_answer(r"= \frac{1}{", truncated=False) is None


def test_announcements_in_other_languages_are_found():
    for text in ("Réponse: 7 francs", "Respuesta: 7 pesos", "Die Antwort ist 7 Mark", "答案：7吨"):
        answer = final_answer("12. " + text, truncated=False)
        assert answer.stated and "12" not in answer.text and "7" in answer.text


def test_small_things():
    assert tagged_answer("<answer>a</answer><answer>b</answer>") == "a, b"
    assert tagged_answer("<answer>a") is None
    assert last_line("a\n b \n\n") == "b" and last_line(" \n ") is None
