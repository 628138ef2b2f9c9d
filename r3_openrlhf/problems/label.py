"""The record that travels with a problem from its source to the grader."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes one each call


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A problem as the rollout executor needs it."""

    uid: str  # stable over epochs and runs: data.uid_key, else a hash of the problem text
    problem: str  # the bare problem, before any template; of messages the last turn of the user
    references: list[str]  # accepted final answers; none: a scorer knows
    task: str  # which grader: math | exact | reasoning_gym
    metadata: dict[str, Any] | None = None  # the reasoning-gym entry, for its own scorer
    turns: list[dict[str, str]] | None = None  # messages before it: role, content
    source: str | None = None  # its name in data.sources
    row: dict[str, Any] | None = None  # every column, for a reward function of the user
    prefix: list[int] | None = None  # first token ids (exploration.rrl); never in the file

    def to_json(self) -> str:
        """One JSON object: the label column of the training file."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return _encode(
            {
                name: value
                for name, value in values.items()
                if value is not None or name == "metadata"
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Label:
        """Inverse of to_json."""
        return cls(**json.loads(text))
