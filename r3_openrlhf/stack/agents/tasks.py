"""The tasks of an agentic run: seeds of its environment, as a file of prompts for OpenRLHF.

A turn's prompt is made where it is played (executor.py); the training file names the task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.problems.agents.environment import make_environment, task_uid
from r3_openrlhf.problems.training_file import Label, PreparedData, line_of, write_once
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.first_page import FirstPage, page_of_tasks

TASK = "environment"  # of a Label: no grader judges it


def check_environment(config: R3Config) -> None:
    """ConfigError: no such environment, a package it needs is missing, or bad agents.options."""
    make_environment(str(config.agents.environment), config.agents.options).close()


def prepare_tasks(config: R3Config, model: str, run: RunDirectory) -> tuple[PreparedData, FirstPage]:
    """Write the tasks that are trained on, and the held-out ones, whose seeds are the next ones.

    Raises:
        DataError: the run has begun with other tasks.
    """
    num_tasks, num_held_out = config.data.max_samples, config.held_out.max_samples
    assert num_tasks is not None  # R3Config
    _write(config, run.data, range(num_tasks))
    if num_held_out:
        _write(config, run.held_out, range(num_tasks, num_tasks + num_held_out))
    nothing = "num_dropped_overlong num_duplicates num_unusable"
    counts: dict[str, Any] = {"num_problems": num_tasks, **dict.fromkeys(nothing.split(), 0)}
    run.data_counts.write_text(json.dumps(counts) + "\n", encoding="utf-8")
    data = PreparedData(path=run.data, **counts)
    return data, page_of_tasks(config, model, data)


def _write(config: R3Config, output: Path, seeds: Iterable[int]) -> None:
    name = str(config.agents.environment)
    uids = [(seed, task_uid(name, seed)) for seed in seeds]
    labels = [Label(uid=uid, problem=uid, references=[], task=TASK, metadata={"seed": seed}) for seed, uid in uids]
    lines = [line_of(label, label.uid, name) for label in labels]
    write_once(output, lines, f"agents.environment {name}")
