"""The turns of a stored trajectory: their prompts as one array, everything else as JSON.

The row of a trajectory in `rollouts` has the responses of all turns, one behind the other, and the prompt of the first.
"""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history.codec import Codec, digest, token_array
from r3_openrlhf.types import PlayedTurn, Rollout


class _Turn(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    prompt_tokens: int
    tokens: int
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
        """What makes the turns of two trajectories the same."""
        return turns_digest(self.prompt_ids, self.turns)


def turns_digest(prompt_ids: np.ndarray, turns: Sequence[Sequence[Any]]) -> bytes:
    """blake2b-128 of what `read_turns` finds."""
    return digest(prompt_ids.tobytes(), json.dumps(turns, separators=(",", ":")).encode())


def draft_turns(rollout: Rollout) -> TurnsDraft | None:
    """None for a rollout that is no trajectory. Raises HistoryError for turns that the store could not give back."""
    if rollout.turns is None:
        return None
    name = f"a trajectory of task '{rollout.uid}'"
    if not rollout.turns or sum(turn.num_tokens for turn in rollout.turns) != len(rollout.response_ids):
        raise HistoryError(
            f"{name} has {len(rollout.turns)} turns of {sum(turn.num_tokens for turn in rollout.turns)} tokens, and "
            f"{len(rollout.response_ids)} response tokens"
        )
    found = []
    for turn in rollout.turns:
        if not math.isfinite(turn.reward) or turn.num_tokens < 0:
            raise HistoryError(f"{name} has a turn of {turn.num_tokens} tokens with the reward {turn.reward}")
        found.append(
            [
                len(turn.prompt_ids),
                int(turn.num_tokens),
                turn.state,
                turn.observation,
                turn.action,
                float(turn.reward),
                bool(turn.valid),
                bool(turn.truncated),
            ]
        )
    prompts = [token_array(turn.prompt_ids, name=f"prompt_ids of {name}") for turn in rollout.turns]
    return TurnsDraft(np.concatenate(prompts), found)


def write_turns(connection: sqlite3.Connection, row: int, draft: TurnsDraft, prompts: bytes, turns: bytes) -> None:
    """Beside the row with this id, inside the transaction that is open."""
    connection.execute(
        "INSERT INTO trajectories VALUES (?, ?, ?, ?, ?)", (row, draft.digest, len(draft.prompt_ids), prompts, turns)
    )


def has_trajectories(connection: sqlite3.Connection) -> bool:
    """Is the file of a schema that keeps the turns of trajectories?"""
    return connection.execute("PRAGMA user_version").fetchone()[0] >= 3


def read_turns(connection: sqlite3.Connection, codec: Codec, row: int) -> tuple[PlayedTurn, ...] | None:
    """Of a row; None: it is no trajectory. Raises HistoryError for what cannot be read."""
    if not has_trajectories(connection):
        return None
    found = connection.execute(
        "SELECT num_tokens, prompts, turns FROM trajectories WHERE rollout = ?", (row,)
    ).fetchone()
    return None if found is None else _turns(*unpack_turns(codec, *found))


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


def _turns(prompt_ids: np.ndarray, turns: Sequence[Sequence[Any]]) -> tuple[PlayedTurn, ...]:
    ends = list(itertools.accumulate((turn[0] for turn in turns), initial=0))
    return tuple(
        PlayedTurn(
            prompt_ids=prompt_ids[begin:end],
            num_tokens=tokens,
            state=state,
            observation=observation,
            action=action,
            reward=reward,
            valid=valid,
            truncated=truncated,
        )
        for begin, end, (_, tokens, state, observation, action, reward, valid, truncated) in zip(
            ends, ends[1:], turns, strict=False
        )
    )
