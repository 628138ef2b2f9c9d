"""The curves of some runs over each other, a line per run, its effect, and the arms compared."""

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from r3_openrlhf.comparison.arms import DEFAULT_REFERENCE, Comparison, compare
from r3_openrlhf.comparison.intervals import SeedEstimate
from r3_openrlhf.comparison.runs import differences_between, read_run, settings_of
from r3_openrlhf.comparison.table import FIRST, reading, table_rows
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.effect import effect_of, shares_right
from r3_openrlhf.runs.report import quarter_means, total
from r3_openrlhf.view.better import sentences
from r3_openrlhf.view.curves import curves_of
from r3_openrlhf.view.evaluation import EvaluationReader, difference_of
from r3_openrlhf.view.first_page import first_page_of
from r3_openrlhf.view.health import answers, health_of
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render
from r3_openrlhf.view.run_reader import RunReader


def overview(
    library: Library, names: Sequence[str] | None = None, *, counted: bool = False
) -> str:
    """Render the curves of some runs; None: of all that are open, and the evaluations. counted:
    with what is counted from the rollouts, which the page asks for when it is drawn."""
    if names is None:
        runs = list(library.runs.values())
        evaluations = list(library.evaluations.values())
    else:
        runs = [library.run(name) for name in names]
        evaluations = []
    # before anything is read: what comes later makes the page follow again
    now = state_of(runs)
    single = runs[0] if len(runs) == 1 else None
    of_one = _NOTHING_OF_ONE if single is None else _of_one(single, counted=counted)
    of_several = _of_several(runs) if len(runs) > 1 else _NOTHING_OF_SEVERAL
    return render(
        "overview.html",
        runs=[summary(run) for run in runs],
        single=single,
        notes=notes_of(runs),
        others=[name for name, run in library.runs.items() if run is not single],
        statement=library.statement,
        evaluations=_beside_the_first(evaluations),
        curves=curves_of(runs, counted=counted),
        state=now,
        query=urlencode([("run", name) for name in names or ()]),
        **of_one,
        **of_several,
    )


_NOTHING_OF_ONE: dict[str, Any] = {"first_page": [], "answers": {}, "effect": [], "latest": []}
_NOTHING_OF_SEVERAL: dict[str, Any] = {"better": [], "comparison": None, "pair": None}
_NUM_LATEST = 8


def _of_one(run: RunReader, *, counted: bool) -> dict[str, Any]:
    """Return the parts of the page that are of a single run."""
    has_begun = bool(run.metrics())
    return {
        "first_page": [] if has_begun else first_page_of(run.directory),
        "answers": answers(run),
        "effect": effect_sentences(run) if counted else [],
        "latest": run.steps()[::-1][:_NUM_LATEST],
    }


def _of_several(runs: Sequence[RunReader]) -> dict[str, Any]:
    """Return the parts of the page that compare runs."""
    comparison, faults = comparison_of(runs)
    return {
        "better": sentences(comparison, faults),
        "comparison": comparison,
        "pair": pair_of(*runs) if len(runs) == 2 else None,
    }


def _beside_the_first(
    evaluations: Sequence[EvaluationReader],
) -> list[tuple[EvaluationReader, dict[str, Any] | None, SeedEstimate | None]]:
    """Return (evaluation, its first result, how it differs from the first evaluation or None)."""
    rows: list[tuple[EvaluationReader, dict[str, Any] | None, SeedEstimate | None]] = []
    for reader in evaluations:
        results, _ = reader.results()
        is_first = reader is evaluations[0]
        difference = None if is_first else difference_of(evaluations[0], reader)
        rows.append((reader, results, difference))
    return rows


def state(library: Library) -> dict[str, dict[str, Any]]:
    """Return the newest step and the state of each run, for pages that wait for news."""
    library.refresh()
    return state_of(library.runs.values())


def state_of(runs: Iterable[RunReader]) -> dict[str, dict[str, Any]]:
    """Return `state` of these runs alone: reading another run could take long."""
    return {
        run.name: {
            "metrics": run.metrics()[-1]["step"] if run.metrics() else 0,
            "evaluations": run.evaluations()[-1]["step"] if run.evaluations() else 0,
            "rollouts": run.steps()[-1] if run.steps() else 0,
            "state": str(run.state.state),
        }
        for run in runs
    }


def summary(run: RunReader) -> dict[str, Any]:
    """Summarize a run in one line: first and last quarter of its steps, sums of what R³ did."""
    lines, evaluations = (
        run.metrics(),
        [line for line in run.evaluations() if line.get("pass_at_1") is not None],
    )
    last = lines[-1] if lines else {"step": 0}
    return {
        "run": run,
        "config": run.config,
        "steps": last["step"],
        "epoch": last.get("epoch"),
        "state": run.state,
        "state_sentence": run.state_sentence(),
        "tokens": last.get("generated_tokens_total"),
        "reward": quarter_means(lines, "fresh/reward"),
        "accuracy": quarter_means(lines, "fresh/accuracy"),
        "held_out": (evaluations[0]["pass_at_1"], evaluations[-1]["pass_at_1"])
        if evaluations
        else None,
        "collapsed": (
            total(lines, "r3/groups/collapsed_before"),
            total(lines, "r3/groups/collapsed_after"),
        ),
        "recalled": total(lines, "r3/replay/recalled"),
        "reflected": total(lines, "r3/reflection/groups"),
        "ranked": total(lines, "r3/ranking/groups"),
        "ungraded": total(lines, "r3/grading/ungraded"),
        "rollouts": len(run.steps()),
        "health": health_of(run),
    }


def notes_of(runs: Iterable[RunReader]) -> list[tuple[str, list[str]]]:
    """Return what is missing or damaged in the runs: (sentence, names of the runs with it), each sentence once."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for sentence in filter(None, [run.why_no_rollouts(), *run.faults()]):
            names.setdefault(sentence, []).append(run.name)
    return list(names.items())


# ── did it help? ──


def effect_page(library: Library, name: str) -> str:
    """`r3 show RUN --effect`."""
    run = library.run(name)
    return render(
        "effect.html", run=run, effect=effect_of(run.directory) if run.steps() else None
    )


def effect_sentences(run: RunReader) -> list[tuple[str, str]]:
    """(part of its page, sentence) of the effect; one sentence where a file is damaged."""
    try:
        return effect_of(run.directory).parts() if run.steps() else []
    except R3Error as error:
        return [("by-step", str(error))]


# ── two runs, arms ──


def pair_of(a: RunReader, b: RunReader) -> dict[str, Any]:
    """Compare two runs: the settings that differ (None: unreadable), and the held-out problems that
    one has right and the other wrong after the newest step at which both were evaluated."""
    settings = [settings_of(run.config) for run in (a, b) if run.config is not None]
    files = [rollout_files.steps_in(run.directory.held_out_rollouts) for run in (a, b)]
    step, fault, both = max(files[0].keys() & files[1].keys(), default=None), None, []
    try:
        of_a, of_b = ({} if step is None else shares_right(of_run[step]) for of_run in files)
        both = [(uid, share, of_b[uid]) for uid, share in of_a.items() if uid in of_b]
    except R3Error as error:
        fault = str(error)
    flipped = [(uid, here, there) for uid, here, there in both if (here > 0.5) != (there > 0.5)]
    return {
        "names": [a.name, b.name],
        "differences": differences_between(*settings) if len(settings) == 2 else None,
        "step": step,
        "fault": fault,
        "both": len(both),
        "flipped": sorted(flipped, key=lambda one: -abs(one[2] - one[1])),
    }


def compare_page(
    library: Library, names: Sequence[str] | None = None, reference: str = ""
) -> str:
    """Render the table of `r3 compare --unfinished`. names: None: all runs. reference: "": grpo."""
    runs = [library.run(name) for name in names] if names else list(library.runs.values())
    comparison, faults = comparison_of(runs, reference)
    return render(
        "compare.html",
        runs=runs,
        comparison=comparison,
        better=sentences(comparison, faults) if len(runs) > 1 else [],
        faults=faults,
        rows=table_rows(comparison) if comparison else [],
        first=FIRST,
        reading=reading(comparison) if comparison else [],
    )


def comparison_of(
    runs: Sequence[RunReader], reference: str = ""
) -> tuple[Comparison | None, list[str]]:
    """Return the comparison of the runs that can be compared, and sentences about the others."""
    read, faults = [], []
    for run in runs:
        try:
            read.append(read_run(run.path, unfinished=True))
        except R3Error as error:  # it has just begun, or is damaged
            faults.append(str(error))
    arms = sorted({run.arm for run in read})
    try:
        default = DEFAULT_REFERENCE if DEFAULT_REFERENCE in arms else next(iter(arms), "")
        return compare(read, reference=reference or default) if read else None, faults
    except R3Error as error:
        return None, [*faults, str(error)]
