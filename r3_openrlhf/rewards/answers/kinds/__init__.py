"""Kinds of answers, one file each: which references are of the kind, one reader for references and
answers, one comparison, and siblings for the tests.

A new kind is a new file here with a `KIND`, and the file's name in `ORDER`. What no kind
recognises is mathematics, which `mathematics.py` compares as numbers, formulas, sets and lists."""

import importlib
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from r3_openrlhf.rewards.answers.reading.scanner import ALTERNATIVE
from r3_openrlhf.rewards.answers.text.plain import plain

DENIES = re.compile(
    r"(?i)\b(?:not|never|cannot|neither|nicht|pas|(?:could|might|may) (?:also )?be)\b(?! (?:only|just)\b)|n['’]t\b"
)

# The files, in the order in which they are asked whether a reference is of their kind: narrow ones
# come first, as "3:2" may be a time, a score or a ratio, and "A, B" a list or a choice.
ORDER = (
    "json_text",
    "date",
    "time_of_day",
    "score",
    "amount_range",
    "ratio",
    "chemistry",
    "residue",
    "base",
    "yes_no",
    "ordered_list",
    "choice",
    "labelled",
    "words",
    "prose",
)

# what follows a text is another one: "... or 7."
_OR_ANOTHER = re.compile(r"[\s})$*,]*\bor\b[\s$(]*[-+]?\d")

SUBJECT = re.compile(r"^[^:=()\[\]{}$\\]*\b(?:is|are|was|were|equals)\b:?\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of answers.

    Args:
        name: Its name, as on the first page and in a row's column.
        recognise: (reference, problem) -> whether a reference that `read` can read is of this kind.
        read: (text, problem) -> the value of a reference or of an answer; None: it has none.
        same: (value of the answer, value of the reference) -> whether they are equal.
        find: (sentence, problem) -> the texts in it that may be the answer, where it has no mark.
        describe: What to say of a value besides the name."""

    name: str
    recognise: Callable[[str, str], bool]
    read: Callable[[str, str], Any]
    same: Callable[[Any, Any], bool] = operator.eq
    find: Callable[[str, str], list[str]] = lambda sentence, problem: subject_left_out(sentence)
    describe: Callable[[Any], str] = lambda value: ""


def last_sentence(text: str, problem: str = "") -> list[str]:
    """Return the last sentence of a statement, as the only text that may be the answer."""
    return [re.split(r"(?<=[.!?])\s+|\n", text.strip())[-1].removeprefix("Answer: ")]


def subject_left_out(text: str) -> list[str]:
    """Return what the last sentence says of its subject: "4, 5" of "So a and b are 4, 5"."""
    return [SUBJECT.sub("", last_sentence(text)[0])]


@lru_cache(maxsize=1)
def kinds() -> dict[str, Kind]:
    """Every kind of this folder by name, in the order in which they are asked."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in ORDER]
    return {module.KIND.name: module.KIND for module in modules}


@lru_cache(maxsize=4096)
def kind_of(reference: str, problem: str) -> tuple[Kind, Any] | None:
    """Return the kind of a reference and its value; None: mathematics."""
    if reference.isdecimal():
        return None  # a number, whatever the problem asks
    for kind in kinds().values():
        if (
            kind.recognise(reference, problem)
            and (value := kind.read(reference, problem)) is not None
        ):
            return kind, value
    return None


def _is_denied_or_offered(texts: list[str], answer: str) -> bool:
    """Tell whether a sentence denies the only text in it that may be its answer, or goes on with "or" and a number."""
    if len(texts) == 1 and texts[0] and DENIES.search(answer.partition(texts[0])[0]):
        return True
    last = texts[-1]
    sentences = [sentence for sentence in (answer, plain(answer)) if last and last in sentence]
    return any(_OR_ANOTHER.match(sentence.rpartition(last)[2]) for sentence in sentences)


def is_right(kind: Kind, value: object, answer: str, problem: str, *, exact: bool) -> bool:
    """Tell whether a text gives the reference's value: the text itself, each of the alternatives in
    it, or a sentence with it."""
    if answer.rstrip(" }$*").endswith("?"):
        return False
    texts = answer.split(ALTERNATIVE) if exact else kind.find(answer, problem)
    if not exact and texts and _is_denied_or_offered(texts, answer):
        return False
    readings = [kind.read(text, problem) for text in texts]
    known = [reading for reading in readings if reading is not None]
    return (
        bool(known)
        and (not exact or len(known) == len(texts))
        and all(kind.same(each, value) for each in known)
    )
