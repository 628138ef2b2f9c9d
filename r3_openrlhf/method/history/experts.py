"""The experts of a stored rollout, packed.

A token's experts of one layer are a set. In ascending order, each number is stored as its distance
from the one before, which is small: 8 of 128 take 5.3 bytes (`test_experts.py`), where the best code
of such a set takes 5.1. Numbers of two bytes are all lower bytes, then all upper ones. T tokens, L
layers, K experts."""

import sqlite3
from typing import NamedTuple

import numpy as np

from r3_openrlhf.method.history.codec import Codec


class PackedExperts(NamedTuple):
    """The columns of a row of the table `experts`, but for the rollout."""

    num_tokens: int
    layers: int
    top_k: int
    width: int  # bytes of a number
    data: bytes


def pack(codec: Codec, experts_TLK: np.ndarray) -> PackedExperts:
    """uint8 or uint16 [T, L, K] -> bytes. A set that is not in ascending order is put into it."""
    num_tokens, layers, top_k = experts_TLK.shape
    width = experts_TLK.dtype.itemsize
    sets_TLK = np.sort(experts_TLK, axis=-1)
    gaps_TLK = np.diff(sets_TLK, axis=-1, prepend=sets_TLK.dtype.type(0))
    bytes_NW = gaps_TLK.astype(f"<u{width}").view(np.uint8).reshape(-1, width)
    data = codec.compress(bytes_NW.T.tobytes())
    return PackedExperts(num_tokens, layers, top_k, width, data)


def unpack(codec: Codec, packed: PackedExperts) -> np.ndarray:
    """Inverse of pack. HistoryError: damaged bytes."""
    num_tokens, layers, top_k, width, data = packed
    raw = codec.decompress(data, length=width * num_tokens * layers * top_k)
    bytes_WN = np.frombuffer(raw, dtype=np.uint8).reshape(width, -1)
    gaps_N = np.ascontiguousarray(bytes_WN.T).view(f"<u{width}")
    dtype = np.uint8 if width == 1 else np.uint16
    return np.cumsum(gaps_N.reshape(num_tokens, layers, top_k), axis=-1, dtype=dtype)


def read_experts(connection: sqlite3.Connection, codec: Codec, row: int) -> np.ndarray | None:
    """Read the experts of a row, [T, L, K]; None: it has none. HistoryError: damaged bytes."""
    found = connection.execute(
        "SELECT num_tokens, layers, top_k, width, data FROM experts WHERE rollout = ?", (row,)
    ).fetchone()
    return None if found is None else unpack(codec, PackedExperts(*found))
