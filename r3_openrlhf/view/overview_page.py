"""The curves of some runs over each other, and each of them in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any
from urllib.parse import urlencode

from r3_openrlhf.view.compare_page import difference_of
from r3_openrlhf.view.curves import curves_of
from r3_openrlhf.view.effect_page import sentences
from r3_openrlhf.view.links import Links
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.site import Site


def overview(
    site: Site,
    links: Links,
    names: Sequence[str] | None = None,
    *,
    addresses: Mapping[str, Mapping[int, str | None]] | None = None,
) -> str:
    """The curves of some runs; None: of all that are open, and the evaluations.

    `addresses`: name of a run -> step -> where its page is, for an export; None: the server has them all.
    """
    runs = [site.run(name) for name in names] if names is not None else list(site.library.runs.values())
    evaluations = list(site.library.evaluations.values()) if names is None else []
    single = runs[0] if len(runs) == 1 else None
    latest = sorted(addresses[single.name] if addresses else single.steps()[-8:], reverse=True) if single else []
    return site.render(
        "overview.html",
        links,
        runs=[summary(run) for run in runs],
        single=single,
        evaluations=[
            (one, one.results()[0], difference_of(evaluations[0], one) if number else None)
            for number, one in enumerate(evaluations)
        ],
        curves=curves(site, [run.name for run in runs], every=site.is_export) | {"addresses": addresses},
        latest=latest,
        query=urlencode([("run", name) for name in names or ()]),
        said=sentences(site, links, single.name) if single and site.is_export else [],
    )


def curves(site: Site, names: Sequence[str], *, every: bool = False) -> dict[str, Any]:
    """What the overview draws. `every`: with every key of metrics.jsonl."""
    return curves_of([site.run(name) for name in names], site.indexing.counted, every=every)


def state(site: Site) -> dict[str, dict[str, Any]]:
    """For pages that wait for news: name of each run -> its newest step, and whether it has ended."""
    counted = site.indexing.counted
    return {
        name: {
            "metrics": run.metrics()[-1]["step"] if run.metrics() else 0,
            "rollouts": run.steps()[-1] if run.steps() else 0,
            "counted": len(counted.get(name, ())),
            "finished": run.is_finished,
        }
        for name, run in site.library.runs.items()
    }


def summary(run: RunReader) -> dict[str, Any]:
    """A run in one line: first and last quarter of its steps, sums of what R³ did."""
    lines, evaluations = run.metrics(), [line for line in run.evaluations() if line.get("pass_at_1") is not None]
    quarter = max(1, len(lines) // 4)

    def mean(part: Sequence[dict[str, Any]], key: str) -> float | None:
        values = [line[key] for line in part if line.get(key) is not None]
        return fmean(values) if values else None

    def total(key: str) -> float | None:
        values = [line[key] for line in lines if line.get(key) is not None]
        return sum(values) if values else None

    return {
        "run": run,
        "config": run.config,
        "steps": lines[-1]["step"] if lines else 0,
        "epoch": lines[-1].get("epoch") if lines else None,
        "finished": run.is_finished,
        "tokens": lines[-1].get("generated_tokens_total") if lines else None,
        "reward": (mean(lines[:quarter], "reward_mean"), mean(lines[-quarter:], "reward_mean")),
        "accuracy": (mean(lines[:quarter], "accuracy"), mean(lines[-quarter:], "accuracy")),
        "held_out": (evaluations[0]["pass_at_1"], evaluations[-1]["pass_at_1"]) if evaluations else None,
        "collapsed": (total("r3/groups/collapsed_before"), total("r3/groups/collapsed_after")),
        "recalled": total("r3/replay/recalled"),
        "reflected": total("r3/reflection/groups"),
        "ranked": total("r3/ranking/groups"),
        "ungraded": total("r3/grading/ungraded"),
        "gaps": [b["step"] for a, b in pairwise(lines) if b["step"] != a["step"] + 1],
        "rollouts": len(run.steps()),
        "why_no_rollouts": run.why_no_rollouts(),
        "faults": run.faults(),
    }
