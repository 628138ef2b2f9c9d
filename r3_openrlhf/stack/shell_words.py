"""The words of a command in a script of bash, which is read and never run.

Known: assignments, defaults (`${A:-1}`), arrays, sums (`$((2 * A))`), quotes, comments, here-documents, `case`
(an unknown word fits its first part), and commands in quotes, as `srun bash -c "..."` has them. Of an `if` all
assignments count. `$(...)` stays as it is, but for `$(... || echo 1)`, which is 1."""

import ast
import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from r3_openrlhf.method.errors import ConfigError

Known = dict[str, list[str]]  # variable -> its words; one, if it is no array
_HEREDOC = re.compile(
    r"^[^\n]*?\bread\b[^\n]*?(\w+)\s*<<-?\s*['\"]?(\w+)['\"]?\n(.*?)\n\s*\2$", re.M | re.S
)
_QUOTED = r"\"(?:\\.|[^\"\\])*\""
_DEFAULT = rf"(?:[^{{}}\"]|{_QUOTED}|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})*"
_FILLED = rf"\$\{{{_DEFAULT}\}}|\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
# possessive: a quote that never ends is read once
_DOUBLE = rf"\"(?:\\.|{_FILLED}|[^\"\\])*+\""
_TOKEN = re.compile(
    r"(?P<comment>\#[^\n]*)|(?P<redirection>\d*[<>]+&?\s*[^\s;&|]*)|(?P<end>;;|&&|\|\||[;&|\n()])"
    rf"|(?P<word>(?:\\.|'[^']*'|{_DOUBLE}|{_FILLED}|[^\s'\"\\;&|<>()])+)|[^\S\n]+|.",
    re.S,
)
_PART = re.compile(rf"'([^']*)'|({_DOUBLE})|\\(.)|((?:{_FILLED}|[^'\"\\])+)", re.S)
_VARIABLE = re.compile(
    rf"\\(?P<escaped>[\"\\$`])|\$\{{(?P<name>\w+|[@*])(?:\[[@*]\])?(?:(?P<empty>:?)[-=](?P<default>{_DEFAULT}))?\}}"
    rf"|\$(?P<plain>\w+|[@*])|\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)|\$\([^()]*\|\|\s*echo\s+(?P<echo>[\w./-]+)\s*\)"
)
_ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.S)
_BEFORE = {"export", "declare", "local", "readonly", "then", "else", "do"}


def command_words(words: Sequence[str], module: re.Pattern[str], name: str) -> list[str]:
    """Return the words after `module` (`name` in a refusal): of a script if its path is the last word, and all
    before it NAME=VALUE, as in front of bash; else of the command itself."""
    *given, path = words
    values = [_ASSIGNMENT.fullmatch(word) for word in given]
    if not (Path(path).is_file() and all(values)):
        place = next(
            (number for number, word in enumerate(words) if module.fullmatch(word)), -1
        )
        return list(words[place + 1 :])
    known = {match[1]: [match[3]] for match in values if match}
    places = {"HOME": [str(Path.home())], "PWD": [str(Path.cwd())]}
    found = words_after(Path(path).read_text(encoding="utf-8"), module, places | known)
    if found is None:
        raise ConfigError(
            f"{path} does not call {name}; give its script, or the words after it themselves"
        )
    return found


def words_after(
    text: str, module: re.Pattern[str], known: Known | None = None
) -> list[str] | None:
    """Return the words after the one that is `module`, of the first command with it; None: there is none."""
    text = re.sub(r"\$\{@:\d+\}", "$@", text.replace("\\\n", " ").replace("$(pwd)", "$PWD"))
    text = _HEREDOC.sub(lambda found: f'{found[1]}="{found[3]}"', text)
    return _search(text, module, {"@": [], "*": []} | (known or {}))


@dataclass
class _Case:
    """A `case` around a statement."""

    word: str
    asks: bool = True  # for the pattern of a part?
    fits: bool = False
    reads: bool = False  # does the present part count?
    is_done: bool = False  # did a part count?


def _search(text: str, module: re.Pattern[str], known: Known) -> list[str] | None:
    """Follow the statements up to the first command with `module`; `known` learns their variables."""
    cases: list[_Case] = []
    for raw, end in _statements(text):
        raw = _in_cases(raw, end, cases, known)
        while raw and raw[0] in _BEFORE:
            raw = raw[1:]
        is_skipped = not all(case.reads for case in cases)
        if not raw or is_skipped:
            continue
        assignments = _assignments(raw)
        for assignment in assignments:
            _assign(assignment, known)
        if assignments:
            continue
        words = _words_after(_expanded(raw, known), module, known, text)
        if words is not None:
            return words
    return None


def _assignments(words: Sequence[str]) -> list[re.Match[str]]:
    """Return the assignments of a statement that has nothing else; [] for any other statement."""
    matches = [_ASSIGNMENT.fullmatch(word) for word in words]
    assignments = [match for match in matches if match is not None]
    return assignments if len(assignments) == len(words) else []


def _assign(assignment: re.Match[str], known: Known) -> None:
    """Store what NAME=VALUE, NAME=(WORDS) or one of them with += gives to the variable."""
    name, more, value = assignment.groups()
    before = known.get(name, []) if more else []
    if not value.startswith("("):
        known[name] = ["".join(before) + _filled_word(value, known)]
        return
    elements: list[str] = []
    for raw, _ in _statements(value[1:-1]):
        elements += _expanded(raw, known)
    known[name] = before + elements


def _words_after(
    words: list[str], module: re.Pattern[str], known: Known, text: str
) -> list[str] | None:
    """Return the words after `module` of a command, or of one in its quotes; None without it.

    text: what the command was read from; a word that is all of it would be read for ever."""
    for place, word in enumerate(words):
        if module.fullmatch(word):
            return words[place + 1 :]
        if module.search(word) and word != text:
            quoted = _search(word, module, known)
            if quoted is not None:
                return quoted
    return None


def _in_cases(raw: list[str], end: str, cases: list[_Case], known: Known) -> list[str]:
    """Follow `case`; returns what is left of the statement."""
    if raw and raw[0] == "case":
        cases.append(_Case(_filled_word("".join(raw[1:2]), known)))
        raw = raw[3:]
    elif raw and raw[0] == "esac" and cases:
        cases.pop()
        return raw[1:]
    if not cases:
        return raw
    here = cases[-1]
    if not here.asks:
        here.asks = end == ";;"
        return raw
    here.fits |= any(fnmatchcase(here.word, _filled_word(word, known)) for word in raw)
    if end == ")":  # an unknown word fits its first part
        here.reads = not here.is_done and (here.fits or "$" in here.word)
        here.is_done, here.asks, here.fits = here.is_done or here.reads, False, False
    return []


def _filled_word(word: str, known: Known) -> str:
    return " ".join(_expanded([word], known))


def _statements(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the raw words of each command, an array as one, NAME=(...), and what ends it."""
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
        elif (
            end == "(" and words and words[-1].endswith("=") and text[token.start() - 1] == "="
        ):
            array = []
        elif end:
            yield words, end
            words = []
    yield words, ""


def _expanded(raw: list[str], known: Known) -> list[str]:
    """Words without quotes, with the values of variables; what is not quoted is split."""
    found: list[str] = []
    for word in raw:
        parts: list[str] = []
        for part in _PART.finditer(word):
            single, double, escaped, bare = part.groups()
            double = (double or "")[1:-1]
            array = _VARIABLE.fullmatch(double)
            if array and "@" in double and (name := array["name"] or array["plain"]) in known:
                parts = known[name]
            elif bare is None:
                text = single or escaped or _filled(double, known)
                parts = [*parts[:-1], "".join(parts[-1:]) + text]
            else:
                texts = re.findall(rf"(?:{_FILLED}|\S)+", _filled(bare, known))
                parts = (
                    [*parts[:-1], "".join(parts[-1:] + texts[:1]), *texts[1:]]
                    if texts
                    else parts
                )
        found += parts
    return found


def _filled(text: str, known: Known) -> str:
    """Fill in the values of variables; an unknown one without a default stays."""

    def value(found: re.Match[str]) -> str:
        name, default = found["name"] or found["plain"], found["default"]
        if found["sum"]:
            return _sum(_filled(found["sum"], known), known) or found[0]
        is_unset = name not in known or (found["empty"] and not any(known[name]))
        if found["escaped"] or found["echo"] or is_unset:
            kept = (
                found[0]
                if default is None
                else _filled(re.sub(r'(?<!\\)"', "", default), known)
            )
            return found["escaped"] or found["echo"] or kept
        return " ".join(known[name])

    return _VARIABLE.sub(value, text)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _sum(text: str, known: Known) -> str | None:
    """Compute what is between `$((` and `))`; None: it is more than whole numbers and + - * / %."""
    text = re.sub(r"[a-zA-Z_]\w*", lambda name: " ".join(known.get(name[0], ["?"])), text)
    if not re.fullmatch(r"[\d\s()+*/%-]+", text) or "**" in text:
        return None
    text = re.sub(r"\b0(?=\d)", "0o", text)  # bash reads 010 as 8
    with contextlib.suppress(SyntaxError, ZeroDivisionError, ValueError):
        tree = ast.parse(text.replace("/", "//").lstrip(" \t"), mode="eval")
        return str(_value(tree.body))
    return None


def _value(node: ast.expr) -> int:
    """Compute an expression of whole numbers. ValueError: something else is in it."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left), _value(right))
    raise ValueError(f"{ast.unparse(node)} is no sum of whole numbers")
