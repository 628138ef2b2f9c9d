"""Messages between the pool and its grading processes: length-prefixed MessagePack, decoded into fixed types.

Never pickle: a grading process handles hostile text, and unpickling what it sends back would run its code here.
"""

from __future__ import annotations

import struct

import msgspec

from r3_openrlhf.errors import GradingError
from r3_openrlhf.grading.answers.request import Item

_LENGTH = struct.Struct(">I")
DEFERRED = "deferred"  # the verdict that cheap comparisons did not decide; never leaves the pool
MAX_MESSAGE_BYTES = 256 * 2**20


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """What a grading process says about one item. score is None when ungraded; the last two: of a deferred item."""

    number: int
    verdict: str
    reason: str
    score: float | None
    extracted: str | None
    seconds: float
    complexity: int = 0
    subject: int = 0


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):  # numpy scalars and arrays, which reasoning_gym puts into its entries
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain data")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
# may it take long?, [(number, item), ...]
decode_batch = msgspec.msgpack.Decoder(tuple[bool, list[tuple[int, Item]]]).decode
decode_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode


def encode_item(item: Item) -> msgspec.Raw:
    """The item as bytes, which are equal for equal items.

    GradingError: the metadata holds something that is not plain data (text, numbers, lists, dicts).
    """
    try:
        return msgspec.Raw(_encoder.encode(item))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise GradingError(f"the metadata of an item cannot be sent to a grading process: {error}") from error


def frame(message: object) -> bytes:
    """A message as bytes: its length (4 bytes, the highest first), then MessagePack."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def take_frame(buffer: bytearray) -> bytes | None:
    """Removes one complete message from the front of `buffer`; None while it is incomplete."""
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes was announced; at most {MAX_MESSAGE_BYTES} are allowed")
    if len(buffer) < _LENGTH.size + length:
        return None
    body = bytes(buffer[_LENGTH.size : _LENGTH.size + length])
    del buffer[: _LENGTH.size + length]
    return body
