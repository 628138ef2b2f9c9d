"""Arrays to bytes and back, and the hashes that name them.

An array is stored as its little-endian bytes, transposed so that first bytes come first, then second bytes, ...
("byte shuffle"), then one zstd frame with a checksum. Round trips are bit for bit: token ids are int32, log-probs
float32. Less than float32 is not defensible: the ratio of a recalled rollout is exp(new - old) per token, and
half precision (11 bits) would put an error of up to 0.8 % into it for log-probs beyond -16.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import zstandard

from r3_openrlhf.errors import HistoryError

DIGEST_BYTES = 16
_LEVEL = 1
_INT32 = np.iinfo(np.int32)


class Codec:
    """Holds the zstd contexts; they are not thread-safe, so one per thread."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
        self._decompressor = zstandard.ZstdDecompressor()

    def pack(self, array: np.ndarray) -> bytes:
        """int32 or float32 [n] -> bytes."""
        planes = np.ascontiguousarray(array.view(np.uint8).reshape(-1, 4).T)
        return self._compressor.compress(planes)

    def unpack(self, data: bytes, dtype: type, *, length: int) -> np.ndarray:
        """Inverse of pack, for an array known to have `length` values. Raises HistoryError when the bytes are damaged."""
        raw = self._decompress(data)
        if len(raw) != 4 * length:  # zstd's checksum does not cover the length in the frame's header
            raise HistoryError(f"a stored array is damaged: it has {len(raw)} bytes instead of {4 * length}")
        planes = np.frombuffer(raw, dtype=np.uint8).reshape(4, -1)
        return np.ascontiguousarray(planes.T).view(dtype).reshape(-1)

    def pack_json(self, value: dict[str, Any]) -> bytes:
        try:
            text = json.dumps(value, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise HistoryError(f"the state of a step must be plain JSON: {error}") from error
        return self._compressor.compress(text.encode())

    def unpack_json(self, data: bytes) -> dict[str, Any]:
        return json.loads(self._decompress(data))

    def _decompress(self, data: bytes) -> bytes:
        try:
            return self._decompressor.decompress(data)
        except zstandard.ZstdError as error:
            raise HistoryError(f"a stored array is damaged: {error}") from error


def token_array(tokens: np.ndarray, *, name: str) -> np.ndarray:
    """Token ids as int32 [n]. Raises HistoryError for what int32 cannot hold."""
    array = np.asarray(tokens)
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise HistoryError(f"{name} must be a one-dimensional array of integers, got {array.dtype} {array.shape}")
    if array.dtype != np.int32 and (array.min() < _INT32.min or array.max() > _INT32.max):
        raise HistoryError(f"{name} holds the token id {array.max()}, which does not fit 32 bits")
    return np.ascontiguousarray(array, dtype="<i4")


def logprob_array(logprobs: np.ndarray, *, name: str) -> np.ndarray:
    """Log-probs as float32 [n]."""
    array = np.asarray(logprobs)
    if array.size == 0:
        return np.zeros(0, dtype=np.float32)
    if array.ndim != 1 or array.dtype.kind != "f":
        raise HistoryError(f"{name} must be a one-dimensional array of floats, got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array, dtype="<f4")


def digest(*parts: bytes) -> bytes:
    """blake2b-128 over parts; each is preceded by its length, so that no two lists of parts look alike."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()
