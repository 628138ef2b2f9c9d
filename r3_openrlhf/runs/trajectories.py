"""The trajectories of a step, and their advantages turn by turn, with the groups of each turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.problems.agents.advantages import advantage_parts
from r3_openrlhf.problems.agents.hierarchy import ComparedSteps

MAX_MEMBERS = 40  # of a group, as a page lists them
TOLERANCE = 1e-6  # between an advantage as it was written, and its parts

Row = dict[str, Any]  # of rollout_files.COLUMNS


class Played(NamedTuple):
    """One trajectory of a task in a step."""

    place: int  # among those of its group, in the order of the file
    name: str
    rows: list[Row]  # its turns, in order

    @property
    def is_lost(self) -> bool:
        """Its environment hung or crashed: it has no returns, and is in no group."""
        return any(row["step_return"] is None for row in self.rows)

    @property
    def recalled_from(self) -> int | None:
        """The step that played it; None: this one."""
        return self.rows[0]["recalled_from"]

    def reward(self, *, invalid_penalty: float = 0.0) -> float:
        """Sum of its turns' rewards."""
        return sum((row["turn_reward"] or 0.0) - (0.0 if row["valid"] else invalid_penalty) for row in self.rows)


@dataclass(slots=True, kw_only=True)
class Level:
    """The turns that a turn is compared with at level k."""

    k: int
    context: list[str]  # the states that the group agrees in, the turn's own last
    size: int = 1  # turns, itself included; 1: alone, and the level says nothing
    # (place of its trajectory, its name, turn) of the others, MAX_MEMBERS at most
    members: list[tuple[int, str, int]] = field(default_factory=list)
    mean: float | None = None  # of their returns and its own
    advantage: float | None = None  # A_k; None: alone
    share: float = 0.0  # of A_k in the turn's advantage over the levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The advantages of a task again, from its file and the run's settings."""

    levels: list[list[list[Level]]]  # trajectory, turn, level
    of_steps: list[list[float]]
    of_episode: list[float]
    episode_weight: float
    differs: bool  # the file has other advantages: it does not hold all that the step compared


def trajectories_of(rows: Sequence[Row]) -> list[Played]:
    """The trajectories among a group's rows, in file order; [] of responses to a problem."""
    found: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows:
        if row["trajectory"] is not None:
            found.setdefault((row["trajectory"], row["recalled_from"]), []).append(row)
    return [
        Played(place, name, sorted(turns, key=lambda row: row["turn"] or 0))
        for place, ((name, _), turns) in enumerate(found.items())
    ]


def explain(played: Sequence[Played], settings: AgentsConfig) -> Explained | None:
    """The groups of each turn, level by level, as its step had them; None: all are lost."""
    graded = [one for one in played if not one.is_lost]
    if not graded:
        return None
    states = [[row["state"] or "" for row in one.rows] for one in graded]
    returns = [[row["step_return"] for row in one.rows] for one in graded]
    sums = [one.reward(invalid_penalty=settings.invalid_penalty) for one in graded]
    parts = advantage_parts(states, returns, sums, settings)
    found = Explained(
        levels=[[[] for _ in one.rows] for one in played],
        of_steps=[[0.0] * len(one.rows) for one in played],
        of_episode=[0.0] * len(played),
        episode_weight=parts.episode_weight,
        differs=any(
            row["advantage"] is not None
            and abs(row["advantage"] - again) > TOLERANCE * max(1.0, abs(row["advantage"]))
            for one, agains in zip(graded, parts.advantages, strict=True)
            for row, again in zip(one.rows, agains, strict=True)
        ),
    )
    depth = {"grpo": -1, "gigpo": 0}.get(settings.estimator, settings.depth)
    for one, steps, episode, own in zip(graded, parts.of_steps, parts.of_episode, states, strict=True):
        found.of_steps[one.place], found.of_episode[one.place] = steps, episode
        found.levels[one.place] = [
            [Level(k=k, context=own[max(0, t - k) : t + 1]) for k in range(depth + 1)] for t in range(len(own))
        ]
    _compare(found.levels, graded, returns, parts.compared)
    return found


def _compare(
    levels: list[list[list[Level]]],
    graded: Sequence[Played],
    returns: list[list[float]],
    groups: Sequence[ComparedSteps],
) -> None:
    """Fill in what each group says of its members."""
    total = Counter[tuple[int, int]]()
    for group in groups:
        total.update(dict(zip(group.members, group.weights, strict=True)))  # type: ignore[arg-type]
    for group in groups:
        names = [(graded[i].place, graded[i].name, graded[i].rows[t]["turn"] or 0) for i, t in group.members]
        mean = fmean(returns[i][t] for i, t in group.members)
        values = zip(group.members, group.advantages, group.weights, strict=True)
        for at, ((i, t), advantage, weight) in enumerate(values):
            level = levels[graded[i].place][t][group.k]
            level.size, level.mean, level.advantage = len(names), mean, advantage
            level.members = (names[:at] + names[at + 1 :])[:MAX_MEMBERS]
            level.share = weight / total[i, t] if total[i, t] else 0.0
