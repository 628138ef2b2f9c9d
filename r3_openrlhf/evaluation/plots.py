"""PNG pictures of results.json: the Pass@k curves, and Pass@k against the length limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display

import matplotlib.pyplot as plt  # noqa: E402


def draw(results: dict[str, Any], directory: Path) -> None:
    """Write pass_at_k.png, and lengths.png where lengths were asked for."""
    summaries, n = results["benchmarks"], results["settings"]["n_samples"]
    at_k = {f"{name}: Pass@k": list(summary["pass_at_k"].items()) for name, summary in summaries.items()}
    _draw(at_k, directory / "pass_at_k.png", "k", results)
    at_lengths = {
        f"{name}: Pass@{k}": [(limit, at["pass_at_k"][str(k)]) for limit, at in summary["lengths"].items()]
        for name, summary in summaries.items()
        for k in sorted({1, n})
        if summary["lengths"]
    }
    if at_lengths:
        _draw(at_lengths, directory / "lengths.png", "token limit", results)


def _draw(curves: dict[str, list[tuple[str, dict]]], path: Path, label: str, results: dict[str, Any]) -> None:
    """Mean and 95% interval; x on a logarithmic scale of base 2."""
    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for name, points in curves.items():
        present = [(int(x), estimate) for x, estimate in points if estimate["value"] is not None]
        xs, means = [x for x, _ in present], [100 * estimate["value"] for _, estimate in present]
        if not present:
            continue
        (line,) = axes.plot(xs, means, marker="o", label=name)
        if all(estimate["low"] is not None for _, estimate in present):
            lows, highs = ([100 * estimate[end] for _, estimate in present] for end in ("low", "high"))
            axes.fill_between(xs, lows, highs, color=line.get_color(), alpha=0.15)
    axes.set_xscale("log", base=2)
    ticks = sorted({int(x) for points in curves.values() for x, _ in points})
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylabel("solved, %")
    axes.set_title(results["model"]["name"])
    axes.grid(alpha=0.3)
    if axes.get_lines():
        axes.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)
