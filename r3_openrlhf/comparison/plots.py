"""The pictures of a comparison. The only file that imports matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from r3_openrlhf.comparison.arms import Comparison
from r3_openrlhf.comparison.intervals import CONFIDENCE, Curve, mean_curve, trailing_mean
from r3_openrlhf.comparison.runs import Run

# Okabe and Ito's colours, for all eyes; the reference is black. Further arms repeat them dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B6914")
LINES = ("-", "--", ":")
GROUPS = (
    ("solve-all groups", "r3/groups/all_correct"),
    ("solve-none groups", "r3/groups/none_correct"),
    ("collapsed after replay", "r3/groups/collapsed_after"),
    ("dropped by dynamic sampling", "r3/filter/dropped_groups"),
)
LEVELS = (
    ("entropy.png", "entropy (nats per token)", "fresh/entropy"),
    ("response_length.png", "tokens per response", "fresh/response_length"),
    ("truncation.png", "share of responses truncated", "fresh/truncated"),
)
TOKENS, STEPS = "generated tokens", "steps"
Style = tuple[str, str]  # colour, line
MAX_THIN_LINES = 8  # of one arm


def plot(runs: Sequence[Run], comparison: Comparison, out: Path, *, window: int) -> list[str]:
    """Write the plots into `out` and return their names. What no run has measured has no plot.

    Curves of rollouts are means of each step and the `window` - 1 steps before it.
    """
    styles = {arm.name: _style(number) for number, arm in enumerate(comparison.arms)}
    accuracies = (
        ("accuracy_tokens.png", TOKENS, lambda run: run.by_tokens),
        ("accuracy_steps.png", STEPS, lambda run: run.by_steps),
    )
    names = []

    def save(name: str, figure: Figure) -> None:
        figure.savefig(out / name, dpi=120, metadata={"Software": None})  # reproducible
        names.append(name)

    for name, x_label, curve_of in accuracies:
        figure, (axes,) = _figure(1)
        _draw(axes, runs, styles, curve_of)
        if x_label == TOKENS:
            axes.axvline(comparison.equal_tokens, color="grey", linewidth=0.8, linestyle=":", label="equal tokens")
            axes.axhline(comparison.target_accuracy, color="grey", linewidth=0.8, linestyle="-.", label="target")
        _label(axes, x_label, "held-out accuracy")
        save(name, figure)
    smoothed = f"mean of {window} steps" if window > 1 else "each step"
    known = [(label, key) for label, key in GROUPS if _measured(runs, key)]
    if not any(line.get(GROUPS[-1][1]) for run in runs for line in run.metrics):
        known = [panel for panel in known if panel != GROUPS[-1]]  # no arm drops any
    if known:
        figure, panels = _figure(len(known))
        for axes, (label, key) in zip(panels, known, strict=True):
            _draw(axes, runs, styles, partial(_steps_of, key=key, x="step", window=window))
            _label(axes, STEPS, f"{label} per step ({smoothed})")
        save("groups.png", figure)
    for name, label, key in LEVELS:
        if _measured(runs, key):
            figure, (axes,) = _figure(1)
            _draw(axes, runs, styles, partial(_steps_of, key=key, x="generated_tokens_total", window=window))
            _label(axes, TOKENS, f"{label} ({smoothed})")
            save(name, figure)
    return names


def _style(number: int) -> Style:
    if number == 0:
        return "black", "-"
    return COLOURS[(number - 1) % len(COLOURS)], LINES[(number - 1) // len(COLOURS) % len(LINES)]


def _figure(num_panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(7.0 if num_panels == 1 else 5.0 * num_panels, 4.5), layout="constrained")
    return figure, list(figure.subplots(1, num_panels, squeeze=False)[0])


def _draw(axes: Axes, runs: Sequence[Run], styles: dict[str, Style], curve_of: Callable[[Run], Curve | None]) -> None:
    """Per arm: each run as a thin line (while they can be told apart), their mean where all of them
    are known, and its interval as a band."""
    for arm, (colour, line) in styles.items():
        curves = [curve for run in runs if run.arm == arm and (curve := curve_of(run)) is not None]
        if not curves:
            continue
        for curve in curves if len(curves) <= MAX_THIN_LINES else []:
            axes.plot(curve.xs, curve.ys, color=colour, linestyle=line, linewidth=0.6, alpha=0.4)
        points = mean_curve(curves)
        seeds = f"{arm} ({len(curves)} seed{'s' if len(curves) > 1 else ''})"
        axes.plot([x for x, _ in points], [y.mean for _, y in points], color=colour, linestyle=line, label=seeds)
        if len(curves) > 1:
            axes.fill_between(
                [x for x, _ in points],
                [y.low for _, y in points],
                [y.high for _, y in points],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )


def _label(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set(xlabel=x_label, ylabel=y_label)
    if x_label == TOKENS:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    title = f"mean, {CONFIDENCE:.0%} interval over seeds"
    axes.legend(loc="best", fontsize="small", title=title, title_fontsize="small")


def _measured(runs: Sequence[Run], key: str) -> bool:
    return any(line.get(key) is not None for run in runs for line in run.metrics)


def _steps_of(run: Run, key: str, x: str, window: int) -> Curve | None:
    known = [line for line in run.metrics if line.get(key) is not None]
    if not known:
        return None
    return Curve(tuple(line[x] for line in known), tuple(trailing_mean([line[key] for line in known], window)))
