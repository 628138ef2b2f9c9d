"""What happened to one prompt's group, decided on verdicts alone (METHOD section 3).

Rewards cannot decide it: the length reward makes an all-correct group unequal, a ranking reward an all-wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from r3_openrlhf.types import Verdict


class GroupState(StrEnum):
    """The verdicts of one group, in a word."""

    ALL_CORRECT = "all_correct"
    NONE_CORRECT = "none_correct"
    MIXED = "mixed"
    TOO_SMALL = "too_small"  # fewer than two graded rows: nothing to compare


def group_state(verdicts: Iterable[Verdict]) -> GroupState:
    """State of a group from its rows' verdicts. Rows that could not be graded are not counted."""
    graded = [verdict for verdict in map(Verdict, verdicts) if verdict is not Verdict.UNGRADED]
    if len(graded) < 2:
        return GroupState.TOO_SMALL
    num_correct = graded.count(Verdict.CORRECT)
    if num_correct == len(graded):
        return GroupState.ALL_CORRECT
    return GroupState.MIXED if num_correct else GroupState.NONE_CORRECT


def opposite_verdict(state: GroupState) -> Verdict | None:
    """The verdict that a collapsed group lacks, to be recalled from history (CCR). None: nothing is to be recalled."""
    return {GroupState.ALL_CORRECT: Verdict.WRONG, GroupState.NONE_CORRECT: Verdict.CORRECT}.get(state)
