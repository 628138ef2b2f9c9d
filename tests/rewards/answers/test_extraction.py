"""Where the final answer of a response is found."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.rewards.answers.reading.extraction import final_answer
from r3_openrlhf.rewards.answers.reading.scanner import after_thinking, boxed_answer
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
