"""Answers of labelled parts: "(a) 3; (b) 5", "Part a: 3, part b: 5". Compared label by label."""

import re

from r3_openrlhf.rewards.answers.kinds import SUBJECT, Kind, subject_left_out
from r3_openrlhf.rewards.answers.text.parts import split_parts
from r3_openrlhf.rewards.answers.text.plain import plain

_LABEL = re.compile(
    r"(?:^|(?<=[\s,;.]))(?<!\d\.)(?:part )?(?:\(([a-h]|i{1,3}|iv|v|[1-9])\)|([a-h]|i{1,3}|iv|v|[1-9])[).:](?!\d))\s*=?\s*",
    re.IGNORECASE,
)
_FIRST_LABEL = re.compile(r"(?mi)^\W*(?:part )?\(?(?:a|i|1)[).:]")
_NAME = re.compile(r"^[A-Za-z' ]{3,40}:\s*")
_ORDERS = ("abcdefgh", "123456789", ("i", "ii", "iii", "iv", "v"))


def _read(text: str, problem: str) -> dict[str, str] | None:
    words = plain(text)
    marks = _marks_in_one_order(words)
    labels = [_label_of(mark) for mark in marks]
    if len(labels) < 2:
        return _without_labels(words)
    is_preceded = words[: marks[0].start()].strip() != ""
    if is_preceded or len(set(labels)) < len(labels):
        return None
    ends = [mark.start() for mark in marks[1:]] + [len(words)]
    values = {}
    for label, mark, end in zip(labels, marks, ends, strict=True):
        values[label] = _value_of(words[mark.end() : end])
    return values


def _label_of(mark: re.Match) -> str:
    """Return the label that a mark sets: "a" of "(A)" and "a."."""
    return (mark[1] or mark[2]).lower()


def _marks_in_one_order(words: str) -> list[re.Match]:
    """Return the marks whose labels are of the first one's order: not the 3 of "(a) It is 3. (b)"."""
    marks = list(_LABEL.finditer(words))
    for order in _ORDERS:
        if marks and _label_of(marks[0]) in order:
            return [mark for mark in marks if _label_of(mark) in order]
    return []


def _without_labels(words: str) -> dict[str, str] | None:
    """Read a list without labels, with "0", "1" and so on as labels; None: it is no list."""
    parts = split_parts(words)
    if parts is None:
        return None
    brackets, values = parts
    if brackets not in ("", "()") or len(values) < 2:
        return None
    return {str(i): value for i, value in enumerate(values)}


def _value_of(text: str) -> str:
    """Return what a labelled part says of its subject, without its end and its name."""
    text = re.sub(r"[\s,;.]*(?:\band\b|;)?[\s,;.]*$", "", text)
    return _NAME.sub("", SUBJECT.sub("", text))


def _same(said: dict[str, str], wanted: dict[str, str]) -> bool:
    # math-verify, which no reader needs
    from r3_openrlhf.rewards.answers.formulas.algebra import equal_texts

    if "0" in said and len(said) == len(wanted):  # without labels: in order
        said = dict(zip(wanted, said.values(), strict=True))
    return said.keys() == wanted.keys() and all(
        equal_texts(said[label], text) for label, text in wanted.items()
    )


def _recognise(reference: str, problem: str) -> bool:
    labels = list(_read(reference, problem) or "?")
    return any(labels == list(order[: len(labels)]) for order in _ORDERS)


def _find(sentence: str, problem: str) -> list[str]:
    """Return the text from the last first label on, that begins a line."""
    begins = [mark.start() for mark in _FIRST_LABEL.finditer(sentence)]
    return [sentence[begins[-1] :] if begins else text for text in subject_left_out(sentence)]


KIND = Kind(
    name="labelled parts",
    recognise=_recognise,
    read=_read,
    same=_same,
    find=_find,
    describe=lambda value: ", ".join(value),
)
