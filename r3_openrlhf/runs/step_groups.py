"""The rows of a step as groups, and as trajectories: verdicts, recalls, fate, weight. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from r3_openrlhf.method.core.groups import GroupState, RankingFate, RecallFate, group_state
from r3_openrlhf.method.types import Context, Verdict

Row = dict[str, Any]
STATES = {
    GroupState.MIXED: "mixed",
    GroupState.ALL_CORRECT: "all right",
    GroupState.NONE_CORRECT: "all wrong",
    GroupState.TOO_SMALL: "too few grades",
}


@dataclass(slots=True, kw_only=True)
class StepGroup:
    """The rollouts of one problem in one context. A trajectory counts as one rollout."""

    uid: str
    context: Context
    rows: list[Row]
    state: str  # one of STATES, by its fresh rows
    num_fresh: int  # rollouts that this step sampled
    num_correct: int  # of them
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
    recalled_mass: float  # of its recalled rows
    ranked_mass: float
    share: float = 0.0  # of the step's mass
    fate: str | None = None  # of a collapsed group

    @property
    def num_graded(self) -> int:
        """Fresh rollouts with a verdict."""
        return self.num_correct + self.num_wrong

    @property
    def key(self) -> tuple[str, str]:
        """Names it within its step."""
        return self.uid, self.context.value


def groups_of(rows: Sequence[Row], *, step: int) -> list[StepGroup]:
    """Return the groups of a step in the order of its file."""
    groups = [
        _group(uid, Context(context), its_rows, step)
        for (uid, context), its_rows in grouped(rows).items()
    ]
    mass = sum(group.mass for group in groups)
    reflected = {group.uid for group in groups if group.context is Context.REFLECTION}
    for group in groups:
        group.share = group.mass / mass if mass else 0.0
        group.fate = fate_of(
            group.rows, was_reflected=group.context is Context.PLAIN and group.uid in reflected
        )
    return groups


def _group(uid: str, context: Context, rows: list[Row], step: int) -> StepGroup:
    """Count and sum the rows of one group."""
    fresh = [row for row in rows if row["recalled_from"] is None]
    recalled = [row for row in rows if row["recalled_from"] is not None]
    ranked = [row for row in rows if row.get("ranked")]
    rollouts = _first_turns(fresh)
    correct = _with_verdict(rollouts, Verdict.CORRECT)
    wrong = _with_verdict(rollouts, Verdict.WRONG)
    verdicts = [row["verdict"] for row in rollouts]
    # one graded row is a group with what was recalled for it
    state = group_state(verdicts * 2 if recalled else verdicts)
    return StepGroup(
        uid=uid,
        context=context,
        rows=rows,
        state=STATES[state],
        num_fresh=len(rollouts),
        num_correct=len(correct),
        num_wrong=len(wrong),
        num_ungraded=len(rollouts) - len(correct) - len(wrong),
        num_cut=sum(row["truncated"] for row in fresh),
        num_recalled=len(_first_turns(recalled)),
        num_ranked=len(ranked),
        oldest=max(_ages(recalled, step), default=0),
        shortest_correct=min((row["num_tokens"] for row in correct), default=None),
        mean_tokens=_mean([row["num_tokens"] for row in fresh]) or 0.0,
        mean_reward=_mean([row["reward"] for row in rows if row["reward"] is not None]),
        mass=_mass(rows),
        recalled_mass=_mass(recalled),
        ranked_mass=_mass(ranked),
    )


def _with_verdict(rows: Sequence[Row], verdict: Verdict) -> list[Row]:
    """Keep the rows with this verdict."""
    return [row for row in rows if row["verdict"] == verdict]


def _ages(recalled: Sequence[Row], step: int) -> list[int]:
    """Return the ages in steps of recalled rows; an imported one has no step of this run."""
    return [step - row["recalled_from"] for row in recalled if not row.get("origin")]


def _mean(values: Sequence[float]) -> float | None:
    """Compute the mean; None of no values."""
    return fmean(values) if values else None


def _mass(rows: Iterable[Row]) -> float:
    """Sum |advantage|; a row that was not trained on has none."""
    return sum(abs(row["advantage"] or 0.0) for row in rows)


def _first_turns(rows: Sequence[Row]) -> list[Row]:
    """Return the first row of each trajectory, with its verdict, and each row that is of none."""
    first_turns: dict[str | int, Row] = {}
    for place, row in enumerate(rows):
        first_turns.setdefault(row.get("trajectory") or place, row)
    return list(first_turns.values())


def fate_of(rows: Sequence[Row], *, was_reflected: bool) -> str | None:
    """Return the outcome of a group; None: no collapse. The first that holds: recalled, ranked,
    asked again with an error, or why replay did nothing (method/core/groups.py, RecallFate)."""
    graded = next((row for row in rows if row["group_replay"] is not None), None)
    if graded is None or graded["group_replay"] == RecallFate.NOT_COLLAPSED:
        return None
    if graded["group_replay"] == RecallFate.RECALLED:
        return "recalled"
    if graded["group_ranking"] == RankingFate.RANKED:
        return "ranked"
    return "reflected" if was_reflected else graded["group_replay"].replace("_", " ")


def grouped(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """(problem, context) -> the rows of its group, for the rows of one step.

    A recalled row belongs to the group that it joined, whatever its prompt was. An ungraded row is
    in no group and is listed with its problem and context.
    """
    rows = list(rows)
    keys = {
        row["group"]: (row["uid"], row["context"])
        for row in rows
        if row.get("group") is not None and row["recalled_from"] is None
    }
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(keys.get(row.get("group"), (row["uid"], row["context"])), []).append(
            row
        )
    return groups


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

    def reward(self) -> float:
        """Sum of its turns' rewards."""
        return sum(row["turn_reward"] or 0.0 for row in self.rows)


def trajectories_of(rows: Sequence[Row]) -> list[Played]:
    """Return the trajectories among a group's rows, in file order; [] of responses to a problem."""
    found: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows:
        if row["trajectory"] is not None:
            found.setdefault((row["trajectory"], row["recalled_from"]), []).append(row)
    return [
        Played(place, name, sorted(turns, key=lambda row: row["turn"] or 0))
        for place, ((name, _), turns) in enumerate(found.items())
    ]
