"""A run as data frames, for a notebook. Nothing is written; no code of settings is imported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from r3_openrlhf.comparison import arms
from r3_openrlhf.comparison.runs import find_runs, read_run
from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs import effect
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.files import ProblemLine, read_lines

FIRST = ("step", "fresh/reward", "fresh/accuracy", "pass_at_1", "pass_at_n")


class Run:
    """One run directory.

        run = Run("runs/quickstart")
        run.metrics["fresh/reward"].plot()
        run.rollouts(step=8).query("verdict == 'wrong'").text

    Args:
        path: the directory, which may belong to a run that is still training.

    Raises:
        R3Error: the directory holds no run; here and in every attribute, a file that no run has
            written."""

    def __init__(self, path: str | Path) -> None:
        self.directory = RunDirectory.open(path)

    @classmethod
    def below(cls, *paths: str | Path) -> list[Run]:
        """Find the runs in these directories, at any depth: `Run.below("runs/")`. R3Error: there is none."""
        return [cls(path) for path in find_runs(paths)[0]]

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def config(self) -> R3Config:
        """The settings in config.yaml."""
        return self.directory.load_config()

    @property
    def metrics(self) -> pd.DataFrame:
        """metrics.jsonl: a row per step, indexed by `step`, a column per key (docs/metrics.md)."""
        return _by_step(self.directory.read_metrics())

    @property
    def evaluations(self) -> pd.DataFrame:
        """evaluations.jsonl: one row per evaluation of held-out problems, indexed by `step`."""
        return _by_step(self.directory.read_evaluations())

    @property
    def problems(self) -> pd.DataFrame:
        """The training problems, by `uid`: `problem`, `references` (a list), and more columns."""
        return _problems_in(self.directory.data)

    def rollouts(
        self, step: int | None = None, uid: str = "", *, held_out: bool = False
    ) -> pd.DataFrame:
        """Rollouts with their problem: the columns of runs/rollout_files.py, `problem` and
        `references`.

        Args:
            step: of this step; default: of all, which is gigabytes for a long run.
            uid: of the problems whose uid begins with it.
            held_out: kept responses to held-out problems instead; `step` is the evaluation's.

        Raises:
            R3Error: there are none."""
        rows = _frame(self.directory.read_rollouts(step=step, uid_start=uid, held_out=held_out))
        if rows.empty:
            where = "" if step is None else f" of step {step}"
            kind = "held-out rollouts" if held_out else "rollouts"
            raise R3Error(
                f"{self.path} has no {kind}{where}{' of problem ' + uid if uid else ''}"
            )
        problems = _problems_in(self.directory.held_out) if held_out else self.problems
        return rows.join(problems[["problem", "references"]], on="uid")

    def effect(self) -> effect.Effect:
        """Measure the mechanisms (`r3 show RUN --effect`)."""
        return effect.effect_of(self.directory)

    @property
    def effects(self) -> pd.DataFrame:
        """`effect` by step: groups, repairs, shares of the update (runs/effect.py, Totals)."""
        return _by_step([asdict(one) for one in self.effect().steps])

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def compare(
    runs: Sequence[Run | str | Path],
    *,
    reference: str | None = None,
    target: float | None = None,
    unfinished: bool = False,
) -> pd.DataFrame:
    """`r3 compare` as a data frame: one row per arm, the reference first.

    Args:
        runs: runs, or directories that hold some.
        reference: an arm; default: grpo, or the only one.
        target: held-out accuracy that the arms are to reach.
        unfinished: take runs that have not ended as far as they are.

    Returns:
        For each quantity of `r3 compare` its mean over seeds, and `QUANTITY_less_reference` with
        `_low` and `_high`: the paired difference to the reference and its 95% interval. NaN: not
        measured, or too few seeds.

    Raises:
        R3Error: runs that cannot be compared."""
    paths, _ = find_runs([run.path if isinstance(run, Run) else run for run in runs])
    read = [read_run(path, unfinished=unfinished) for path in paths]
    found = arms.compare(read, reference=reference, target=target)
    rows = []
    for arm in found.arms:
        row: dict[str, Any] = {"arm": arm.name, "seeds": len(arm.runs)}
        row |= {
            quantity: mean.mean for quantity, mean in arm.estimates.items() if mean is not None
        }
        for quantity, less in arm.differences.items():
            if less is not None:
                name = f"{quantity}_less_reference"
                row |= {name: less.mean, f"{name}_low": less.low, f"{name}_high": less.high}
        rows.append(row)
    return _frame(rows).set_index("arm")


def _problems_in(file: Path) -> pd.DataFrame:
    labels = [json.loads(line["label"]) for line in read_lines(file, ProblemLine)]
    return pd.DataFrame(
        labels, columns=None if labels else ["uid", "problem", "references"]
    ).set_index("uid")


def _by_step(lines: list[dict[str, Any]]) -> pd.DataFrame:
    return (_frame(lines) if lines else pd.DataFrame(columns=["step"])).set_index("step")


def _frame(lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Order the columns with FIRST before the others; None becomes NaN where a column has no text."""
    frame = pd.DataFrame(lines)
    for name in [name for name in frame if frame[name].dtype.kind == "O"]:
        if not frame[name].map(lambda value: isinstance(value, str | list | dict)).any():
            frame[name] = frame[name].astype(float)
    known = [name for name in FIRST if name in frame]
    return frame[[*known, *(name for name in frame if name not in known)]]
