"""Classify one prompt's group, decided on verdicts alone (METHOD section 3).

Rewards cannot decide it: the length reward makes an all-correct group unequal, a ranking reward an
all-wrong one."""

from collections.abc import Iterable
from enum import StrEnum

from r3_openrlhf.method.types import Verdict, Word


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
    """Return the verdict that a collapsed group lacks, to recall (CCR). None: nothing to recall."""
    return {
        GroupState.ALL_CORRECT: Verdict.WRONG,
        GroupState.NONE_CORRECT: Verdict.CORRECT,
    }.get(state)


class RecallFate(Word):
    """The action of replay on a group, or the reason for none."""

    NOT_COLLAPSED = "not_collapsed"
    OFF = "off"  # replay.enabled=false
    FAILURES_OFF = "failures_off"  # all right, with replay.recall_failures=false
    # its rows begin where nothing that it could recall does
    STARTS_ELSEWHERE = "starts_elsewhere"
    RECALLED = "recalled"
    NEVER_SAMPLED = "never_sampled"  # no rollout of that verdict has ever been graded
    EVICTED = "evicted"  # all have left the store, or found no room in it
    TOO_OLD = "too_old"  # those that are there are older than replay.max_policy_lag
    NOT_CHOSEN = "not_chosen"  # something is stored, and replay.order chose none of it


ABSENT = (RecallFate.NEVER_SAMPLED, RecallFate.EVICTED, RecallFate.TOO_OLD)  # not in the store


class RankingFate(Word):
    """The action of the ranking on a group, or the reason for none."""

    OFF = "off"  # ranking.enabled=false
    NOT_ALL_WRONG = "not_all_wrong"
    TOO_FEW = "too_few"  # fewer than two rows may be ranked
    # all have one score: nothing was ordered, and all have the mean ranking reward
    TIED = "tied"
    RANKED = "ranked"


WITH_REWARDS = (RankingFate.TIED, RankingFate.RANKED)  # the ranking gave its rows rewards
