"""Which numbers of a run are drawn, in which picture; and their values as a page needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from r3_openrlhf.viewer.run_reader import Row, RunReader, stamp_of
from r3_openrlhf.viewer.step_groups import EVERY, Asked, groups_of

HELD_OUT = "held_out:"  # keys of evaluations.jsonl
AGES = {"1 to 5": 5, "6 to 20": 20, "21 to 50": 50, "older": 10**9}  # name -> the oldest that belongs to it
# Colours stand for the same thing in every picture: right, wrong, neither.
COLOURS = {
    "r3/groups/all_correct": 0,
    "r3/groups/none_correct": 1,
    "r3/groups/mixed": 2,
    "r3/tokens/all_correct": 0,
    "r3/tokens/none_correct": 1,
    "r3/tokens/mixed": 2,
    "r3/tokens/reflection": 3,
    "fate:recalled": 2,
    "fate:ranked": 4,
    "fate:reflected": 3,
    "fate:nothing stored": 1,
    "fate:left": 7,
    "r3/replay/hits": 2,
    "r3/history/never_sampled": 1,
    "r3/history/evicted": 4,
    "r3/history/too_old": 7,
}
DIGITS = 6  # significant ones in a page; `r3 show --json` has all


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture. `series`: (key, what it is called beside others)."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    stacked: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Pictures that answer one question."""

    title: str
    charts: tuple[Chart, ...]


SECTIONS = (
    Section(
        "Does it learn?",
        (
            Chart("Reward", "mean of a rollout", (("reward_mean", "reward"),)),
            Chart(
                "Accuracy",
                "share",
                (
                    ("accuracy", "training"),
                    ("held_out:pass_at_1", "held out"),
                    ("held_out:pass_at_n", "held out, Pass@n"),
                ),
            ),
            Chart("Response length", "tokens", (("response_length_mean", "mean"),)),
            Chart("Truncated", "share", (("truncated_rate", "cut by the token limit"),)),
        ),
    ),
    Section(
        "Which groups collapse, and what becomes of them?",
        (
            Chart(
                "Groups by verdict",
                "groups",
                (
                    ("r3/groups/mixed", "mixed"),
                    ("r3/groups/all_correct", "all right"),
                    ("r3/groups/none_correct", "all wrong"),
                ),
                stacked=True,
            ),
            Chart(
                "Collapsed groups",
                "groups",
                (("r3/groups/collapsed_before", "before replay"), ("r3/groups/collapsed_after", "after")),
            ),
            Chart(
                "What became of the collapsed",
                "groups",
                (
                    ("fate:recalled", "recalled"),
                    ("fate:ranked", "ranked"),
                    ("fate:reflected", "reflected"),
                    ("fate:nothing stored", "nothing stored"),
                    ("fate:left", "left"),
                ),
                stacked=True,
                note="The first that holds. From the rollouts of each step.",
            ),
            Chart(
                "Asked of the history",
                "groups",
                (
                    ("r3/replay/hits", "found"),
                    ("r3/history/never_sampled", "never sampled"),
                    ("r3/history/evicted", "evicted"),
                    ("r3/history/too_old", "too old"),
                ),
                stacked=True,
            ),
        ),
    ),
    Section(
        "Replay",
        (
            Chart("Recalled rollouts", "rows", (("r3/replay/recalled", "recalled"),)),
            Chart(
                "Recalls by age",
                "rows",
                tuple((f"age:{name}", name) for name in AGES),
                stacked=True,
                note="Steps since the recalled rollout was sampled.",
            ),
            Chart("Age of the recalled", "steps", (("r3/replay/mean_lag", "mean"), ("r3/replay/max_lag", "oldest"))),
            Chart(
                "Ratio of the recalled",
                "ratio",
                (("r3/replay/ratio_mean", "mean"), ("r3/replay/ratio_max", "largest")),
            ),
            Chart("Clipped tokens of the recalled", "share", (("r3/replay/clip_fraction", "clipped"),)),
            Chart("Coverage of the history", "share", (("r3/history/coverage", "had something"),)),
        ),
    ),
    Section(
        "Reflection and ranking",
        (
            Chart(
                "Accuracy after reflection",
                "share",
                (("r3/reflection/accuracy", "reflection prompt"), ("r3/reflection/plain_accuracy", "plain prompt")),
            ),
            Chart(
                "Hard problems",
                "problems",
                (("r3/reflection/hard_prompts", "hard"), ("r3/reflection/groups", "asked again")),
            ),
            Chart("Ranked", "count", (("r3/ranking/groups", "groups"), ("r3/ranking/rows", "rows"))),
            Chart(
                "Gradient without a verified difference",
                "share of |A|",
                (("r3/advantage/unverified_share", "unverified"),),
            ),
        ),
    ),
    Section(
        "Is it healthy?",
        (
            Chart(
                "Entropy",
                "nats per token",
                (
                    ("r3/entropy/estimate", "estimate"),
                    ("r3/entropy/ranked_peak", "ranked, peak"),
                    ("r3/entropy/ranked_global", "ranked, global"),
                ),
            ),
            Chart("Log-prob gap, actor and engine", "nats", (("r3/sync/abs_logprob_gap", "mean |gap|"),)),
            Chart("Gradient norm", "before clipping", (("grad_norm", "norm"),)),
            Chart("Largest gradient norm", "of the passes", (("grad_norm_max", "norm"),)),
            Chart("Ungraded", "share", (("r3/grading/ungraded_rate", "ungraded"),)),
        ),
    ),
    Section(
        "What does it cost?",
        (
            Chart(
                "Seconds by phase",
                "s",
                (
                    ("timing/generation", "sampling"),
                    ("timing/make_experience", "log-probs, rewards"),
                    ("timing/ppo_train", "update"),
                    ("timing/broadcast", "weights to the engine"),
                    ("time/sampling_s", "sampling"),
                ),
                stacked=True,
            ),
            Chart("Seconds added by R³", "s", (("r3/time/added_s", "added"), ("r3/time/history_s", "of it history"))),
            Chart(
                "Tokens by kind of group",
                "tokens",
                (
                    ("r3/tokens/mixed", "mixed"),
                    ("r3/tokens/all_correct", "all right"),
                    ("r3/tokens/none_correct", "all wrong"),
                    ("r3/tokens/reflection", "reflection"),
                ),
                stacked=True,
            ),
            Chart("Tokens sampled", "tokens", (("generated_tokens", "a step"),)),
        ),
    ),
)


def counts_of(rows: Sequence[Row], *, step: int, asked: Asked = EVERY) -> dict[str, int]:
    """Of a step's rollouts: "fate:..." -> how many of its collapsed groups, "age:..." -> how many recalled rows. `asked` as
    for step_groups.groups_of."""
    fates = (f"fate:{group.fate}" for group in groups_of(rows, step=step, asked=asked) if group.fate is not None)
    lags = (step - row["recalled_from"] for row in rows if row["recalled_from"] is not None)
    ages = (next(name for name, oldest in AGES.items() if lag <= oldest) for lag in lags)
    return dict(Counter(fates) + Counter(f"age:{age}" for age in ages))


def curves_of(
    runs: Sequence[RunReader], counted: Mapping[str, Mapping[int, Mapping[str, int]]] | None = None
) -> dict[str, Any]:
    """Everything that the overview draws, as plain JSON: the pictures of which some run has values, and each run's columns.

    `counted`: name of a run -> step -> "fate:..." and "age:..." -> how many, as far as they were counted.
    """
    found = [_columns(run, (counted or {}).get(run.name, {})) for run in runs]
    present = {key for run in found for key in run["series"]}
    sections = []
    for section in SECTIONS:
        charts = [chart for chart in section.charts if any(key in present for key, _ in chart.series)]
        if charts:
            sections.append({"title": section.title, "charts": [_plain(chart, present) for chart in charts]})
    total = sum(len((counted or {}).get(run.name, ())) for run in runs)
    return {"runs": found, "sections": sections, "counted": total}


def _plain(chart: Chart, present: set[str]) -> dict[str, Any]:
    series = [
        {"key": key, "label": label, "colour": COLOURS.get(key, place)}
        for place, (key, label) in enumerate(chart.series)
        if key in present
    ]
    return {
        "title": chart.title,
        "unit": chart.unit,
        "series": series,
        "stacked": chart.stacked,
        "note": chart.note,
    }


def _columns(run: RunReader, counted: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
    """steps, tokens, and series: key -> a value for each of them; those of evaluations have steps of their own."""
    files = run.directory.metrics, run.directory.evaluations
    stamp = (*map(stamp_of, files), len(counted), bool(run.steps()))
    return run.fresh("columns", stamp, lambda: _read_columns(run, counted))


def _read_columns(run: RunReader, counted: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
    lines, evaluations = run.metrics(), run.evaluations()
    steps = [line["step"] for line in lines]
    series = {}
    for key in {key for section in SECTIONS for chart in section.charts for key, _ in chart.series}:
        if key.startswith(HELD_OUT):
            values = [_short(line.get(key.removeprefix(HELD_OUT))) for line in evaluations]
        elif key.startswith(("fate:", "age:")):
            values = [counted[step].get(key, 0) if step in counted else None for step in steps]
        else:
            values = [_short(line.get(key)) for line in lines]
        if any(values) or (any(value is not None for value in values) and key not in COLOURS and ":" not in key):
            series[key] = values
    return {
        "name": run.name,
        "steps": steps,
        "tokens": [line.get("generated_tokens_total") for line in lines],
        "held_out": {
            "steps": [line["step"] for line in evaluations],
            "tokens": [line.get("generated_tokens") for line in evaluations],
        },
        "series": series,
        "has_rollouts": bool(run.steps()),
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
