"""Messages between a pool and its processes: a number, a length, MessagePack.

Never pickle: a process may handle hostile text, and unpickling what it sends back would run its
code here."""

from __future__ import annotations

import struct

import msgspec

_HEADER = struct.Struct(">II")  # number of the item, bytes that follow


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):  # numpy values in reasoning_gym's entries
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain data")


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def frame(number: int, body: bytes | msgspec.Raw) -> bytes:
    """A message as bytes."""
    return _HEADER.pack(number, len(memoryview(body))) + bytes(body)


def take_frame(buffer: bytearray, *, max_bytes: int) -> tuple[int, bytes] | None:
    """Remove one complete message, (number, body), from the front of `buffer`; None while it is
    incomplete.

    Raises:
        ValueError: a message of more than max_bytes is announced."""
    if len(buffer) < _HEADER.size:
        return None
    number, length = _HEADER.unpack_from(buffer)
    if length > max_bytes:
        raise ValueError(f"a message of {length} bytes was announced; at most {max_bytes} are allowed")
    end = _HEADER.size + length
    if len(buffer) < end:
        return None
    body = bytes(buffer[_HEADER.size : end])
    del buffer[:end]
    return number, body
