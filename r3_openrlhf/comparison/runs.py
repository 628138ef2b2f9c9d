"""Run directories -> runs that may be compared. Meaningless comparisons are refused here."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from r3_openrlhf.comparison.intervals import Curve
from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import flatten
from r3_openrlhf.method.errors import R3Error, without_secrets
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.files import read_json, read_text

EVALUATION = "held_out"  # the lines of evaluations.jsonl with this name are compared
# What an accuracy depends on other than the training: it must be equal in all runs.
SAME_SETTINGS = (
    "data.",
    "model.path",
    "held_out.",
    "rollout.max_new_tokens",
    "rollout.temperature",
)
SAME_IN_EVALUATIONS = (
    "num_problems",
    "n_samples",
    "temperature",
    "max_new_tokens",
    "problems_sha256",
)
PROBLEMS = "problems_sha256"
DRAWN = ("data.reasoning_gym", "held_out.reasoning_gym")  # with `seed`: may be the run's own
MAY_DIFFER_WITHIN_ARM = ("train.seed", "run_dir", "arm")  # `arm` or `algo` is equal
SHOWN = 3  # differences in one message


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, as far as a comparison looks at it."""

    path: Path  # as it was named
    arm: str
    seed: int
    finished: bool
    settings: dict[str, Any]  # {"replay.k": 2, ...}
    evaluations: list[dict[str, Any]]  # by step, at least one
    metrics: list[dict[str, Any]]  # by step
    training_problems: str | None  # a hash; None: the run directory has no data/problems.jsonl
    code_state: str | None
    commits: dict[str, str]  # of data sets and the model of the hub, as they were resolved

    @property
    def by_tokens(self) -> Curve:
        """Held-out accuracy (pass@1) against tokens generated so far."""
        lines = self.evaluations
        return Curve(
            tuple(line["generated_tokens"] for line in lines),
            tuple(line["pass_at_1"] for line in lines),
        )


def find_runs(paths: Iterable[str | Path]) -> tuple[list[Path], list[Path]]:
    """Return (run directories, paths without one). A path is a run directory, or a directory that holds
    some at any depth.

    Raises R3Error for a path that does not exist, and when there is no run at all."""
    runs: dict[Path, Path] = {}  # the same directory may be named twice
    without = []
    for path in map(Path, paths):
        if not path.exists():
            raise R3Error(
                f"{path} does not exist; name run directories, or directories that hold some"
            )
        below = [folder for folder, is_run in directories_below(path) if is_run]
        for run in below:
            runs.setdefault(run.resolve(), run)
        if not below:
            without.append(path)
    if not runs:
        raise R3Error(
            f"there is no run in {', '.join(map(str, without))}; a run directory has a config.yaml"
        )
    return sorted(runs.values()), without


def directories_below(path: Path) -> Iterator[tuple[Path, bool]]:
    """Return (directory, is it a run?) of runs and evaluations at `path` or below. Below a run only its
    evaluations count."""
    for folder, folders, files in os.walk(path):
        folders.sort()
        if "config.yaml" in files:
            folders[:] = [name for name in folders if name == "evaluations"]
            yield Path(folder), True
        elif "samples.jsonl" in files and "settings.json" in files:
            folders.clear()
            yield Path(folder), False


def read_run(path: Path, *, unfinished: bool = False) -> Run:
    """Raise R3Error: not ended (unless `unfinished`), never evaluated, or in contradiction."""
    directory = RunDirectory.open(path)
    config = directory.load_config()
    finished = directory.finished.is_file()
    if not finished and not unfinished:
        raise R3Error(
            f"{path} has not finished; run its command again to continue, or add --unfinished to use it as it is"
        )
    evaluations = _by_step(
        line
        for line in directory.read_evaluations()
        if line.get("name", EVALUATION) == EVALUATION
    )
    if not evaluations:
        raise R3Error(
            f"{path} has no evaluations of held-out problems (evaluations.jsonl); train it with held_out.path=..."
        )
    metrics = _by_step(directory.read_metrics())
    _check_numbers(directory.evaluations, evaluations, ("generated_tokens", "pass_at_1"))
    _check_numbers(directory.metrics, metrics, ("generated_tokens_total",))
    first = evaluations[0]
    for line in evaluations[1:]:
        for key in SAME_IN_EVALUATIONS:
            if line.get(key) != first.get(key):
                raise R3Error(
                    f"{directory.evaluations} has {key} {first.get(key)} at step {first['step']} and {line.get(key)} at step "
                    f"{line['step']}; the evaluations of one run must be alike"
                )
    code_state = directory.code_state
    return Run(
        path=path,
        arm=arm_of(config),
        seed=config.train.seed,
        finished=finished,
        settings=settings_of(config),
        evaluations=evaluations,
        metrics=metrics,
        training_problems=hash_of_lines(directory.data) if directory.data.is_file() else None,
        code_state=read_text(code_state) if code_state.is_file() else None,
        commits=_commits_of(directory, config.model.path),
    )


def _commits_of(directory: RunDirectory, model: str) -> dict[str, str]:
    kept = [file.with_suffix(".commits.json") for file in (directory.data, directory.held_out)]
    found = {
        f"data set {name}": commit
        for file in kept
        if file.is_file()
        for name, commit in read_json(file, dict).items()
    }
    known = directory.model_commit.is_file()
    return found | (
        {f"model {model}": read_text(directory.model_commit).strip()} if known else {}
    )


def settings_of(config: R3Config) -> dict[str, Any]:
    """{"replay.k": 2, ...}, without passwords."""
    return json.loads(without_secrets(json.dumps(flatten(config))))


def arm_of(config: R3Config) -> str:
    """Return the arm of a run: runs of one arm differ in their seed only."""
    return config.arm or config.algorithm_name


def _by_step(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort the lines by step; a step that was repeated after a resume counts as it was the last time."""
    latest = {line["step"]: line for line in lines}
    return [latest[step] for step in sorted(latest)]


def _check_numbers(file: Path, lines: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    """Check that every line has these keys, and that the first, a count of tokens, grows."""
    for line in lines:
        for key in keys:
            if not isinstance(line.get(key), (int, float)):
                raise R3Error(f"{file}, step {line['step']} has no number under {key}")
    for before, after in pairwise(lines):
        if after[keys[0]] <= before[keys[0]]:
            raise R3Error(
                f"{file} has {keys[0]} {before[keys[0]]} at step {before['step']} and {after[keys[0]]} at step "
                f"{after['step']}; every step samples something, so the count must grow"
            )


def check_comparable(runs: Sequence[Run]) -> None:
    """Raise R3Error, in one sentence that says in what they differ, for runs whose data, model or
    evaluation are not the same, a seed twice in one arm, and runs of one arm that differ in more
    than the seed.

    Where the problems are drawn with the run's seed (data.reasoning_gym.seed=${train.seed}), runs
    of one seed must have the same ones."""
    runs = sorted(runs, key=lambda run: (run.arm, run.seed, str(run.path)))
    anew = all((run.settings.get(DRAWN[0]) or {}).get("seed") == run.seed for run in runs)
    alike = (
        [[run for run in runs if run.seed == seed] for seed in {run.seed for run in runs}]
        if anew
        else [runs]
    )
    for some, seeds_differ in [(runs, anew), *((group, False) for group in alike)]:
        _check_data(some, seeds_differ=seeds_differ)
    for before, run in pairwise(runs):
        if before.arm != run.arm:
            continue
        if before.seed == run.seed:
            raise R3Error(
                f"{before.path} and {run.path} are both seed {run.seed} of arm {run.arm}; leave one of them out"
            )
        differences = [
            difference
            for difference in differences_between(before.settings, run.settings)
            if difference[0] not in (*MAY_DIFFER_WITHIN_ARM, *(DRAWN if anew else ()))
        ]
        if differences:
            raise R3Error(
                f"{before.path} and {run.path} are both of arm {run.arm} but differ in more than the seed: "
                f"{_named(differences)}; an arm of its own is named with arm=NAME"
            )


def _check_data(runs: Sequence[Run], *, seeds_differ: bool) -> None:
    for run in runs[1:]:
        here, there = (
            _must_be_same(each, without_seed=seeds_differ) for each in (runs[0], run)
        )
        if differences := differences_between(here, there):
            raise R3Error(
                f"{runs[0].path} and {run.path} cannot be compared, their data, model or evaluation differ: "
                f"{_named(differences)}"
            )
    with_problems = [run for run in runs if run.training_problems and not seeds_differ]
    for before, run in pairwise(with_problems):
        if before.training_problems != run.training_problems:
            raise R3Error(
                f"{before.path} and {run.path} cannot be compared, their data differ: data/problems.jsonl holds other "
                "problems or prompts in one than in the other"
            )


def settings_that_differ(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """{key: {arm: value}} of every key in which arms differ, their seeds and directories apart."""
    arms = {run.arm: run.settings for run in sorted(runs, key=lambda run: run.arm)}
    return {
        key: of
        for key, of in values_that_differ(arms).items()
        if key not in MAY_DIFFER_WITHIN_ARM
    }


def values_that_differ(settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """{name: {key: value}} -> {key: {name: value}} of the keys whose values are not all the same."""
    keys = sorted({key for one in settings.values() for key in one})
    values = {key: {name: one.get(key) for name, one in settings.items()} for key in keys}
    return {key: of for key, of in values.items() if len(set(map(repr, of.values()))) > 1}


def _must_be_same(run: Run, *, without_seed: bool) -> dict[str, Any]:
    settings = {
        key: value for key, value in run.settings.items() if key.startswith(SAME_SETTINGS)
    }
    evaluation = {
        f"{key} in evaluations.jsonl": run.evaluations[0].get(key)
        for key in SAME_IN_EVALUATIONS
    }
    if without_seed:
        drawn = {key: {**(settings.get(key) or {}), "seed": None} for key in DRAWN}
        return settings | drawn | evaluation | {f"{PROBLEMS} in evaluations.jsonl": None}
    return settings | evaluation


def differences_between(
    left: dict[str, Any], right: dict[str, Any]
) -> list[tuple[str, Any, Any]]:
    """(key, here, there)"""
    keys = sorted(left.keys() | right.keys())
    return [
        (key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)
    ]


def _named(differences: list[tuple[str, Any, Any]]) -> str:
    shown = ", ".join(
        f"{key} is {here} in the first and {there} in the second"
        for key, here, there in differences[:SHOWN]
    )
    more = len(differences) - SHOWN
    return shown + (f", and {more} more" if more > 0 else "")


def hash_of_lines(file: Path) -> str:
    """Return the same hash for the same lines in any order."""
    return hashlib.sha256(b"\n".join(sorted(file.read_bytes().splitlines()))).hexdigest()
