r"""Whether a marked answer is taken back by the words around: "\boxed{5} is incorrect".

Only whole clauses count: "\boxed{5}. This is no coincidence", "... Check: 4 is wrong" do not.
"""

from __future__ import annotations

import re
from functools import lru_cache

from r3_openrlhf.rewards.answers.patterns import phrases

CHARS_AFTER = 160  # of the text after an answer
CHARS_BEFORE = 80  # of the text before it

_WHITE = re.compile(r"[^\S\n]*\n\s*|[^\S\n]{2,}|[^\S\n ]")  # all but a single space
_TAKES_BACK = phrases("withdrawn")
# Without one of these nothing is taken back; most texts have none. "ſ" is an s, ignoring case.
_SAYS_SOMETHING = re.compile(r"[^\W\d_]|~~")
_WORDS_BEFORE = (
    "not", "n't", "n’t", "never", "doubt", "unlikely", "that", "refuse", "ignore", "disregard", "forget", "scra", "reject", "strike",
    "cross", "discard", "withdraw", "retract", "instead", "rather", "ſ",
)  # fmt: skip


def is_withdrawn(text: str, start: int, end: int) -> bool:
    """Whether the words directly before text[start:end], or directly after it, take it back."""
    after, before = text[end : end + CHARS_AFTER], text[max(0, start - CHARS_BEFORE) : start]
    return _takes_back(before, after)


@lru_cache(maxsize=64)  # a mark is asked about more than once
def _takes_back(before: str, after: str) -> bool:
    if _SAYS_SOMETHING.search(after) and _TAKES_BACK["after"].match(_one_space(after)):
        return True
    said = before.lower()
    return any(word in said for word in _WORDS_BEFORE) and _TAKES_BACK["before"].search(_one_space(before)) is not None


def _one_space(text: str) -> str:
    """Every run of white space as one space or one line break: the patterns are then linear."""
    return _WHITE.sub(lambda run: "\n" if "\n" in run[0] else " ", text)
