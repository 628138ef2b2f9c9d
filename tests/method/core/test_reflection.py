import math
import re

import pytest
from hypothesis import given
from hypothesis.strategies import integers, text

from r3_openrlhf.method.core.reflection import (
    CUT,
    GUIDANCE,
    MIN_VISIBLE_CHARACTERS,
    fit_attempt,
    reflection_message,
)

PROBLEM = "What is {1, 2} \\cup {3}? Put the answer in \\boxed{}."


def num_tokens(text: str) -> int:
    """Like a BPE tokenizer: a word is one token per 4 characters, other characters and long runs vary. Counts are not
    monotone: "ab cd" has 2 tokens, "abcd" 1, and a cut inside a word can raise the count."""
    return sum(
        math.ceil(len(piece) / 4) if piece[0].isalnum() else len(piece)
        for piece in re.findall(r"\w+|\S", text)
    )


def fit(attempt, *, max_prompt_tokens, max_attempt_tokens=10**6, count=num_tokens, calls=None):
    def num_prompt_tokens(text):
        if calls is not None:
            calls.append(text)
        return count("<user>" + reflection_message(PROBLEM, text) + "<assistant>")

    return fit_attempt(
        attempt,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=count,
        max_prompt_tokens=max_prompt_tokens,
        max_attempt_tokens=max_attempt_tokens,
    )


def test_the_message():
    attempt = "I think {x} is %s \\frac{1}{2}"
    message = reflection_message(PROBLEM, attempt)
    assert message.startswith(PROBLEM)
    assert message.endswith(GUIDANCE)
    assert message.index(PROBLEM) < message.index(attempt) < message.index(GUIDANCE)
    assert "(the attempt is empty)" in reflection_message(PROBLEM, " \n")
    with pytest.raises(ValueError, match="problem is ' '"):
        reflection_message(" ", "attempt")


ATTEMPT = (
    "First " + " ".join(f"step{i} gives {i * i}," for i in range(400)) + " so the answer is 7."
)
ROOM = num_tokens("<user>" + reflection_message(PROBLEM, "x") + "<assistant>")


def test_what_fits_is_not_touched_and_what_does_not_is_none():
    assert fit(ATTEMPT, max_prompt_tokens=10**6) == ATTEMPT
    assert fit("", max_prompt_tokens=ROOM + 20) == ""
    assert fit(ATTEMPT, max_prompt_tokens=ROOM) is None
    assert fit(ATTEMPT, max_prompt_tokens=1) is None
    assert fit("short", max_prompt_tokens=ROOM) is None


def test_a_shortened_attempt_keeps_its_beginning_and_its_end():
    found = fit(ATTEMPT, max_prompt_tokens=ROOM + 200)
    head, tail = found.split(CUT)
    assert ATTEMPT.startswith(head) and ATTEMPT.endswith(tail)
    assert abs(len(head) - len(tail)) <= 1
    assert 150 < num_tokens(found) <= 200  # and uses the room


@given(text(max_size=600), integers(1, 400), integers(1, 200))
def test_what_is_returned_fits_and_none_means_that_little_would(
    attempt, room, max_attempt_tokens
):
    found = fit(attempt, max_prompt_tokens=ROOM + room, max_attempt_tokens=max_attempt_tokens)
    if found is None:
        shortest = attempt
        if len(attempt) > MIN_VISIBLE_CHARACTERS:
            half = MIN_VISIBLE_CHARACTERS // 2
            shortest = attempt[:half] + CUT + attempt[-half:]
        prompt_tokens = num_tokens(
            "<user>" + reflection_message(PROBLEM, shortest) + "<assistant>"
        )
        assert prompt_tokens > ROOM + room or num_tokens(shortest) > max_attempt_tokens
    else:
        assert (
            num_tokens("<user>" + reflection_message(PROBLEM, found) + "<assistant>")
            <= ROOM + room
        )
        assert num_tokens(found) <= max_attempt_tokens


def test_few_renderings_as_a_rule_and_bounded_for_any_tokenizer():
    calls = []
    fit(ATTEMPT, max_prompt_tokens=ROOM + 200, calls=calls)
    assert len(calls) <= 3
    for hostile in (
        lambda text: 10**6,
        lambda text: 101 + len(text) % 7,
        lambda text: 2**20 // (1 + len(text)),
    ):
        calls.clear()
        assert fit("x" * 50_000, max_prompt_tokens=100, count=hostile, calls=calls) in (
            None,
            "x" * 50_000,
        )
        assert len(calls) <= 120
