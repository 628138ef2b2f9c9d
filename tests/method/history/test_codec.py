"""Arrays come back bit for bit, and damage is noticed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history.codec import Codec, digest

# NaNs, -0.0, denormals
any_float32 = arrays(np.uint32, st.integers(0, 200)).map(lambda bits: bits.view(np.float32))


@given(any_float32 | arrays(np.int32, st.integers(0, 200)))
def test_an_array_keeps_every_bit(array):
    back = Codec().unpack(Codec().pack(array), array.dtype.type, length=len(array))
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


@given(arrays(np.int32, st.integers(1, 50)), st.data())
def test_a_damaged_array_is_refused_or_unchanged(tokens, data):
    packed = bytearray(Codec().pack(tokens))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        array = Codec().unpack(bytes(packed), np.int32, length=len(tokens))
        assert array.tolist() == tokens.tolist()  # a bit that zstd ignores
    except HistoryError as error:
        assert "is damaged" in str(error)


def test_every_flipped_payload_bit_is_noticed():
    packed = Codec().pack(np.arange(1000, dtype=np.int32) * 7919)
    for place in range(10, len(packed), 97):
        broken = packed[:place] + bytes([packed[place] ^ 1]) + packed[place + 1 :]
        with pytest.raises(HistoryError, match="damaged"):
            Codec().unpack(broken, np.int32, length=1000)


def test_a_digest_knows_where_a_part_ends():
    assert digest(b"ab", b"c") != digest(b"a", b"bc")
    assert digest(b"a") != digest(b"a", b"")
