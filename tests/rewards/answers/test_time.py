"""Whatever a text repeats or nests, its answer is graded in little time: nobody leaves a group by being slow."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.rewards.answers.request import SLOW
from r3_openrlhf.rewards.client import make_grader
from tests.rewards.graders import request
from tests.tables import tables_beside

CHARS = 100_000
DEADLINE_S = 1.0  # of processor time, which the pool counts; the texts take less than half
TEXTS_AT_ONCE = 20
KNOWN = [
    "\n" * 700,
    "3 **1**" * 12 + "3",
    "=" * 30_000,
    "The answer is " + "1" * 80_000 + ".",
    "$1$ " * 40_000,
    "box " * 20_000 + "\nQuestion:\n" * 2_000,
    "\\boxed{1} " * 8_000 + "\nQuestion: is it 1?\n" * 1_000,
]
MADE_OF = tables_beside(__file__)


@st.composite
def repeated(draw):
    token = "".join(draw(st.lists(st.sampled_from(MADE_OF["tokens"]), min_size=1, max_size=3)))
    chars = draw(st.sampled_from([40, 700, 5_000, CHARS]))
    head, tail = (
        draw(st.sampled_from(MADE_OF["heads"])),
        draw(st.sampled_from(MADE_OF["tails"])),
    )
    return head + token * (chars // len(token)) + tail


@st.composite
def nested(draw):
    answer = draw(st.sampled_from(["1", "x", "9", ""]))
    levels = draw(st.sampled_from([3, 9, 12, 20, 40, 90, 10_000]))
    nests = draw(st.lists(st.sampled_from(MADE_OF["nests"]), min_size=1, max_size=2))
    before, behind = (
        "".join(nest[0] for nest in nests),
        "".join(nest[1] for nest in reversed(nests)),
    )
    formula = before * levels + answer + behind * levels
    opening, closing = draw(st.sampled_from(MADE_OF["marks"]))
    return opening + formula + closing


@st.composite
def joined(draw):
    part = draw(
        st.sampled_from(
            [
                "1",
                "x",
                "9",
                "x^2",
                "\\sqrt{2}",
                "\\frac{1}{7}",
                "2^9",
                "9!",
                "0.1",
                "(x+1)",
                "[1,2]",
            ]
        )
    )
    parts = draw(st.sampled_from([9, 30, 60, 120, 10_000]))
    opening, closing = draw(st.sampled_from(MADE_OF["marks"]))
    return opening + draw(st.sampled_from(MADE_OF["links"])).join([part] * parts) + closing


@pytest.fixture(scope="module")
def late():
    """Which of some texts, with one reference, have no verdict of their own within the deadline."""
    grader = make_grader(RewardConfig(timeout_s=DEADLINE_S, num_workers=2))

    async def grade(texts, reference):
        return await asyncio.gather(*(grader.grade(request(text, reference)) for text in texts))

    def find(texts, reference):
        grades = asyncio.run(grade(texts, reference))
        return [
            (grade.reason, text[:60], reference)
            for text, grade in zip(texts, grades, strict=True)
            if grade.score is None or grade.reason == SLOW
        ]

    yield find
    grader.close()


@pytest.mark.parametrize("reference", MADE_OF["references"])
def test_known_texts_are_graded_in_time(late, reference):
    assert late(KNOWN, reference) == []


def look(late, num_texts):
    """Try so many texts, a list of them in each of hypothesis's examples."""

    @given(
        st.lists(
            repeated() | nested() | joined(), min_size=TEXTS_AT_ONCE, max_size=TEXTS_AT_ONCE
        ),
        st.sampled_from(MADE_OF["references"]),
    )
    @settings(max_examples=num_texts // TEXTS_AT_ONCE)
    def every_text_is_graded_in_time(texts, reference):
        assert late(texts, reference) == []

    every_text_is_graded_in_time()


def test_texts_of_any_repetition_are_graded_in_time(late):
    look(late, 100)


@pytest.mark.soak
def test_texts_of_any_repetition_are_graded_in_time_at_volume(late):
    look(late, 2_000)
