"""A comparison as a table in Markdown."""

from collections.abc import Callable

from r3_openrlhf.comparison.arms import QUANTITIES, TARGET_SHARES, ArmResult, Comparison
from r3_openrlhf.comparison.evaluations import EvaluationComparison
from r3_openrlhf.comparison.intervals import (
    CONFIDENCE,
    LEAST,
    MAX_SEEDS_NEEDED,
    Crossing,
    SeedEstimate,
    seeds_needed,
)

NOTHING = "–"
FIRST = 4  # rows that answer the question; the others are read when somebody asks why
# of an interval around a difference of accuracies: what a study is planned for
HALF_WIDTH = 0.02


def comparison_table(comparison: Comparison) -> str:
    """Format a column per arm, and a row per quantity: the FIRST ones, how to read them and what to
    know of the runs, then the others."""
    head, *rows = table_rows(comparison)
    notes = ["", *(f"* {note}" for note in comparison.notes)] if comparison.notes else []
    first = [*_markdown(head, *rows[:FIRST]), "", *reading(comparison), *notes]
    return (
        "\n".join([*first, "", "All other quantities:", "", *_markdown(head, *rows[FIRST:])])
        + "\n"
    )


def evaluations_table(comparison: EvaluationComparison) -> str:
    """Format a column per evaluation, for each benchmark Pass@1 and the difference; then what differs in them."""
    reference, names = comparison.reference, list(comparison.paths)
    rows = [["", *(f"{name} (reference)" if name == reference else name for name in names)]]
    for benchmark, rates in comparison.pass_at_1.items():
        shares = [rates[name] for name in names]
        differences = comparison.differences[benchmark]
        rows.append(
            [
                f"{benchmark}: Pass@1",
                *(_share(one["value"], one["low"], one["high"]) for one in shares),
            ]
        )
        less = f"{NOTHING} vs. {reference}, paired by problem"
        rows.append(
            [less, *(_estimate(differences.get(name), "+.3f", num_runs=None) for name in names)]
        )
    said = "Pass@1 with the 95% bootstrap interval over problems; differences with Student's, over problems graded in both."
    notes = [
        f"* {key} is {', '.join(f'{value} in {name}' for name, value in of.items())}."
        for key, of in comparison.settings.items()
    ]
    return "\n".join([*_markdown(*rows), "", said, *([""] * bool(notes)), *notes]) + "\n"


def _share(value: float | None, low: float | None, high: float | None) -> str:
    return (
        NOTHING
        if value is None
        else f"{value:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")
    )


def table_rows(comparison: Comparison) -> list[list[str]]:
    """Return the cells of the table, its head first."""
    reference = comparison.reference
    head = [
        "",
        *(
            f"{arm.name} (reference)" if arm.name == reference else arm.name
            for arm in comparison.arms
        ),
    ]
    return [
        head,
        *(
            [label, *(cell(arm) for arm in comparison.arms)]
            for label, cell in _rows(comparison)
        ),
    ]


def _markdown(head: list[str], *rows: list[str]) -> list[str]:
    align = ["---", *("---:" for _ in head[1:])]
    escaped = [
        [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in (head, align, *rows)
    ]
    return [f"| {' | '.join(cells)} |" for cells in escaped]


def reading(comparison: Comparison) -> list[str]:
    """Explain the table, in two paragraphs."""
    how = comparison.evaluation
    target = f"{comparison.target_accuracy:.3f}"
    return [
        f"Held-out accuracy is pass@1 on {how['num_problems']} problems, {how['n_samples']} responses each at temperature "
        f"{how['temperature']}, at most {how['max_new_tokens']} tokens. Numbers are means over seeds with the "
        f"{CONFIDENCE:.0%} interval of Student's t, within what a share can be; below three seeds they are the runs' own numbers. Equal generated tokens are "
        f"{comparison.equal_tokens:,.0f}, the most that all runs reached ({comparison.limited_by} ends there); between two "
        "evaluations accuracy is interpolated linearly by generated tokens. Groups are counted over the steps up to "
        "there, entropy, length and truncation over the last quarter of these steps. Intervals of the mean curve are a "
        "bootstrap over seeds.",
        f"The target accuracy is {target}, "
        + (
            "as asked"
            if comparison.target_is_given
            else f"the mean final accuracy of {comparison.reference}"
        )
        + ".",
    ]


def _rows(comparison: Comparison) -> list[tuple[str, Callable[[ArmResult], str]]]:
    at = f"{comparison.equal_tokens:,.0f} generated tokens"
    span = (
        f"{comparison.start_tokens:,.0f} to {comparison.equal_tokens:,.0f}"
        if comparison.start_tokens
        else at
    )

    def level(quantity: str, form: str) -> Callable[[ArmResult], str]:
        return lambda arm: _estimate(arm.estimates[quantity], form, num_runs=len(arm.runs))

    def difference(quantity: str) -> Callable[[ArmResult], str]:
        return lambda arm: _estimate(arm.differences.get(quantity), "+.3f", num_runs=None)

    known = [
        one
        for one in QUANTITIES
        if any(arm.estimates[one.name] is not None for arm in comparison.arms)
    ]
    less = f"{NOTHING} vs. {comparison.reference}, paired by seed"
    *before, last = [
        (_crossing_label(comparison, n), _crossing_cell(n))
        for n in range(len(comparison.levels))
    ]
    needed = f"{NOTHING} seeds for an interval of ±{HALF_WIDTH} around it"
    return [
        (
            "seeds",
            lambda arm: f"{len(arm.runs)}: {', '.join(str(run.seed) for run in arm.runs)}",
        ),
        (f"held-out accuracy at {at}", level("accuracy_at_equal_tokens", ".3f")),
        (less, difference("accuracy_at_equal_tokens")),
        last,
        (needed, lambda arm: seeds_text(arm.differences.get("accuracy_at_equal_tokens"))),
        (f"its mean over {span} (area under the curve)", level("mean_accuracy", ".3f")),
        (less, difference("mean_accuracy")),
        ("final held-out accuracy", level("final_accuracy", ".3f")),
        (less, difference("final_accuracy")),
        *before,
        *((one.label, level(one.name, one.form)) for one in known),
    ]


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
        beyond if value is None else f"{value:.2f}"
        for value in (crossing.ratio, crossing.low, crossing.high)
    )
    has_interval = crossing.num >= LEAST and low != beyond
    return f"{ratio} [{low}, {high}]" if has_interval else ratio


def interval_text(estimate: SeedEstimate | None, form: str) -> str:
    """ "0.412 [0.380, 0.444]"; the values of fewer than LEAST, by seed: "0.412 (each: 0.390, 0.434)"."""
    if estimate is None:
        return NOTHING
    if estimate.low is not None:
        return f"{estimate.mean:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"
    values = ", ".join(f"{value:{form}}" for value in estimate.values)
    return f"{estimate.mean:{form}}" + (
        f" (each: {values})" if len(estimate.values) > 1 else ""
    )


def seeds_text(estimate: SeedEstimate | None) -> str:
    """Count the seeds for an interval of ±HALF_WIDTH; a dash where there is none yet."""
    if estimate is None or estimate.low is None:
        return NOTHING
    number = seeds_needed(estimate, half_width=HALF_WIDTH)
    return f">{MAX_SEEDS_NEEDED:,}" if number is None else f"{number:,}"


def _estimate(estimate: SeedEstimate | None, form: str, *, num_runs: int | None) -> str:
    """Write an estimate, with the number of runs or pairs unless it is all runs of the arm."""
    text = interval_text(estimate, form)
    if estimate is None:
        return text
    if num_runs is None:
        return f"{text}, {estimate.num} pair{'s' if estimate.num > 1 else ''}"
    return text if estimate.num == num_runs else f"{text}, {estimate.num} of {num_runs} runs"
