"""The directory of one run: what is where, and how lines get there so that a crash never costs more
than one.

config.yaml, code_state.txt, metrics.jsonl, evaluations.jsonl, rollouts/, events.jsonl,
history.sqlite, train.log, data/, tensorboard/, checkpoints/, final_model/."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import math
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import config_from_yaml, config_to_yaml, flatten, settings_of
from r3_openrlhf.method.errors import ConfigError, R3Error, quoted, without_secrets
from r3_openrlhf.method.open_table import looking_only
from r3_openrlhf.runs import checkpoint_record, rollout_files
from r3_openrlhf.runs.commit import FILE, PACKAGE, commit_of, git
from r3_openrlhf.runs.files import (
    EvaluationLine,
    MetricsLine,
    check_line,
    no_link,
    not_ours,
    read_lines,
    read_text,
    replacing,
)

logger = logging.getLogger(__name__)
_TABLE = tomllib.loads(Path(__file__).with_name("directory.toml").read_text(encoding="utf-8"))
MAY_CHANGE, PACKAGES = tuple(_TABLE["may_change"]), _TABLE["packages"]
MOST_HELD_OUT = 256  # responses of one evaluation that are kept


class RunDirectory:
    """Paths are absolute. Nothing is created before `create`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.expanduser(path)).absolute()
        self.config = self.path / "config.yaml"
        self.code_state = self.path / "code_state.txt"
        self.model_commit = self.path / "model_commit.txt"  # of a model of the hub
        self.changes = self.path / "changes.jsonl"  # keys that differ from an earlier start's
        self.metrics = self.path / "metrics.jsonl"
        self.evaluations = self.path / "evaluations.jsonl"
        self.rollouts = self.path / "rollouts"  # one file per step: runs/rollout_files.py
        self.events = self.path / "events.jsonl"  # when each phase began, over all starts
        self.history = self.path / "history.sqlite"
        self.log = self.path / "train.log"
        self.data = self.path / "data" / "problems.jsonl"
        self.held_out = self.path / "data" / "held_out.jsonl"
        # one file per evaluation, as in rollouts/
        self.held_out_rollouts = self.path / "held_out"
        self.first_page = self.path / "first_page.json"  # what was said before it started
        self.data_counts = self.path / "data" / "counts.json"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.final_model = self.path / "final_model"
        self.cluster = self.path / "cluster"  # job script, log and records, before the run
        self.stop_request = self.path / "stop_request"  # runs/stop_request.py
        self.error = self.path / "error.txt"  # the sentence with which the last start failed
        self.lock = self.path / "run.lock"  # who trains here: runs/lock.py
        # the configuration with which the run ended
        self.finished = self.path / "finished.yaml"

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Open an existing run. Raises R3Error when there is none."""
        run = cls(path)
        if not run.config.is_file():
            raise R3Error(f"{path} is not a run directory: it has no config.yaml")
        return run

    @property
    def has_steps(self) -> bool:
        """True if a step is finished. A checkpoint proves it, also without metrics.jsonl."""
        written = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return self.config.is_file() and (
            written or checkpoint_record.newest(self.checkpoints) is not None
        )

    def check(self, config: R3Config) -> None:
        """Check that `create` may be called. Writes nothing.

        Raises ConfigError when the directory holds a run with other settings (the differing keys
        are named), or files that are not a run's.
        """
        self.check_place()
        if "runtime_resources" in self.path.parts:
            raise ConfigError(
                f"run_dir {self.path} is in a folder that Ray unpacked for this job and deletes after it; use an absolute "
                "run_dir on storage that the nodes share"
            )
        if self.has_steps:
            self._changes(config)
        elif (
            not self.config.is_file()
            and self.path.is_dir()
            and any(p not in (self.cluster, self.lock, self.error) for p in self.path.iterdir())
        ):
            raise ConfigError(
                f"run_dir {self.path} holds files but no run; choose another directory, or empty this one"
            )

    def make(self) -> None:
        """Make the directory, for its owner alone; one that is there keeps its rights. OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def create(self, config: R3Config) -> None:
        """Start a run here, or continue with the one that is here. One that has not finished a step
        may be started anew.

        Raises ConfigError as `check` does, and when the directory cannot be written."""
        self.check(config)
        changes = self._changes(config) if self.has_steps else []
        if self.config.is_file() and not self.has_steps:
            # perhaps of another model
            for file in (
                self.data,
                self.changes,
                self.held_out,
                self.evaluations,
                self.model_commit,
            ):
                file.unlink(missing_ok=True)
            rollout_files.forget_after(self.held_out_rollouts, -1)
        try:
            self.make()
            for directory in (self.data.parent, self.tensorboard, self.checkpoints):
                directory.mkdir(parents=True, exist_ok=True)
            self.finished.unlink(missing_ok=True)
            if changes:
                _append_lines(self.changes, json.loads(without_secrets(json.dumps(changes))))
            write_whole(self.config, config_to_yaml(config))
            state = describe_code()
            before = read_text(self.code_state) if self.code_state.is_file() else ""
            if not before.endswith(state):
                write_whole(self.code_state, before + state)
        except OSError as error:
            raise ConfigError(
                f"run_dir {self.path} cannot be written: {error.strerror}"
            ) from error

    def check_place(self) -> None:
        """Raise ConfigError where no run can be: a part of the path is a file or not writable, or in
        the directory are links or files of others. The directory itself may be a link."""
        place = next(path for path in (self.path, *self.path.parents) if os.path.lexists(path))
        try:  # permissions do not tell of places such as /proc, least of all root
            trial = tempfile.mkdtemp(prefix=".r3-", dir=place)
            uid = os.lstat(trial).st_uid  # which a server may have mapped
            os.rmdir(trial)
        except OSError as error:
            raise ConfigError(
                f"run_dir {self.path} cannot be written: nothing can be made in {place} ({error.strerror}); choose another run_dir"
            ) from error
        if (why := not_ours(self.path, uid=uid)) is not None:
            raise ConfigError(
                f"run_dir {self.path} is not ours alone: {why}, and a run writes and deletes there; choose another run_dir, or a "
                "copy (cp -rL)"
            )

    def mark_finished(self) -> None:
        """Training came to its end with the configuration that is here."""
        write_whole(self.finished, read_text(self.config))

    def is_finished(self, config: R3Config) -> bool:
        """Return True if the same command would have nothing left to do."""
        if not self.finished.is_file():
            return False
        with looking_only():
            ended = config_from_yaml(
                read_text(self.finished), source=str(self.finished), lenient=True
            )
        return settings_of(ended) == settings_of(config)

    def load_config(self) -> R3Config:
        """Load and check the settings of config.yaml; code they name is not imported. Raises ConfigError."""
        with looking_only():
            config = config_from_yaml(
                read_text(self.config), source=str(self.config), lenient=True
            )
        if config.passed_over:
            _say_passed_over(self.config, tuple(config.passed_over))
        return config

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl; it is on disk when this returns. Needs "step".

        JSON has no NaN and no infinity: such a value is written as null, and its key is listed
        under "not_finite"."""
        bad = sorted(
            key
            for key, value in metrics.items()
            if isinstance(value, float) and not math.isfinite(value)
        )
        if bad:
            metrics = {**metrics, **dict.fromkeys(bad), "not_finite": bad}
        _append_lines(self.metrics, [metrics])

    def complete_metrics(self, counts: dict[str, float]) -> None:
        """Add `counts` to the last line of metrics.jsonl: they came after its step."""
        lines = self.read_metrics()
        lines[-1] |= {key: lines[-1][key] + value for key, value in counts.items()}
        _write_lines(self.metrics, lines)

    def write_rollouts(self, step: int, rollouts: Iterable[dict[str, Any]]) -> None:
        """Write a step's file in rollouts/, on disk at return (rollout_files.write_step)."""
        rollout_files.write_step(self.rollouts, step, rollouts)

    def write_held_out(self, step: int, rollouts: Sequence[dict[str, Any]]) -> None:
        """Write the first MOST_HELD_OUT responses of an evaluation, as write_rollouts does."""
        rollout_files.write_step(self.held_out_rollouts, step, rollouts[:MOST_HELD_OUT])

    def append_evaluation(self, evaluation: dict[str, Any]) -> None:
        """Append a line to evaluations.jsonl; it is on disk when this returns. Needs "step". ValueError: a
        value of another kind than readers take (files.EvaluationLine), NaN, infinity."""
        check_line(evaluation, EvaluationLine)
        _append_lines(self.evaluations, [evaluation])

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read the lines of metrics.jsonl, [] without the file. Raises R3Error for a damaged line."""
        return list(read_lines(self.metrics, MetricsLine))

    def read_evaluations(self) -> list[dict[str, Any]]:
        """Read the lines of evaluations.jsonl, [] without it. R3Error: a damaged line."""
        return list(read_lines(self.evaluations, EvaluationLine))

    def read_rollouts(
        self, *, step: int | None = None, uid_start: str = "", held_out: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Rollouts in the order of steps.

        Args:
            step: of this step alone; no other file is read.
            uid_start: of problems whose uid begins with it.
            held_out: the responses to held-out problems instead; `step` is that of the evaluation.

        Raises:
            R3Error: a file is damaged; raised when it is reached.
        """
        for number, file in rollout_files.steps_in(
            self.held_out_rollouts if held_out else self.rollouts
        ).items():
            if step in (None, number):
                yield from rollout_files.read_step(file, uid_start=uid_start)

    def roll_back(self, step: int) -> None:
        """Forget what is of a step after `step`, whose checkpoint the run continues from."""
        for folder in (self.rollouts, self.held_out_rollouts):
            rollout_files.forget_after(folder, step)
        for file in (self.metrics, self.evaluations):
            if file.is_file():
                _write_lines(file, (line for line in read_lines(file) if line["step"] <= step))

    def _changes(self, config: R3Config) -> list[dict[str, Any]]:
        """List the differences from the run that is here, after its last step, for changes.jsonl.
        Raises ConfigError when it would be another run."""
        before, now = (
            checkpoint_record.settings_of(self.load_config()),
            checkpoint_record.settings_of(config),
        )
        folder = checkpoint_record.newest(self.checkpoints)
        saved = checkpoint_record.read(folder) if folder is not None else None
        if saved is not None:  # its own settings; config.yaml may be another start's
            before |= {key: saved.settings[key] for key in now.keys() & saved.settings}
        # an earlier version wrote values where the user had typed ${oc.env:...}
        values = flatten(config)
        changed = sorted(key for key in now if before.get(key) not in (now[key], values[key]))
        differ = [key for key in changed if not key.startswith(MAY_CHANGE)]
        if differ:
            shown = ", ".join(
                f"{key} ({quoted(before.get(key), marks=False)} there, {quoted(now[key], marks=False)} now)"
                for key in differ[:5]
            )
            more = f" and {len(differ) - 5} more" if len(differ) > 5 else ""
            raise ConfigError(
                f"run_dir {self.path} holds a run with other settings: {shown}{more}; choose another run_dir, or use the same settings"
            )
        lines = self.read_metrics()
        step = lines[-1]["step"] if lines else 0
        return [
            {"step": step, "key": key, "before": before.get(key), "now": now[key]}
            for key in changed
        ]

    def newest_weights(self) -> Path:
        """Return the last step's model if the run has ended, else the newest checkpoint's."""
        if self.final_model.is_dir():
            return self.final_model
        copies = sorted(
            self.checkpoints.glob("global_step*_hf"),
            key=lambda path: int(re.sub(r"\D", "", path.name)),
        )
        return copies[-1] if copies else self.checkpoints / "global_stepN_hf"


@functools.cache
def _say_passed_over(file: Path, keys: tuple[str, ...]) -> None:
    """Once for a file, however often it is read."""
    logger.warning(
        "%s sets %s, which this version does not know; passed over",
        file,
        quoted(", ".join(keys)),
    )


def describe_code() -> str:
    """Return the commit, the diff to it in a git checkout, and the main packages' versions."""
    found = versions_of(PACKAGES)
    versions = [f"{package} {found.get(package, 'not installed')}" for package in PACKAGES]
    commit = commit_of(PACKAGE)
    source = "commit unknown: not a git checkout\n"
    if commit is not None:
        source = f"commit {commit}\n" + (
            (git(PACKAGE, "diff", "HEAD") or "") if not (PACKAGE / FILE).is_file() else ""
        )
    return "\n".join(["# code state", *versions, source])


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those of these packages that are installed, by name."""
    found = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    write_whole(path, (json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _append_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Append all lines, or none if one of them cannot be written."""
    encoded = []
    for line in lines:
        if "step" not in line:
            raise ValueError(f"a line of {path.name} needs a step, got the keys {sorted(line)}")
        encoded.append(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    with open(path, "ab+", opener=no_link) as file:
        _drop_torn_line(file)
        file.writelines(encoded)
        file.flush()
        os.fsync(file.fileno())


def _drop_torn_line(file: BinaryIO) -> None:
    """Drop a last line without its end: a process that was killed while writing leaves one."""
    size = file.seek(0, os.SEEK_END)
    position, tail = size, b""
    while position > 0 and b"\n" not in tail:
        position = max(0, position - 65536)
        file.seek(position)
        tail = file.read(min(65536, size - position))
        if position + len(tail) == size and tail.endswith(b"\n"):
            return
    file.truncate(position + tail.rfind(b"\n") + 1 if b"\n" in tail else 0)


def write_whole(path: Path, text: str | Iterable[str], *, mode: int = 0o666) -> None:
    """Write a file whole: it has the new content or the old one, whatever happens. mode: of a new
    file, less the umask; a text with the password of a URL is its owner's alone."""
    parts = [text] if isinstance(text, str) else text
    if isinstance(text, str) and without_secrets(text) != text:
        mode = 0o600
    with replacing(path, mode=mode) as stream:
        stream.writelines(part.encode() for part in parts)
