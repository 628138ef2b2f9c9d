"""The turns of a stored trajectory, as packed JSON.

The row of a trajectory in `rollouts` has the responses of all turns, joined, and the prompt of the
first."""

import json
import sqlite3

import msgspec
import numpy as np

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history.codec import Codec
from r3_openrlhf.method.types import PlayedTurn, Rollout


class _Turn(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    prompt_ids: list[int]
    num_tokens: int
    state: str
    observation: str
    action: str
    reward: float
    valid: bool
    truncated: bool


_FIELDS = _Turn.__struct_fields__[1:]  # as a PlayedTurn has them


def encoded_turns(rollout: Rollout) -> bytes | None:
    """Encode the turns, equal for equal turns of two trajectories; None without a trajectory."""
    if rollout.turns is None:
        return None
    turns = [
        [turn.prompt_ids.tolist(), *(getattr(turn, name) for name in _FIELDS)]
        for turn in rollout.turns
    ]
    return json.dumps(turns, separators=(",", ":")).encode()


def read_turns(
    connection: sqlite3.Connection, codec: Codec, row: int
) -> tuple[PlayedTurn, ...] | None:
    """Read the turns of a row; None: it is no trajectory. Raises HistoryError if they cannot be read."""
    found = connection.execute(
        "SELECT turns FROM trajectories WHERE rollout = ?", (row,)
    ).fetchone()
    if found is None:
        return None
    try:
        return tuple(
            PlayedTurn(
                prompt_ids=np.array(turn.prompt_ids, dtype=np.int32),
                **{name: getattr(turn, name) for name in _FIELDS},
            )
            for turn in msgspec.convert(
                json.loads(codec.decompress(found[0])), list[_Turn], strict=True
            )
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise HistoryError(f"the turns of a stored trajectory are damaged: {error}") from error
