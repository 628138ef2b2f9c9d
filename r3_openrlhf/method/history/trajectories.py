"""The turns of a stored trajectory: their prompts as one array, everything else as JSON.

The row of a trajectory in `rollouts` has the responses of all turns, joined, and the prompt of the
first."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class TurnsDraft:
    """The turns of one trajectory, to be written."""

    prompt_ids: np.ndarray  # int32, of all turns
    turns: list[list[Any]]  # of each what _Turn has

    @property
    def digest(self) -> bytes:
        """Digest that is equal for equal turns of two trajectories."""
        return turns_digest(self.prompt_ids, self.turns)


def turns_digest(prompt_ids: np.ndarray, turns: Sequence[Sequence[Any]]) -> bytes:
    """blake2b-128 of what `unpack_turns` finds."""
    return digest(prompt_ids.tobytes(), json.dumps(turns, separators=(",", ":")).encode())


def draft_turns(rollout: Rollout) -> TurnsDraft | None:
    """None without a trajectory."""
    if rollout.turns is None:
        return None
    turns: list[list[Any]] = []
    for turn in rollout.turns:
        numbers = len(turn.prompt_ids), turn.num_tokens
        texts = turn.state, turn.observation, turn.action
        turns.append([*numbers, *texts, turn.reward, turn.valid, turn.truncated])
    return TurnsDraft(np.concatenate([turn.prompt_ids for turn in rollout.turns]), turns)


def read_turns(connection: sqlite3.Connection, codec: Codec, row: int) -> tuple[PlayedTurn, ...] | None:
    """The turns of a row; None: it is no trajectory. Raises HistoryError if they cannot be read."""
    found = connection.execute(
        "SELECT num_tokens, prompts, turns FROM trajectories WHERE rollout = ?", (row,)
    ).fetchone()
    if found is None:
        return None
    prompt_ids, turns = unpack_turns(codec, *found)
    ends = np.cumsum([turn[0] for turn in turns])[:-1]
    return tuple(
        PlayedTurn(prompt_ids=of_turn, **dict(zip(_Turn.__struct_fields__[1:], turn[1:], strict=True)))
        for of_turn, turn in zip(np.split(prompt_ids, ends), turns, strict=True)
    )


def unpack_turns(codec: Codec, num_tokens: int, prompts: bytes, turns: bytes) -> tuple[np.ndarray, list[list[Any]]]:
    """(ids of all prompts, the fields of each turn). Raises HistoryError."""
    prompt_ids = codec.unpack(prompts, np.int32, length=num_tokens)
    try:
        found = codec.unpack_json(turns)
        checked = msgspec.convert(found["turns"], list[_Turn], strict=True)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise HistoryError(f"the turns of a stored trajectory are damaged: {error}") from error
    lengths = [turn.prompt_tokens for turn in checked]
    if sum(lengths) != num_tokens or min(lengths, default=0) < 0:
        raise HistoryError(f"the turns of a stored trajectory have prompts of {lengths} tokens in {num_tokens}")
    return prompt_ids, found["turns"]
