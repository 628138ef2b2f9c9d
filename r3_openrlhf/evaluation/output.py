"""The directory of one evaluation: settings, samples, results, the plots, eval.log."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from r3_openrlhf.evaluation.sample_file import SampleFile
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.directory import write_whole
from r3_openrlhf.runs.files import no_link, not_ours


class EvaluationDirectory:
    """Paths. Nothing is created before `start`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        self.settings = self.path / "settings.json"
        self.samples = self.path / "samples.jsonl"
        self.results = self.path / "results.json"
        self.table = self.path / "results.md"
        self.log = self.path / "eval.log"

    @classmethod
    def open(cls, path: str | Path) -> EvaluationDirectory:
        """An evaluation that is there. Raises ConfigError when there is none."""
        directory = cls(path)
        if not directory.samples.is_file():
            raise ConfigError(f"{path} holds no evaluation: it has no samples.jsonl")
        return directory

    def first_date(self) -> str | None:
        """The day that its chat template wrote, where the evaluation was begun already."""
        try:
            return json.loads(self.settings.read_text(encoding="utf-8")).get("data.template_date")
        except (OSError, ValueError, AttributeError):
            return None

    @contextmanager
    def start(self, settings: dict[str, Any]) -> Iterator[SampleFile]:
        """Begin here, or continue; a lock keeps other processes out.

        Raises ConfigError when it was sampled with other settings (the differing ones are named),
        when the directory holds other files, cannot be written, or is being written by another
        process."""
        if (why := not_ours(self.path, uid=os.geteuid())) is not None:
            raise ConfigError(f"--output {self.path} is not ours alone: {why}; choose another --output")
        if self.settings.is_file():
            self._check_same(settings)
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise ConfigError(f"--output {self.path} holds files but no evaluation; choose another directory")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.settings, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
            self.samples.touch()
            lock = open(self.log, "ab", opener=no_link)  # no other file here is never replaced
        except OSError as error:
            raise ConfigError(f"--output {self.path} cannot be written: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"--output {self.path} is being written by another r3 eval; wait for its end"
                ) from error
            file = SampleFile(self.samples)
            file.drop_torn_line()
            yield file

    def _check_same(self, settings: dict[str, Any]) -> None:
        try:
            before = json.loads(self.settings.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{self.settings} is not JSON: {error}") from error
        differ = sorted(key for key in settings.keys() | before.keys() if settings.get(key) != before.get(key))
        if differ:
            shown = ", ".join(f"{key} ({before.get(key)} there, {settings.get(key)} now)" for key in differ)
            raise ConfigError(
                f"--output {self.path} holds an evaluation with other settings: {shown}; choose another --output, or use "
                "the same settings"
            )
