"""The words of a command in a script of bash, which is read and never run.

Known: assignments, defaults (`${A:-1}`), arrays, quotes, comments, here-documents, and commands in
quotes, as `srun bash -c "..."` has them. Of a branch all assignments count; `$(...)` stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

Known = dict[str, list[str]]  # variable -> its words; one, if it is no array
_HEREDOC = re.compile(r"^[^\n]*?\bread\b[^\n]*?(\w+)\s*<<-?\s*['\"]?(\w+)['\"]?\n(.*?)\n\s*\2$", re.M | re.S)
_BRACED = r"\$\{(?:[^{}]|\{[^{}]*\})*\}"
_TOKEN = re.compile(
    r"(?P<comment>\#[^\n]*)|(?P<redirection>\d*[<>]+&?\s*[^\s;&|]*)|(?P<end>[;&|\n()])"
    rf"|(?P<word>(?:\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|{_BRACED}|\$\([^)]*\)|[^\s'\"\\;&|<>()])+)|[^\S\n]+|.",
    re.S,
)
_PART = re.compile(rf"'([^']*)'|\"((?:\\.|[^\"\\])*)\"|\\(.)|((?:{_BRACED}|[^'\"\\])+)", re.S)
_VARIABLE = re.compile(
    r"\\(?P<escaped>[\"\\$`])|\$\{(?P<name>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>(?:[^{}]|\{[^{}]*\})*))?\}|\$(?P<plain>\w+)"
)
_ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.S)
_BEFORE = {"export", "declare", "local", "readonly", "then", "else", "do"}


def words_after(text: str, module: re.Pattern[str]) -> list[str] | None:
    """Return the words after the one that is `module`, of the first command with it; None: there is none."""
    text = _HEREDOC.sub(lambda found: f'{found[1]}="{found[3]}"', text.replace("\\\n", " "))
    return _search(text, module, {})


def _search(text: str, module: re.Pattern[str], known: Known) -> list[str] | None:
    for raw in _statements(text):
        while raw and raw[0] in _BEFORE:
            raw = raw[1:]
        if raw and all(map(_ASSIGNMENT.fullmatch, raw)):
            for name, more, value in (_ASSIGNMENT.fullmatch(word).groups() for word in raw):  # type: ignore[union-attr]
                is_array = value.startswith("(")
                words = (
                    [one for word in _statements(value[1:-1]) for one in _expanded(word, known)] if is_array else []
                )
                words = words if is_array else [" ".join(_expanded([value], known))]
                known[name] = known.get(name, []) * bool(more) + words
                known[name] = known[name] if is_array else ["".join(known[name])]
            continue
        words = _expanded(raw, known)
        for place, word in enumerate(words):
            if module.fullmatch(word):
                return words[place + 1 :]
            if module.search(word) and (inner := _search(word, module, known)) is not None:
                return inner
    return None


def _statements(text: str) -> Iterator[list[str]]:
    """Yield the raw words of each command; an array is one word, NAME=(...)."""
    words: list[str] = []
    array: list[str] | None = None
    for token in _TOKEN.finditer(text):
        word, end = token["word"], token["end"]
        if array is not None:
            array += [word] if word else []
            if end == ")":
                words[-1] += f"({' '.join(array)})"
                array = None
        elif word:
            words.append(word)
        elif end == "(" and words and words[-1].endswith("=") and text[token.start() - 1] == "=":
            array = []
        elif end:
            yield words
            words = []
    yield words


def _expanded(raw: list[str], known: Mapping[str, list[str]]) -> list[str]:
    """Words without quotes, with the values of variables; what is not quoted is split."""
    found: list[str] = []
    for word in raw:
        parts: list[str] = []
        for part in _PART.finditer(word):
            single, double, escaped, bare = part.groups()
            array = _VARIABLE.fullmatch(double or "")
            if array and "@" in double and array["name"] in known:
                parts = known[array["name"]]
            elif bare is None:
                text = single or escaped or _filled(double or "", known)
                parts = [*parts[:-1], "".join(parts[-1:]) + text]
            else:
                texts = _filled(bare, known).split()
                parts = [*parts[:-1], "".join(parts[-1:] + texts[:1]), *texts[1:]] if texts else parts
        found += parts
    return found


def _filled(text: str, known: Mapping[str, list[str]]) -> str:
    """Fill in the values of variables; an unknown one without a default stays."""

    def value(found: re.Match[str]) -> str:
        name, default = found["name"] or found["plain"], found["default"]
        if found["escaped"] or name not in known:
            return found["escaped"] or (found[0] if default is None else _filled(default, known))
        return " ".join(known[name])

    return _VARIABLE.sub(value, text)
