"""A comparison as Markdown: one table for reading, and what one needs to check it."""

from __future__ import annotations

import json
from collections.abc import Callable

from r3_openrlhf.comparison.arms import TARGET_SHARES, ArmResult, Comparison
from r3_openrlhf.comparison.intervals import (
    CONFIDENCE,
    MAX_SEEDS_NEEDED,
    Crossing,
    SeedEstimate,
    seeds_needed,
)

NOTHING = "–"
HALF_WIDTH = 0.02  # of an interval around a difference of accuracies: what a study is planned for


LEVELS = (  # label, quantity, form
    ("effective groups (not collapsed) of all sampled, before replay", "effective_before", ".1%"),
    ("effective groups (not collapsed) of all sampled, after replay", "effective_after", ".1%"),
    ("generated tokens in mixed groups", "tokens_in_mixed", ".1%"),
    (f"{NOTHING} in all-correct groups", "tokens_in_all_correct", ".1%"),
    (f"{NOTHING} in none-correct groups", "tokens_in_none_correct", ".1%"),
    (f"{NOTHING} in reflection groups", "tokens_in_reflection", ".1%"),
    (f"{NOTHING} in groups that started from a state", "tokens_in_prefix", ".1%"),
    (f"{NOTHING} elsewhere (dropped or not graded)", "tokens_elsewhere", ".1%"),
    ("trained tokens, prompts included, every pass", "trained_tokens", ",.0f"),
    ("seconds of the steps", "seconds", ",.0f"),
    ("groups dropped by dynamic sampling per step", "dropped_per_step", ".2f"),
    ("solve-all groups per step, of those kept", "solve_all_per_step", ".2f"),
    ("solve-none groups per step, of those kept", "solve_none_per_step", ".2f"),
    ("collapsed groups per step after replay", "collapsed_after_per_step", ".2f"),
    ("entropy (nats per token)", "entropy", ".3f"),
    ("tokens per response", "response_length", ".1f"),
    ("truncated", "truncated", ".1%"),
    ("generated tokens in the whole run", "generated_tokens", ",.0f"),
    ("steps in the whole run", "steps", ",.0f"),
)


def comparison_table(comparison: Comparison) -> str:
    """A row per quantity, a column per arm; how to read it above, what to know below."""
    return "\n".join([*reading(comparison), "", *_markdown(*table_rows(comparison)), *_notes(comparison)]) + "\n"


def table_rows(comparison: Comparison) -> list[list[str]]:
    """The cells of the table, its head first."""
    reference = comparison.reference
    head = ["", *(f"{arm.name} (reference)" if arm.name == reference else arm.name for arm in comparison.arms)]
    return [head, *([label, *(cell(arm) for arm in comparison.arms)] for label, cell in _rows(comparison))]


def details(comparison: Comparison) -> str:
    """Every run by itself, and every setting in which the arms differ."""
    head = ["arm", "seed", "run", "at equal tokens", "mean", "final", "generated tokens", "steps"]
    forms = dict.fromkeys(("accuracy_at_equal_tokens", "mean_accuracy", "final_accuracy"), ".3f")
    forms |= dict.fromkeys(("generated_tokens", "steps"), ",.0f")
    runs = [
        [
            arm.name,
            str(run.seed),
            run.path + ("" if run.finished else " (unfinished)"),
            *(f"{run.values[quantity]:{form}}" for quantity, form in forms.items()),
        ]
        for arm in comparison.arms
        for run in arm.runs
    ]
    names = [arm.name for arm in comparison.arms]
    settings = [
        [f"`{key}`", *(_setting(values[name]) for name in names)] for key, values in comparison.settings.items()
    ]
    differences = _markdown(["key", *names], *settings) if settings else ["None."]
    lines = ["## Runs", "", *_markdown(head, *runs), "", "## Settings in which the arms differ", "", *differences]
    return "\n".join(lines) + "\n"


def _markdown(head: list[str], *rows: list[str]) -> list[str]:
    align = ["---", *("---:" for _ in head[1:])]
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, align, *rows)]
    return [f"| {' | '.join(cells)} |" for cells in escaped]


def reading(comparison: Comparison) -> list[str]:
    """Explain the table, in two paragraphs."""
    how = comparison.evaluation
    target = f"{comparison.target_accuracy:.3f}"
    return [
        f"Held-out accuracy is pass@1 on {how['num_problems']} problems, {how['n_samples']} responses each at temperature "
        f"{how['temperature']}, at most {how['max_new_tokens']} tokens. Numbers are means over seeds with the "
        f"{CONFIDENCE:.0%} interval of Student's t; below two seeds there is none. Equal generated tokens are "
        f"{comparison.equal_tokens:,.0f}, the most that all runs reached ({comparison.limited_by} ends there); between two "
        "evaluations accuracy is interpolated linearly by generated tokens. Groups are counted over the steps up to "
        "there, entropy, length and truncation over the last quarter of these steps. Intervals of the mean curve are a "
        "bootstrap over seeds.",
        f"The target accuracy is {target}, "
        + ("as asked" if comparison.target_is_given else f"the mean final accuracy of {comparison.reference}")
        + ".",
    ]


def _rows(comparison: Comparison) -> list[tuple[str, Callable[[ArmResult], str]]]:
    at = f"{comparison.equal_tokens:,.0f} generated tokens"
    span = f"{comparison.start_tokens:,.0f} to {comparison.equal_tokens:,.0f}" if comparison.start_tokens else at

    def level(quantity: str, form: str) -> Callable[[ArmResult], str]:
        return lambda arm: _estimate(arm.estimates[quantity], form, num_runs=len(arm.runs))

    def difference(quantity: str) -> Callable[[ArmResult], str]:
        return lambda arm: _estimate(arm.differences.get(quantity), "+.3f", num_runs=None)

    rows: list[tuple[str, Callable[[ArmResult], str]]] = [("seeds", _seeds)]
    for quantity, label in (
        ("accuracy_at_equal_tokens", f"held-out accuracy at {at}"),
        ("mean_accuracy", f"its mean over {span} (area under the curve)"),
        ("final_accuracy", "final held-out accuracy"),
    ):
        rows.append((label, level(quantity, ".3f")))
        rows.append((f"{NOTHING} less {comparison.reference}'s, paired by seed", difference(quantity)))
    needed = f"{NOTHING} seeds for an interval of ±{HALF_WIDTH} around it"
    rows.insert(3, (needed, lambda arm: seeds_text(arm.differences.get("accuracy_at_equal_tokens"))))
    crossings = range(len(comparison.levels))
    rows += [(_crossing_label(comparison, number), _crossing_cell(number)) for number in crossings]
    return [*rows, *((label, level(quantity, form)) for label, quantity, form in LEVELS)]


def _crossing_label(comparison: Comparison, number: int) -> str:
    level, reference = comparison.levels[number], comparison.reference
    if comparison.target_is_given:
        what = "as asked"
    elif TARGET_SHARES[number] == 1:
        what = f"{reference}'s final accuracy"
    else:
        what = f"{TARGET_SHARES[number]:.0%} of {reference}'s gain"
    return f"tokens at which the mean curve has {level:.3f} ({what}), over {reference}'s whole runs"


def _crossing_cell(number: int) -> Callable[[ArmResult], str]:
    def cell(arm: ArmResult) -> str:
        crossing, text = arm.crossings[number], crossing_text(arm.crossings[number])
        if crossing is None or crossing.num == len(arm.runs):
            return text
        return f"{text}, {crossing.num} of {len(arm.runs)} runs"

    return cell


def crossing_text(crossing: Crossing | None) -> str:
    """ "0.77 [0.67, >1.00]": where the curve is never there, it is beyond its end."""
    if crossing is None:
        return NOTHING
    beyond = f">{crossing.limit:.2f}"
    ratio, low, high = (
        beyond if value is None else f"{value:.2f}" for value in (crossing.ratio, crossing.low, crossing.high)
    )
    return f"{ratio} [{low}, {high}]" if crossing.num > 1 else ratio


def interval_text(estimate: SeedEstimate | None, form: str) -> str:
    """ "0.412 [0.380, 0.444]"; a dash for None."""
    if estimate is None:
        return NOTHING
    return f"{estimate.mean:{form}}" + (
        "" if estimate.low is None else f" [{estimate.low:{form}}, {estimate.high:{form}}]"
    )


def seeds_text(estimate: SeedEstimate | None) -> str:
    """Count the seeds for an interval of ±HALF_WIDTH; a dash where there is none yet."""
    if estimate is None or estimate.low is None:
        return NOTHING
    number = seeds_needed(estimate, half_width=HALF_WIDTH)
    return f">{MAX_SEEDS_NEEDED:,}" if number is None else f"{number:,}"


def _estimate(estimate: SeedEstimate | None, form: str, *, num_runs: int | None) -> str:
    """With the number of runs or pairs where it is not all runs of the arm."""
    text = interval_text(estimate, form)
    if estimate is None:
        return text
    if num_runs is None:
        return f"{text}, {estimate.num} pair{'s' if estimate.num > 1 else ''}"
    return text if estimate.num == num_runs else f"{text}, {estimate.num} of {num_runs} runs"


def _seeds(arm: ArmResult) -> str:
    return f"{len(arm.runs)}: {', '.join(str(run.seed) for run in arm.runs)}"


def _setting(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _notes(comparison: Comparison) -> list[str]:
    return ["", *(f"* {note}" for note in comparison.notes)] if comparison.notes else []
