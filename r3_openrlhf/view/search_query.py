"""What a user types into the search box, as an expression of SQLite's FTS5. Typed text is data, never syntax.

    seven dwarfs         both words, anywhere in a text
    "seven dwarfs"       one after the other
    seven*               a word that begins so
    seven -dwarfs        the first word, not the second; -5 is a number

Words are runs of letters and digits; upper and lower case and accents make no difference. What is between them counts for
nothing: \\frac{1}{2} is found as the words frac, 1, 2 one after the other.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from r3_openrlhf.method.errors import R3Error, quoted

MAX_CHARS = 1000  # of a query
MAX_TERMS = 50
_TERM = re.compile(r"""(-(?=[^\W\d]|"))?(?:"([^"]*)"(\*?)|([^\s"]+))""")


@dataclass(frozen=True, slots=True)
class Term:
    """Words that must be one after the other, or must not be there."""

    text: str
    prefix: bool = False  # of the last word
    excluded: bool = False

    @property
    def expression(self) -> str:
        """One string of FTS5: quotes inside are doubled, and nothing else in it has a meaning."""
        quoted = self.text.replace('"', '""')
        return f'"{quoted}"*' if self.prefix else f'"{quoted}"'


def terms_of(query: str) -> list[Term]:
    """What is looked for. An empty query has none, and fits every rollout.

    Raises:
        R3Error: a quotation mark without its partner, a query without any letter or digit, one that only excludes,
            too long a one.
    """
    query = query.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate is no text that SQLite takes
    if len(query) > MAX_CHARS:
        raise R3Error(f"the query has {len(query):,} characters; use {MAX_CHARS:,} or fewer")
    if not query.strip():
        return []
    shown = query.strip()[:60]
    if query.count('"') % 2:
        raise R3Error(f"the query {quoted(shown)} has a quotation mark without its partner; add it, or leave it out")
    terms = []
    for minus, phrase, star, word in _TERM.findall(query):
        text = (phrase or word.rstrip("*")).replace("\0", " ")
        if any(_is_word_character(character) for character in text):
            terms.append(Term(text, prefix=bool(star) or word.endswith("*"), excluded=bool(minus)))
    if not terms:
        raise R3Error(f"the query {quoted(shown)} has no letter and no digit; write a word, a number or part of one")
    if all(term.excluded for term in terms):
        raise R3Error(
            f"the query {quoted(shown)} only says what must not be there; write a word that must be there, too"
        )
    if len(terms) > MAX_TERMS:
        raise R3Error(
            f"the query has {len(terms)} words; use {MAX_TERMS} or fewer, or put what belongs together in quotes"
        )
    return terms


def expression_of(terms: list[Term]) -> str:
    """Terms, one of them not excluded, as an FTS5 expression."""
    wanted = " AND ".join(term.expression for term in terms if not term.excluded)
    unwanted = " OR ".join(term.expression for term in terms if term.excluded)
    return f"({wanted}) NOT ({unwanted})" if unwanted else f"({wanted})"


def _is_word_character(character: str) -> bool:
    """As FTS5's unicode61 sees it (sqlite.org/fts5.html#unicode61_tokenizer): letters, numbers and private use."""
    category = unicodedata.category(character)
    return category[0] in "LN" or category == "Co"
