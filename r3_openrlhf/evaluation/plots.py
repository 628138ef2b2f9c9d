"""PNG pictures of results.json: the Pass@k curves, and Pass@k against the length limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display

import matplotlib.pyplot as plt  # noqa: E402


def draw(results: dict[str, Any], directory: Path) -> list[Path]:
    """Write pass_at_k.png, and lengths.png where lengths were asked for; returns what was written."""
    written = [_draw(_pass_curves(results["benchmarks"]), directory / "pass_at_k.png", "k", results)]
    if any(found["lengths"] for found in results["benchmarks"].values()):
        curves = _length_curves(results["benchmarks"], results["settings"]["n_samples"])
        written.append(_draw(curves, directory / "lengths.png", "token limit", results))
    return written


def _pass_curves(summaries: dict[str, Any]) -> dict[str, list[tuple[int, dict]]]:
    return {
        f"{name}: Pass@k": [(int(k), estimate) for k, estimate in found["pass_at_k"].items()]
        for name, found in summaries.items()
    }


def _length_curves(summaries: dict[str, Any], n: int) -> dict[str, list[tuple[int, dict]]]:
    curves = {}
    for name, found in summaries.items():
        for k in sorted({1, n}):
            curves[f"{name}: Pass@{k}"] = [
                (int(limit), at_limit["pass_at_k"][str(k)]) for limit, at_limit in found["lengths"].items()
            ]
    return curves


def _draw(curves: dict[str, list[tuple[int, dict]]], path: Path, label: str, results: dict[str, Any]) -> Path:
    """Mean and 95% interval; x on a logarithmic scale of base 2."""
    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for name, points in curves.items():
        present = [(x, estimate) for x, estimate in points if estimate["value"] is not None]
        if not present:
            continue
        xs = [x for x, _ in present]
        (line,) = axes.plot(xs, [100 * estimate["value"] for _, estimate in present], marker="o", label=name)
        if all(estimate["low"] is not None for _, estimate in present):
            lows, highs = ([100 * estimate[end] for _, estimate in present] for end in ("low", "high"))
            axes.fill_between(xs, lows, highs, color=line.get_color(), alpha=0.15)
    axes.set_xscale("log", base=2)
    ticks = sorted({x for points in curves.values() for x, _ in points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylabel("solved, %")
    axes.set_title(results["model"]["name"])
    axes.grid(alpha=0.3)
    if axes.get_lines():
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
