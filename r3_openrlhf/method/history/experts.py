"""The experts of a stored rollout, packed.

A token's numbers of one layer are a set, in ascending order. The first numbers of all tokens lie
together, then the second ones, and so on, layer by layer: their bytes have fewer values than those of
a token. Numbers of two bytes are all lower bytes, then all upper ones. T tokens, L layers, K experts."""

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
    planes_LKT = np.sort(experts_TLK, axis=-1).transpose(1, 2, 0)
    width = planes_LKT.dtype.itemsize
    little = np.ascontiguousarray(planes_LKT, dtype=f"<u{width}")
    bytes_NW = little.view(np.uint8).reshape(-1, width)
    data = codec.compress(np.ascontiguousarray(bytes_NW.T).tobytes())
    num_tokens, layers, top_k = experts_TLK.shape
    return PackedExperts(num_tokens, layers, top_k, width, data)


def unpack(codec: Codec, packed: PackedExperts) -> np.ndarray:
    """Inverse of pack. HistoryError: damaged bytes."""
    shape = (packed.layers, packed.top_k, packed.num_tokens)
    size = packed.width * packed.layers * packed.top_k * packed.num_tokens
    raw = codec.decompress(packed.data, length=size)
    bytes_WN = np.frombuffer(raw, dtype=np.uint8).reshape(packed.width, -1)
    little = np.ascontiguousarray(bytes_WN.T).view(f"<u{packed.width}")
    planes_LKT = little.reshape(shape)
    dtype = np.uint8 if packed.width == 1 else np.uint16
    return np.ascontiguousarray(planes_LKT.transpose(2, 0, 1), dtype=dtype)


def read_experts(connection: sqlite3.Connection, codec: Codec, row: int) -> np.ndarray | None:
    """Read the experts of a row, [T, L, K]; None: it has none. HistoryError: damaged bytes."""
    found = connection.execute(
        "SELECT num_tokens, layers, top_k, width, data FROM experts WHERE rollout = ?", (row,)
    ).fetchone()
    return None if found is None else unpack(codec, PackedExperts(*found))
