"""Messages between a pool and its processes: the number of the item, MessagePack.

Never pickle: a process may handle hostile text, and unpickling what it sends back would run its
code here."""

from __future__ import annotations

import msgspec

NUMBER_BYTES = 4


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):  # numpy values in reasoning_gym's entries
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain data")


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
