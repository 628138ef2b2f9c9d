"""The turns of a stored trajectory: their prompts as one array, everything else as JSON.

The row of a trajectory in `rollouts` has the responses of all turns, joined, and the prompt of the
first."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history.codec import Codec, digest
from r3_openrlhf.method.types import PlayedTurn, Rollout


class _Turn(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    prompt_tokens: int
    num_tokens: int
    state: str
    observation: str
    action: str
    reward: float
    valid: bool
    truncated: bool


_FIELDS = _Turn.__struct_fields__[1:]  # those of a PlayedTurn too


@dataclass(frozen=True, slots=True)
class TurnsDraft:
    """The turns of one trajectory, to be written."""

    prompt_ids: np.ndarray  # int32, of all turns
    turns: list[list[Any]]  # of each what _Turn has

    @property
    def digest(self) -> bytes:
        """blake2b-128 that is equal for equal turns of two trajectories."""
        return digest(self.prompt_ids.tobytes(), json.dumps(self.turns, separators=(",", ":")).encode())


def draft_turns(rollout: Rollout) -> TurnsDraft | None:
    """None without a trajectory."""
    if rollout.turns is None:
        return None
    turns = [[len(turn.prompt_ids), *(getattr(turn, name) for name in _FIELDS)] for turn in rollout.turns]
    return TurnsDraft(np.concatenate([turn.prompt_ids for turn in rollout.turns]), turns)


def read_turns(connection: sqlite3.Connection, codec: Codec, row: int) -> tuple[PlayedTurn, ...] | None:
    """The turns of a row; None: it is no trajectory. Raises HistoryError if they cannot be read."""
    found = connection.execute(
        "SELECT num_tokens, prompts, turns FROM trajectories WHERE rollout = ?", (row,)
    ).fetchone()
    if found is None:
        return None
    num_tokens, prompts, packed = found
    prompt_ids = codec.unpack(prompts, np.int32, length=num_tokens)
    try:
        turns = msgspec.convert(codec.unpack_json(packed)["turns"], list[_Turn], strict=True)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise HistoryError(f"the turns of a stored trajectory are damaged: {error}") from error
    lengths = [turn.prompt_tokens for turn in turns]
    if sum(lengths) != num_tokens or min(lengths, default=0) < 0:
        raise HistoryError(f"the turns of a stored trajectory have prompts of {lengths} tokens in {num_tokens}")
    return tuple(
        PlayedTurn(prompt_ids=ids, **{name: getattr(turn, name) for name in _FIELDS})
        for ids, turn in zip(np.split(prompt_ids, np.cumsum(lengths)[:-1]), turns, strict=True)
    )
