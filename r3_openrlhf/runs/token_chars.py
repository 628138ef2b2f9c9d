"""How many characters of a response's text each of its tokens added: what shows a text token by token without a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_UNKNOWN = "\ufffd"  # what a decoder writes for a part of a character
MAX_CHARS = 2**16 - 1
# Tokens of characters that are tried together; of more, the last has them all, however long the rubbish
MAX_PARTS = 16


class TokenChars:
    """For one tokenizer. decode: token ids -> text, as the texts of the rollouts were decoded.

    A token is decoded alone, once; tokens that are parts of one character are decoded together, and the last of them has it.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._pieces: dict[int, str] = {}

    def of(self, ids: Sequence[int], text: str) -> np.ndarray | None:
        """uint16 [T], together len(text). None where the pieces do not make up the text: a tokenizer that drops or joins
        characters between tokens."""
        pieces: list[str] = []
        broken: list[int] = []  # tokens that are parts of characters, so far
        for token in ids:
            piece = self._piece(token)
            if broken and _UNKNOWN not in piece:  # the character never became whole
                pieces[-1] = self._decode(broken)
                broken.clear()
            pieces.append(piece)
            if _UNKNOWN in piece:
                broken.append(token)
                whole = self._decode(broken) if len(broken) <= MAX_PARTS else _UNKNOWN
                pieces[-1] = "" if _UNKNOWN in whole else whole
                if _UNKNOWN not in whole:
                    broken.clear()
        if broken:
            pieces[-1] = self._decode(broken)
        lengths = [len(piece) for piece in pieces]
        if "".join(pieces) != text or max(lengths, default=0) > MAX_CHARS:
            return None
        return np.array(lengths, dtype=np.uint16)

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._decode([token])
        return self._pieces[token]
