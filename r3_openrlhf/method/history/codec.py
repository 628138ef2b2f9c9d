"""Arrays to bytes and back, and the hashes that name them.

An array of 32-bit values is stored as all lower halves, then all upper halves (of which there are
few different ones), in one zstd frame with a checksum. Round trips are bit for bit: token ids are
int32, log-probs float32. Less than float32 is hard to defend: the ratio of a recalled rollout is
exp(new - old) per token, and half precision (11 bits) would put an error of up to 0.8 % into it for
log-probs beyond -16."""

import hashlib

import numpy as np
import zstandard

from r3_openrlhf.method.errors import HistoryError

DIGEST_BYTES = 16
_LEVEL = 1


class Codec:
    """Holds the zstd contexts. Not for two threads at a time."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(
            level=_LEVEL, write_checksum=True, write_content_size=True
        )
        self._decompressor = zstandard.ZstdDecompressor()

    def pack(self, array: np.ndarray) -> bytes:
        """int32 or float32 [n] -> bytes."""
        halves_2n = np.ascontiguousarray(array.view("<u2").reshape(-1, 2).T)
        return self._compressor.compress(halves_2n.data)

    def unpack(self, data: bytes, dtype: type, *, length: int) -> np.ndarray:
        """Inverse of pack, for an array of `length` values. HistoryError: damaged bytes."""
        raw = self.decompress(data, length=4 * length)
        lower, upper = np.frombuffer(raw, dtype="<u2").reshape(2, -1)
        array = upper.astype("<u4")
        array <<= 16
        array |= lower
        return array.view(dtype)

    def compress(self, data: bytes) -> bytes:
        """Compress into one zstd frame with a checksum."""
        return self._compressor.compress(data)

    def decompress(self, data: bytes, *, length: int | None = None) -> bytes:
        """Inverse of compress, of `length` bytes if given. HistoryError: damaged bytes."""
        try:
            claimed = zstandard.frame_content_size(data)  # allocated before the checksum
            if length is not None and claimed != length:
                raise HistoryError(
                    f"a stored array is damaged: it has {claimed} bytes instead of {length}"
                )
            return self._decompressor.decompress(data)
        except zstandard.ZstdError as error:
            raise HistoryError(f"a stored array is damaged: {error}") from error


def state_digest(prefix_ids: np.ndarray) -> bytes:
    """Digest that names a state in the store: of the token ids of a prefix, int32 [n]."""
    return digest(prefix_ids.astype("<i4").tobytes())


def digest(*parts: bytes) -> bytes:
    """blake2b-128 over parts, each after its length, so that no two lists look alike."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()
