"""Which characters of a text each token added: by hand, and for any text over a tokenizer whose tokens are bytes."""

from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.runs.rollout_records import TokenPieces


def decode(ids):
    """A tokenizer of bytes, and 256 for the end of a text, which is no text."""
    return bytes(token for token in ids if token < 256).decode("utf-8", "replace")


def test_by_hand():
    """One byte, two, four; a byte that begins nothing; the end."""
    ids = [*"aé😀".encode(), 0xFF, *b"b", 256]
    assert TokenPieces(decode).lengths(ids, "aé😀\ufffdb").tolist() == [
        1,
        0,
        1,
        0,
        0,
        0,
        1,
        1,
        1,
        0,
    ]


@given(st.text() | st.text(alphabet="a€\ufffd😀é"))
def test_a_character_belongs_to_its_last_byte(text):
    """Where no byte is a broken one; an encoded U+FFFD looks like one until the next character."""
    found = TokenPieces(decode).lengths(list(text.encode()), text)
    assert found.sum() == len(text)
    if "\ufffd" not in text:
        ends = [
            count for character in text for count in [0] * (len(character.encode()) - 1) + [1]
        ]
        assert found.tolist() == ends


@given(st.lists(st.integers(0, 256), max_size=30))
def test_whatever_was_sampled(ids):
    """Together the pieces are the text, or nothing is said."""
    text = decode(ids)
    found = TokenPieces(decode).lengths(ids, text)
    assert found is None or (len(found) == len(ids) and found.sum() == len(text))


def test_a_tokenizer_that_joins_tokens_is_not_followed():
    joined = TokenPieces(lambda ids: " ".join(["ab", "cd"][token] for token in ids))
    assert joined.lengths([0, 1], "ab cd") is None
    assert joined.lengths([0], "ab").tolist() == [2]
