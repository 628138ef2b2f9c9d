"""The rows of a step as groups: who was right, who was recalled, what became of the group, what it weighs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.runs.rollout_records import grouped
from r3_openrlhf.types import Algorithm, Context, Verdict, Word

Row = dict[str, Any]


class State(Word):
    """What the verdicts of a group's fresh rows say."""

    MIXED = "mixed"
    ALL_CORRECT = "all right"
    NONE_CORRECT = "all wrong"
    TOO_FEW = "too few grades"  # fewer than two: not trained on


class Fate(Word):
    """What became of a collapsed group. The first that holds."""

    RECALLED = "recalled"  # past rollouts with the other verdict joined it
    RANKED = "ranked"
    REFLECTED = "reflected"  # the same problem was asked again with a stored error in the same step
    NOTHING_STORED = "nothing stored"  # the history was asked and had nothing for it
    LEFT = "left"  # it was not asked: replay is switched off for such a group


@dataclass(slots=True, kw_only=True)
class StepGroup:
    """The rollouts of one problem in one context."""

    uid: str
    context: Context
    rows: list[Row]
    state: State
    num_correct: int  # of the fresh rows
    num_wrong: int
    num_ungraded: int
    num_cut: int
    num_recalled: int
    num_ranked: int
    oldest: int  # age in steps of the oldest recalled row; 0 without one
    shortest_correct: int | None  # tokens
    mean_tokens: float
    mean_reward: float | None  # of what was trained on
    mass: float  # sum of |advantage| over its trained rows
    share: float = 0.0  # of the step's mass
    fate: Fate | None = None  # of a collapsed group

    @property
    def key(self) -> tuple[str, str]:
        """Names it within its step."""
        return self.uid, self.context.value

    @property
    def num_fresh(self) -> int:
        """Rows that this step sampled."""
        return len(self.rows) - self.num_recalled


Asked = Collection[tuple[State, Context]]  # the groups for which a run asks its history
EVERY = frozenset(product((State.NONE_CORRECT, State.ALL_CORRECT), (Context.PLAIN, Context.REFLECTION)))


def asked_groups(config: R3Config | None) -> Asked:
    """The collapsed groups for which a run asks its history; without its settings: all that R3 asks for."""
    if config is None:
        return EVERY
    if config.algo not in (Algorithm.R3, Algorithm.AGENTS) or not config.replay.enabled:
        return frozenset()
    states = (State.NONE_CORRECT, *([State.ALL_CORRECT] if config.replay.recall_failures else []))
    contexts = (Context.PLAIN, *([Context.REFLECTION] if config.algo == Algorithm.R3 else []))
    return frozenset(product(states, contexts))


def groups_of(rows: Sequence[Row], *, step: int, asked: Asked = EVERY) -> list[StepGroup]:
    """The groups of a step in the order of its file. `asked`: those for which the run asks its history."""
    groups = [_group(uid, Context(context), found, step) for (uid, context), found in grouped(rows).items()]
    mass = sum(group.mass for group in groups)
    reflected = {group.uid for group in groups if group.context is Context.REFLECTION}
    for group in groups:
        group.share = group.mass / mass if mass else 0.0
        group.fate = fate_of(group, reflected=reflected, asked=asked)
    return groups


def _group(uid: str, context: Context, rows: list[Row], step: int) -> StepGroup:
    fresh = [row for row in rows if row["recalled_from"] is None]
    recalled = [row for row in rows if row["recalled_from"] is not None]
    correct = [row for row in fresh if row["verdict"] == Verdict.CORRECT]
    wrong = [row for row in fresh if row["verdict"] == Verdict.WRONG]
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return StepGroup(
        uid=uid,
        context=context,
        rows=rows,
        state=state_of(correct=len(correct), wrong=len(wrong)),
        num_correct=len(correct),
        num_wrong=len(wrong),
        num_ungraded=len(fresh) - len(correct) - len(wrong),
        num_cut=sum(row["truncated"] for row in fresh),
        num_recalled=len(recalled),
        num_ranked=sum(bool(row.get("ranked")) for row in rows),
        oldest=max((step - row["recalled_from"] for row in recalled), default=0),
        shortest_correct=min((row["num_tokens"] for row in correct), default=None),
        mean_tokens=fmean(row["num_tokens"] for row in fresh) if fresh else 0.0,
        mean_reward=fmean(rewards) if rewards else None,
        mass=sum(abs(row["advantage"] or 0.0) for row in rows),
    )


def state_of(*, correct: int, wrong: int) -> State:
    """Of a group with so many right and wrong fresh rows."""
    if correct + wrong < 2:
        return State.TOO_FEW
    return State.MIXED if correct and wrong else State.ALL_CORRECT if correct else State.NONE_CORRECT


def fate_of(group: StepGroup, *, reflected: Collection[str], asked: Asked) -> Fate | None:
    """What became of a group; None: it did not collapse. `reflected`: problems with a reflection group in this step. `asked`:
    groups for which the run asks its history."""
    if group.state not in (State.ALL_CORRECT, State.NONE_CORRECT):
        return None
    if group.num_recalled:
        return Fate.RECALLED
    if group.num_ranked:
        return Fate.RANKED
    if group.context is Context.PLAIN and group.state is State.NONE_CORRECT and group.uid in reflected:
        return Fate.REFLECTED
    return Fate.NOTHING_STORED if (group.state, group.context) in asked else Fate.LEFT


# ── one row ──


def reward_parts(row: Row) -> list[tuple[str, float]]:
    """The reward of a row as a sum of named parts; [] for one without a reward.

    A correct row has 1 for the verdict and the rest for its length; a ranked one has the ranking's reward in place of 0;
    what else was added or taken (DAPO's penalty on long ones) is the last part.
    """
    outcome, reward = row["outcome_reward"], row["reward"]
    if outcome is None or reward is None:
        return []
    verdict = 1.0 if row["verdict"] == Verdict.CORRECT else 0.0
    parts = [("verdict", verdict)]
    if outcome != verdict:
        parts.append(("length", outcome - verdict))
    if row.get("ranked"):
        parts.append(("ranking", reward - outcome))
    elif reward != outcome:
        parts.append(("penalty on length", reward - outcome))
    return parts


@dataclass(frozen=True, slots=True)
class RankedPoint:
    """A ranked row in the plane of peak and global entropy, nats per token."""

    row: int
    peak: float
    global_: float
    dominates: list[int]  # rows; S_i of them


def ranked_points(rows: Sequence[Row]) -> list[RankedPoint]:
    """i dominates j: its peak is higher and its global entropy lower, both strictly (core/ranking.py)."""
    found = [
        (place, row["entropy_peak"], row["entropy_global"])
        for place, row in enumerate(rows)
        if row.get("ranked") and row["entropy_peak"] is not None and row["entropy_global"] is not None
    ]
    return [
        RankedPoint(
            place,
            peak,
            global_,
            [other for other, its_peak, its_global in found if peak > its_peak and global_ < its_global],
        )
        for place, peak, global_ in found
    ]
