"""Weights & Biases as one run over all starts, and the trackers of logging.tracker."""

import importlib
import importlib.util
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError, quoted, without_secrets
from r3_openrlhf.method.open_table import OpenTable, check_signature
from r3_openrlhf.runs.checkpoint_record import settings_of
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.problem_files import Problem
from r3_openrlhf.runs.step_groups import grouped

COLUMNS = (
    *(
        "step",
        "uid",
        "problem",
        "reference",
        "context",
        "recalled_from",
        "text",
        "answer",
        "verdict",
        "reason",
    ),
    *("reward", "advantage", "truncated"),
)
MOST_ROWS, ROWS_OF_GROUP = 64, 4  # of a step: a table is sent whole
MOST_CHARS = 4000  # of a response, its end; rollouts/ has all of them


def name_wandb_run(config: R3Config, run: RunDirectory) -> None:
    """Set what OpenRLHF's WandbLogger (utils/logging_utils.py:70) leaves to the environment: the id,
    which all starts share, the arm as group, algorithm, parts and seed as tags. What is set stays."""
    file = run.path / "wandb_id"
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    parts = [
        name
        for name in ("replay", "reflection", "ranking", "distill")
        if getattr(config, name).enabled
    ]
    tags = ",".join([f"algo={config.algorithm_name}", f"seed={config.train.seed}", *parts])
    group = config.arm or config.algorithm_name
    names = {"RUN_ID": file.read_text(), "RESUME": "allow", "RUN_GROUP": group, "TAGS": tags}
    for name, value in names.items():
        os.environ.setdefault(f"WANDB_{name}", value)


def describe_wandb_run(wandb: ModuleType, config: R3Config) -> None:
    """Add the run's settings as `config.r3`, and draw evaluations over their step: OpenRLHF (:80)
    names eval/epoch, which nothing logs."""
    wandb.config.update({"r3": _shared_settings(config)}, allow_val_change=True)
    wandb.define_metric("eval/*", step_metric="eval/global_step", step_sync=True)


# numbers of a step or an evaluation, by the key under which they are drawn
Track = Callable[[int, Mapping[str, Any]], object]


@dataclass(frozen=True, slots=True)
class Tracker:
    """One value of logging.tracker.

    Attributes:
        start: (settings, run directory) -> the function that is called after each step and evaluation.
        package: what has to be installed for it; None: nothing.
        function: that function itself, of a user."""

    start: Callable[[R3Config, RunDirectory], Track] | None = None
    package: str | None = None
    function: Track | None = None


def _begin_mlflow(config: R3Config, run: RunDirectory) -> Track:
    """Begin, or go on with, a run of MLflow in the experiment of the run directory's parent.

    Where it is kept is MLflow's own MLFLOW_TRACKING_URI."""
    mlflow = importlib.import_module("mlflow")

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", run.path.parent.name)
    mlflow.set_experiment(name)
    file = run.path / "mlflow_id"
    known = file.read_text() if file.exists() else None
    mlflow.start_run(run_id=known, run_name=None if known else run.path.name)
    if known is None:
        file.write_text(mlflow.active_run().info.run_id)
        mlflow.set_tags({"arm": config.arm or config.algorithm_name, "seed": config.train.seed})
        mlflow.log_dict(_shared_settings(config), "r3.json")

    def track(step: int, numbers: Mapping[str, Any]) -> None:
        mlflow.log_metrics(numeric(numbers), step=step)

    return track


def _begin_trackio(config: R3Config, run: RunDirectory) -> Track:
    """Begin, or go on with, a run of trackio in the project of the run directory's parent."""
    trackio = importlib.import_module("trackio")

    trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", run.path.parent.name),
        name=run.path.name,
        group=config.arm or config.algorithm_name,
        config=_shared_settings(config),
        resume="allow",
    )

    def track(step: int, numbers: Mapping[str, Any]) -> None:
        trackio.log(numeric(numbers), step=step)

    return track


def numeric(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Leave out what is no number: these trackers refuse a text among them."""
    return {
        key: float(value)
        for key, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _shared_settings(config: R3Config) -> dict[str, Any]:
    """Return the run's settings without keys of services."""
    return json.loads(without_secrets(json.dumps(settings_of(config))))


def _tracker_of_user(path: str, function: Track) -> Tracker:
    """ConfigError: it is no function, or takes no (step, numbers)."""
    check_signature("logging.tracker", path, function, 1, {})
    return Tracker(function=function)


TRACKERS: OpenTable[Tracker] = OpenTable(
    "logging.tracker",
    {
        "mlflow": Tracker(_begin_mlflow, package="mlflow"),
        "trackio": Tracker(_begin_trackio, package="trackio"),
    },
    of_user=_tracker_of_user,
)


def check_tracker(config: R3Config) -> None:
    """ConfigError: logging.tracker does not exist, or its package is not installed."""
    name = config.logging.tracker
    if name is None:
        return
    package = TRACKERS[name].package
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"logging.tracker is {quoted(name)}, which needs {package}, and it is not installed: pip install {package}"
        )


def user_tracker(
    config: R3Config, run: RunDirectory
) -> Callable[[str, int, Mapping[str, Any]], str | None]:
    """Start what logging.tracker names. ConfigError: as `check_tracker`.

    Returns (kind, step, numbers) -> a sentence where it fails: a server that is down ends no run,
    whose own files have all numbers."""
    check_tracker(config)
    name = config.logging.tracker
    if name is None:
        return lambda *_: None
    tracker = TRACKERS[name]
    begun = [] if tracker.function is None else [tracker.function]

    def track(kind: str, step: int, numbers: Mapping[str, Any]) -> str | None:
        known = {f"{kind}/{key}": value for key, value in numbers.items() if value is not None}
        try:
            if not begun and tracker.start is not None:
                begun.append(tracker.start(config, run))
            begun[0](step, known)
        except Exception as error:
            return f"logging.tracker failed at step {step}, and is called again: {type(error).__name__}: {error}"
        return None

    return track


def log_completions(
    wandb: ModuleType,
    records: Sequence[dict[str, Any]],
    problems: Mapping[str, Problem],
    *,
    step: int,
) -> None:
    """Log `train/completions`: ROWS_OF_GROUP responses each of groups from all over the step.

    Args:
        wandb: the module, with a run that has begun.
        records: rows of rollouts/ (rollout_records.py).
        problems: by uid, for the columns `problem` and `reference`.
    """
    groups = _spread(list(grouped(records).values()), MOST_ROWS // ROWS_OF_GROUP)
    rows = []
    for record in (record for group in groups for record in _spread(group, ROWS_OF_GROUP)):
        problem = problems.get(record["uid"])
        row = record | {"step": step, "text": record["text"] and record["text"][-MOST_CHARS:]}
        if problem is not None:
            row |= {
                "problem": problem.label.problem,
                "reference": "; ".join(problem.label.references),
            }
        rows.append([row.get(name) for name in COLUMNS])
    wandb.log(
        {
            "train/completions": wandb.Table(columns=list(COLUMNS), data=rows),
            "train/global_step": step,
        }
    )


def _spread(values: Sequence[Any], most: int) -> list[Any]:
    """Choose `most` of the values at equal distances, the first among them; all, if there are fewer."""
    return (
        [values[place * len(values) // most] for place in range(most)]
        if len(values) > most
        else list(values)
    )
