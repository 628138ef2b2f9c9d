"""Two answers of several parts, compared part by part: (1.7321, 2) and (\\sqrt{3}, 2)."""

import re
from collections.abc import Callable, Sequence

from r3_openrlhf.rewards.answers.plain import TEXT_COMMAND

MAX_PARTS = 24  # formulas, each of which may be compared with each
_OPENING, _CLOSING = "({[", ")}]"
_LOOSE = {"", "{}", "()"}  # a bare list may be a set or a tuple
_LITERAL = re.compile(r"[-+]?(?:[\d./]+|\\frac\{\d+\}\{\d+\})")
_PART_OF_THOUSANDS = re.compile(r"0\d+")  # of "(1,000,2,000)": no number of its own
_FOUR_DIGITS = re.compile(r"\d{4}")
COMMA_OF_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
COMMA_AND_SPACE = re.compile(r",\s")
AND_OR = re.compile(
    r"[,;]?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))\s*,?|;"
)
Agree = Callable[[str, str], bool]
_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\s*\{(?:[pb]?matrix|array)\}(?:\{[clr| ]+\})?([^{}]*(?:\{[^{}]*\}[^{}]*)*?)\\end\s*\{(?:[pb]?matrix|array)\}\s*[)\]]?"
)
_PROSE = re.compile(r"\$|(?<![a-zA-Z\\])[a-z]{2,} [a-z]{2}")
_HEAD = re.compile(
    r"\s*[A-Z]'?\s*(?=\([^()]*,[^()]*\)\s*$)|\s*(?:\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])+\s*\)|[a-zA-Z](?:\([a-z]\)|\^\s*(?:\{\s*-\s*1\s*\}|T|\{T\}))?|[A-Z]'?(?:\s*(?:\\(?:cup|cap|setminus|cdot|times)(?![a-zA-Z]))?\s*[A-Z]'?){1,3})\s*(?:=|\\in(?![a-zA-Z]))\s*(?=\(|\[|\\?\{|\\left|\\begin|\\mathbb|\\frac\{\d+\}\{\d+\}\s*\\(?:left|begin))"
)
_CASES = re.compile(
    r"(?:[a-zA-Z]\([a-zA-Z]\)\s*=\s*)?\\begin\s*\{cases\}(.*)\\end\s*\{cases\}", re.DOTALL
)
_IF = re.compile(r"\\text\s*\{\s*(?:,?\s*(?:if|when|for|where)\b)?|(?<=[a-z ])\}")
_NAME_OF_VALUE = re.compile(r"([a-zA-Z])\s*=\s*(?=[^=]*$)")
_WORD = re.compile(r"(?<![\\a-z])[a-z]{2,}")
OR = re.compile(r"\\text\s*\{\s*or\s*\}|\\lor(?![a-zA-Z])|\bor\b")
_GROUPS = re.compile(r";(?:\\ )?|\\text\s*\{\s*or\s*\}|\bor\b|\\\\")


def same_list(answer: str, gold: str, agree: Agree) -> bool | None:
    """Tell whether two texts are one tuple, interval, matrix, set or list. None: neither is any.

    Parts of a tuple are in order, those of a set or a bare list in any; a bare list is read as the
    tuple that the reference is. A comma between digits may group thousands."""
    answer, gold = without_head(answer), without_head(gold)
    wanted = split_parts(gold)
    if (
        wanted is None
        or _PROSE.search(gold)
        or wanted[0] == ""
        and len(wanted[1]) == 1
        and OR.search(answer)
    ):
        return None  # one value, said in several ways, or in a sentence
    if wanted[0] == "()" and OR.search(answer):
        return False  # "1 or 2" is no point
    if (
        "matrix" in wanted[0]
        and "\\begin" in answer
        and _MATRIX.fullmatch(answer.strip()) is None
    ):
        return None  # a product with a matrix
    texts = [(answer, gold)]
    texts += [(COMMA_OF_THOUSANDS.sub("", answer), gold)] if _FOUR_DIGITS.search(gold) else []
    texts += [(_spaced(answer), _spaced(gold))] if "," in gold + answer else []
    pairs = [(split_parts(text), split_parts(other)) for text, other in texts]
    lists = [(a, b) for a, b in pairs if a and b and (len(a[1]) > 1 or len(b[1]) > 1)]
    if not lists:
        return None
    return any(_same_parts(*a, *b, agree) for a, b in lists)


def _same_parts(
    brackets: str, parts: list[str], other: str, wanted: list[str], agree: Agree
) -> bool:
    if any(map(_PART_OF_THOUSANDS.fullmatch, parts)) and not any(
        map(_PART_OF_THOUSANDS.fullmatch, wanted)
    ):
        return False  # "(1,000)" is not (1,0)
    if brackets == other == "{}" or "(" in "".join(wanted):
        parts, wanted = (
            list({"".join(part.split()): part for part in some}.values())
            for some in (parts, wanted)
        )
    if (
        len(parts) != len(wanted)
        or len(parts) > MAX_PARTS
        and not all(map(_LITERAL.fullmatch, parts))
    ):
        return False
    if brackets != other and (
        (brackets, other) == ("{}", "()") or not {brackets, other} <= _LOOSE
    ):
        return False
    if other == "()" or brackets == other and brackets not in _LOOSE:
        return all(map(agree, parts, wanted))
    return match(parts, wanted, agree)


def without_head(text: str) -> str:
    r"""(1,2) of "(x,y) = (1,2)", {1,2} of "x \in \{1,2\}"."""
    head = _HEAD.match(text)
    return text[head.end() :] if head else text


def _spaced(text: str) -> str:
    """ "(1,000, 2,000)" as (1000, 2000): where spaces set off elements, other commas group."""
    return COMMA_OF_THOUSANDS.sub("", text) if COMMA_AND_SPACE.search(text) else text


def decide_by_label(answer: str, gold: str, agree: Callable[[str, str], bool]) -> bool | None:
    """Tell whether the same is said of the same: cases, "9 red, 4 blue", "x=1, y=8". None: no labels."""
    rows, wanted = _rows(answer), _rows(gold)
    if rows and wanted:
        both_say_it = any("otherwise" in row[1] for row in rows) and any(
            "otherwise" in row[1] for row in wanted
        )
        return match(
            rows,
            wanted,
            lambda a, b: _same_condition(a[1], b[1], agree, both_say_it) and agree(a[0], b[0]),
        )
    groups = [[split_parts(group) for group in _GROUPS.split(text)] for text in (answer, gold)]
    if "=" in gold and all(
        len(found) > 1 and all(group and len(group[1]) > 1 for group in found)
        for found in groups
    ):
        sides = [[", ".join(group[1]) for group in found if group] for found in groups]
        return match(sides[0], sides[1], lambda a, b: same_list(a, b, agree) is True)
    labelled = [
        dict(map(_label, found[1])) if (found := split_parts(text)) else {}
        for text in (answer, gold)
    ]
    if len(labelled[1]) < 2 or labelled[0].keys() != labelled[1].keys() or "" in labelled[1]:
        return None
    return all(agree(labelled[0][label], value) for label, value in labelled[1].items())


def match(some: Sequence, others: Sequence, agree: Callable) -> bool:
    """Tell whether each of some goes with another one of the others, and none is left."""
    left = list(others)
    for one in some:
        partner = next((i for i, other in enumerate(left) if agree(one, other)), None)
        if partner is None:
            return False
        del left[partner]
    return not left


def _rows(text: str) -> list[tuple[str, str]] | None:
    """(value, condition) of each row of cases, those without a condition of their own last."""
    cases = _CASES.fullmatch(text.strip())
    rows = [row.split("&") for row in cases[1].split("\\\\") if row.strip()] if cases else []
    if not rows or any(len(row) != 2 for row in rows) or len(rows) > MAX_PARTS:
        return None
    pairs = [
        (value.strip(" ,;~"), _IF.sub("", condition).strip(" ,;.~"))
        for value, condition in rows
    ]
    return sorted(pairs, key=lambda pair: "otherwise" in pair[1])


def _same_condition(
    a: str, b: str, agree: Callable[[str, str], bool], both_say_it: bool
) -> bool:
    """both_say_it: "otherwise" is on both sides; on one alone it is what is left of the others."""
    if "otherwise" in a + b:
        return not both_say_it or ("otherwise" in a) == ("otherwise" in b)
    words = [_WORD.findall(text.lower()) for text in (a, b)]
    return words[0] == words[1] if any(words) else agree(a, b)


def _label(part: str) -> tuple[str, str]:
    """Return the words of a part, and what it is without them."""
    if name := _NAME_OF_VALUE.match(part):
        return name[1], part[name.end() :]  # m=3 is not M=3
    words = " ".join(TEXT_COMMAND.findall(part) + re.findall(r"\\(max|min)(?![a-zA-Z])", part))
    bare = re.sub(r"\\(?:max|min)(?![a-zA-Z])", "", TEXT_COMMAND.sub("", part))
    return " ".join(words.split()).strip(" :=").lower(), re.sub(r"\\[,;: ]", "", bare).strip(
        " :=~"
    )


def split_parts(text: str) -> tuple[str, list[str]] | None:
    """Brackets and top-level parts of a text in one spelling; None: unmatched brackets."""
    text = text.replace(",\\!", ",").replace("\\left", "").replace("\\right", "")
    text = AND_OR.sub(",", re.sub(r"(?<!\\)\\[,!;: ]", " ", text)).strip()
    if matrix := _MATRIX.fullmatch(text):
        rows = [
            [cell.strip() for cell in row.split("&")]
            for row in matrix[1].split("\\\\")
            if row.strip()
        ]
        return f"matrix of {list(map(len, rows))}", [cell for row in rows for cell in row]
    is_group = text[:1] == "{"  # of LaTeX, which nobody sees: no set
    text = text.replace("\\{", "{").replace("\\}", "}")
    if (
        text[:1] in (*_OPENING,)
        and text[-1:] in (*_CLOSING,)
        and (inside := top_level(text[1:-1]))
    ):
        return "" if is_group else text[0] + text[-1], inside  # intervals may mix their kinds
    parts = top_level(text)
    return ("", parts) if parts else None


def top_level(text: str) -> list[str] | None:
    """Parts between commas that are in no brackets; None: unmatched brackets, or an empty part."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth < 0:
            return None
        if character in ",;" and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return parts if depth == 0 and all(parts) else None
