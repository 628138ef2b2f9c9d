"""Where the final answer of a response is found."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from r3_openrlhf.rewards.answers.reading.extraction import (
    FinalAnswer,
    final_answer,
    number_at_the_end,
)
from r3_openrlhf.rewards.answers.reading.scanner import (
    after_thinking,
    answer_part,
    boxed_answer,
)
from tests.tables import tables_beside

TABLES = tables_beside(__file__)


def exact(response, truncated=False):
    answer = final_answer(response, truncated=truncated)
    return answer.text if answer and answer.exact else None


@pytest.mark.parametrize(("response", "part"), TABLES["thinking"])
def test_what_follows_the_thinking(response, part):
    assert after_thinking(response) == part


@pytest.mark.parametrize("response", TABLES["endless_thinking"])
def test_nothing_follows_thinking_that_does_not_end(response):
    assert after_thinking(response) is None


@given(
    st.lists(
        st.sampled_from([r"\boxed{", "}", "{", r"\{", "5", " ", "and", r"\boxed"]), max_size=30
    )
)
def test_a_box_is_found_exactly_where_its_braces_close(parts):
    text = "".join(parts)
    if (answer := boxed_answer(text)) is not None:
        assert all(content and content in text for content in re.split(", | or ", answer))


@pytest.mark.parametrize(("response", "answer"), TABLES["answers"])
def test_the_field_s_order_of_places(response, answer):
    assert exact(response) == answer


@pytest.mark.parametrize("response", TABLES["no_answer"])
def test_places_without_an_answer(response):
    assert exact(response) is None


def test_guesses_are_not_made_for_truncated_responses():
    assert final_answer("so it is 12 and the next is 1", truncated=True) is None
    guess = final_answer("so it is 12", truncated=False)
    assert (guess.text, guess.exact, guess.stated) == ("so it is 12", False, False)
    assert exact(r"\boxed{12} and more", truncated=True) == "12"
    assert exact("<answer>12</answer> and more", truncated=True) == "12"


@pytest.mark.parametrize(("text", "number"), TABLES["ends_in_a_number"])
def test_the_number_at_the_end_of_a_text(text, number):
    assert number_at_the_end(FinalAnswer(text, exact=False)) == (number or None)


@given(
    st.sampled_from([r"\boxed{%s", r"So $\boxed{%s$.", r"\fbox{%s."]),
    st.sampled_from([r"x^{2}", r"\frac{1}{2}", r"\text{no}"]),
)
def test_a_box_that_lacks_only_its_last_brace_is_closed_by_the_end_of_the_text(form, answer):
    assert exact(form % answer) == answer
    assert exact(form % answer, truncated=True) is None
    assert exact(form % answer + "\n\nand more") is None
    assert exact(form % "7") is None  # maybe of 71


FILLING = st.lists(
    st.sampled_from(["We get $x$. ", "\n", "No: ", "(2)", "<<1+1=2>>", "[a] ", "- 5 of them\n"])
).map("".join)


@given(FILLING, st.integers(0, 400), st.sampled_from(TABLES["marked"]))
def test_an_answer_is_found_behind_a_text_of_any_length(filling, times, marked):
    text, answer = marked
    assert exact(f"{filling * times}\n\n{text}") == answer


@given(
    st.sampled_from(
        ["Question: ", "Problem 2.\n", "**Exercise:**", "User: ", "问题：", "Pregunta: "]
    ),
    st.sampled_from(TABLES["marked"]),
    st.sampled_from(["\n\n", "\n# ", "\n> "]),
)
def test_what_follows_a_next_question_is_not_read(question, marked, between):
    text, answer = marked
    assert exact(f"{text}{between}{question}What is 2+2?\nIt is \\boxed{{4}}.") == answer
    sentence = f"{text}\nNow let's solve another problem: 2+2. It is \\boxed{{4}}."
    assert exact(sentence) == answer


RUNS = st.sampled_from(["\n", " ", "\t", "\n ", "\xa0", "\u3000", "a"]).flatmap(
    lambda sign: st.sampled_from([1, 2, 16, 17, 18, 19]).map(lambda times: sign * times)
)


@given(st.lists(RUNS, max_size=5).map("".join))
@example(" " * 17)
@example("a" + "\n" * 18 + "a")
def test_white_space_in_a_row_is_bounded_and_nothing_else_is_changed(text):
    short = answer_part(text)
    assert short.split() == text.split()
    assert re.search(r"\s{17}", short) is None
    assert ("\n" in short) is ("\n" in text)
