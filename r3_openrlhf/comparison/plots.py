"""The pictures of a comparison. The only file that imports matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from r3_openrlhf.comparison.arms import Comparison
from r3_openrlhf.comparison.intervals import CONFIDENCE, LEAST, Curve, mean_curve
from r3_openrlhf.comparison.runs import Run

# Okabe and Ito's colours, for all eyes; the reference is black. Further arms repeat them dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B6914")
LINES = ("-", "--", ":")
TOKENS, STEPS = "generated tokens", "steps"
NAMES = {TOKENS: "accuracy_tokens.png", STEPS: "accuracy_steps.png"}
Style = tuple[str, str]  # colour, line
MAX_THIN_LINES = 8  # of one arm


def plot(runs: Sequence[Run], comparison: Comparison, out: Path) -> list[str]:
    """Write the plots of held-out accuracy into `out`, and return their names."""
    styles = {arm.name: _style(number) for number, arm in enumerate(comparison.arms)}
    curves: dict[str, Callable[[Run], Curve]] = {TOKENS: attrgetter("by_tokens"), STEPS: attrgetter("by_steps")}
    for x_label, curve_of in curves.items():
        figure = Figure(figsize=(7.0, 4.5), layout="constrained")
        axes = figure.subplots()
        _draw(axes, runs, styles, curve_of)
        if x_label == TOKENS:
            axes.axvline(comparison.equal_tokens, color="grey", linewidth=0.8, linestyle=":", label="equal tokens")
            axes.axhline(comparison.target_accuracy, color="grey", linewidth=0.8, linestyle="-.", label="target")
        _label(axes, x_label)
        figure.savefig(out / NAMES[x_label], dpi=120, metadata={"Software": None})  # reproducible
    return list(NAMES.values())


def _style(number: int) -> Style:
    if number == 0:
        return "black", "-"
    return COLOURS[(number - 1) % len(COLOURS)], LINES[(number - 1) // len(COLOURS) % len(LINES)]


def _draw(axes: Axes, runs: Sequence[Run], styles: dict[str, Style], curve_of: Callable[[Run], Curve]) -> None:
    """Per arm: each run as a thin line (while they can be told apart), their mean where all of them
    are known, and its interval as a band."""
    for arm, (colour, line) in styles.items():
        curves = [curve_of(run) for run in runs if run.arm == arm]
        for curve in curves if len(curves) <= MAX_THIN_LINES else []:
            axes.plot(curve.xs, curve.ys, color=colour, linestyle=line, linewidth=0.6, alpha=0.4)
        points = mean_curve(curves)
        seeds = f"{arm} ({len(curves)} seed{'s' if len(curves) > 1 else ''})"
        axes.plot([x for x, _ in points], [y.mean for _, y in points], color=colour, linestyle=line, label=seeds)
        if len(curves) >= LEAST:
            axes.fill_between(
                [x for x, _ in points],
                [y.low for _, y in points],
                [y.high for _, y in points],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )


def _label(axes: Axes, x_label: str) -> None:
    axes.set(xlabel=x_label, ylabel="held-out accuracy")
    if x_label == TOKENS:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    title = f"mean, {CONFIDENCE:.0%} interval over seeds"
    axes.legend(loc="best", fontsize="small", title=title, title_fontsize="small")
