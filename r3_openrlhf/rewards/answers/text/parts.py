"""Two answers of several parts, compared part by part: (1.7321, 2) and (\\sqrt{3}, 2)."""

import re
from collections.abc import Callable, Sequence

from r3_openrlhf.rewards.answers.text.plain import TEXT_COMMAND

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
Parts = tuple[str, list[str]]  # brackets, and what is between the commas
_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\s*\{(?:[pb]?matrix|array)\}(?:\{[clr| ]+\})?([^{}]*(?:\{[^{}]*\}[^{}]*)*?)\\end\s*\{(?:[pb]?matrix|array)\}\s*[)\]]?"
)
_PROSE = re.compile(r"\$|(?<![a-zA-Z\\])[a-z]{2,} [a-z]{2}")
_HEAD = re.compile(
    r"\s*[A-Z]'?\s*(?=(?:\\left\s*)?\([^()]*[,;][^()]*\)\s*$)|\s*(?:\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])+\s*\)|[a-zA-Z](?:\([a-z]\)|\^\s*(?:\{\s*-\s*1\s*\}|T|\{T\}))?|[A-Z]'?(?:\s*(?:\\(?:cup|cap|setminus|cdot|times)(?![a-zA-Z]))?\s*[A-Z]'?){1,3})\s*(?:=|\\in(?![a-zA-Z]))\s*(?=\(|\[|\\?\{|\\left|\\begin|\\mathbb|\\frac\{\d+\}\{\d+\}\s*\\(?:left|begin))"
)
# the name of a point: "A(3, 4)", "A = (3, 4)"
_POINT = re.compile(r"\s*([A-Z]'?)\s*(?:=\s*)?(?:\\left\s*)?\([^()]*[,;][^()]*\)\s*$")
_CASES = re.compile(
    r"(?:[a-zA-Z]\([a-zA-Z]\)\s*=\s*)?\\begin\s*\{cases\}(.*)\\end\s*\{cases\}", re.DOTALL
)
_IF = re.compile(r"\\text\s*\{\s*(?:,?\s*(?:if|when|for|where)\b)?|(?<=[a-z ])\}")
_BEFORE_CONDITION = re.compile(r"\\text\s*\{\s*,?\s*(?:if|when|for|where|otherwise)\b")
_LINK_IN_TEXT = re.compile(r"(?<=[a-z])(?:,\s*(?:and|or)?|\s+(?:and|or))\s*\}")
_NAME_OF_VALUE = re.compile(r"([a-zA-Z])\s*=\s*(?=[^=]*$)")
_SAYS_LITTLE = re.compile(r"\\text|\b(?:is|are|an?|the|if|when|for|where|then)\b")
_WORD = re.compile(r"(?<![\\a-z])[a-z]{2,}")
OR = re.compile(r"\\text\s*\{\s*or\s*\}|\\lor(?![a-zA-Z])|\bor\b")
UNION = re.compile(rf"{OR.pattern}|\\(?:vee|cup)(?![a-zA-Z])")
INTERSECTION = re.compile(r"\\text\s*\{\s*and\s*\}|\\(?:land|wedge|cap)(?![a-zA-Z])|\band\b")
A_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_GROUPS = re.compile(r";(?:\\ )?|\\text\s*\{\s*or\s*\}|\bor\b|\\\\")


def same_list(answer: str, gold: str, agree: Agree) -> bool | None:
    """Tell whether two texts are one tuple, interval, matrix, set or list. None: neither is any.

    Parts of a tuple are in order, those of a set or a bare list in any; a bare list is read as the
    tuple that the reference is. A comma between digits may group thousands."""
    points = _POINT.match(answer), _POINT.match(gold)
    if points[0] and points[1] and points[0][1] != points[1][1]:
        return False
    answer, gold = without_head(answer), without_head(gold)
    wanted = split_parts(gold)
    if wanted is None or _PROSE.search(gold):
        return None
    brackets, parts = wanted
    has_alternatives = OR.search(answer) is not None
    if has_alternatives and brackets == "" and len(parts) == 1:
        return None  # one value, said in several ways
    if has_alternatives and brackets == "()":
        return False  # "1 or 2" is no point
    if "matrix" in brackets and _is_product_with_matrix(answer):
        return None
    lists = _readings_as_lists(answer, gold)
    if not lists:
        return None
    return any(_same_parts(*of_answer, *of_gold, agree) for of_answer, of_gold in lists)


def _is_product_with_matrix(text: str) -> bool:
    """Tell whether a text has a matrix and more."""
    return "\\begin" in text and _MATRIX.fullmatch(text.strip()) is None


def _readings_as_lists(answer: str, gold: str) -> list[tuple[Parts, Parts]]:
    """Split both texts, with each meaning that their commas may have; without pairs of one value."""
    texts = [(answer, gold)]
    if _FOUR_DIGITS.search(gold):
        texts.append((COMMA_OF_THOUSANDS.sub("", answer), gold))
    if "," in gold + answer:
        texts.append((_spaced(answer), _spaced(gold)))
    lists = []
    for text, other in texts:
        of_answer, of_gold = split_parts(text), split_parts(other)
        if of_answer and of_gold and (len(of_answer[1]) > 1 or len(of_gold[1]) > 1):
            lists.append((of_answer, of_gold))
    return lists


def _same_parts(
    brackets: str, parts: list[str], other: str, wanted: list[str], agree: Agree
) -> bool:
    """Compare the brackets and parts of an answer with those of a reference."""
    if _has_part_of_thousands(parts) and not _has_part_of_thousands(wanted):
        return False  # "(1,000)" is not (1,0)
    if brackets == other == "{}" or "(" in "".join(wanted):
        parts, wanted = _without_repeats(parts), _without_repeats(wanted)
    if len(parts) != len(wanted):
        return False
    if len(parts) > MAX_PARTS and not all(map(_LITERAL.fullmatch, parts)):
        return False
    if brackets != other and not _may_mean_the_same(brackets, other):
        return False
    if other == "()" or brackets == other and brackets not in _LOOSE:
        return all(map(agree, parts, wanted))
    return match(parts, wanted, agree)


def _has_part_of_thousands(parts: list[str]) -> bool:
    """Tell whether a part begins with 0, as after a comma that groups thousands."""
    return any(map(_PART_OF_THOUSANDS.fullmatch, parts))


def _without_repeats(parts: list[str]) -> list[str]:
    """Keep one of the parts that are the same, white space aside: the last, in the first's place."""
    return list({"".join(part.split()): part for part in parts}.values())


def _may_mean_the_same(brackets: str, other: str) -> bool:
    """Tell whether different brackets may be around one list; a set is no tuple."""
    if (brackets, other) == ("{}", "()"):
        return False
    return brackets in _LOOSE and other in _LOOSE


def without_head(text: str) -> str:
    r"""(1,2) of "(x,y) = (1,2)", {1,2} of "x \in \{1,2\}"."""
    head = _HEAD.match(text)
    return text[head.end() :] if head else text


def _spaced(text: str) -> str:
    """ "(1,000, 2,000)" as (1000, 2000): where spaces set off elements, other commas group."""
    return COMMA_OF_THOUSANDS.sub("", text) if COMMA_AND_SPACE.search(text) else text


def decide_by_label(answer: str, gold: str, agree: Agree) -> bool | None:
    """Tell whether the same is said of the same: cases, "9 red, 4 blue", "x=1, y=8". None: no labels."""
    rows, wanted_rows = _rows(answer), _rows(gold)
    if rows and wanted_rows:
        return _same_rows(rows, wanted_rows, agree)
    if "=" in gold:
        groups, wanted_groups = _groups(answer), _groups(gold)
        if groups and wanted_groups:
            return match(groups, wanted_groups, lambda a, b: same_list(a, b, agree) is True)
    values, wanted = _by_label(answer), _by_label(gold)
    if len(wanted) < 2 or values.keys() != wanted.keys() or "" in wanted:
        return None
    return all(agree(values[label], value) for label, value in wanted.items())


def _same_rows(
    rows: list[tuple[str, str]], wanted: list[tuple[str, str]], agree: Agree
) -> bool:
    """Match the rows of cases by condition and value."""
    both_say_otherwise = _has_otherwise(rows) and _has_otherwise(wanted)

    def is_same_row(row: tuple[str, str], other: tuple[str, str]) -> bool:
        if not _same_condition(row[1], other[1], agree, both_say_otherwise):
            return False
        return agree(row[0], other[0])

    return match(rows, wanted, is_same_row)


def _has_otherwise(rows: list[tuple[str, str]]) -> bool:
    """Tell whether a condition is "otherwise"."""
    return any("otherwise" in condition for _, condition in rows)


def _groups(text: str) -> list[str] | None:
    """Split "x=1,y=2; x=3,y=4" into its lists; None: there is one, or one has a single part."""
    groups = [split_parts(group) for group in _GROUPS.split(text)]
    if len(groups) < 2:
        return None
    lists = []
    for group in groups:
        if group is None or len(group[1]) < 2:
            return None
        lists.append(", ".join(group[1]))
    return lists


def _by_label(text: str) -> dict[str, str]:
    """Return the values of a list by what is said of each; empty: unmatched brackets."""
    split = split_parts(text)
    return dict(map(_label, split[1])) if split else {}


def match(some: Sequence, others: Sequence, agree: Callable) -> bool:
    """Tell whether each of some goes with another one of the others, and none is left."""
    left = list(others)
    for item in some:
        partner = next((i for i, other in enumerate(left) if agree(item, other)), None)
        if partner is None:
            return False
        del left[partner]
    return not left


def _rows(text: str) -> list[tuple[str, str]] | None:
    """(value, condition) of each row of cases, those without a condition of their own last."""
    cases = _CASES.fullmatch(text.strip())
    if cases:
        rows = [row.split("&") for row in cases[1].split("\\\\") if row.strip()]
    else:
        rows = _rows_in_words(text)
    if not rows or any(len(row) != 2 for row in rows) or len(rows) > MAX_PARTS:
        return None
    pairs = [
        (value.strip(" ,;~"), _IF.sub(" ", condition).strip(" ,;.~"))
        for value, condition in rows
    ]
    return sorted(pairs, key=lambda pair: "otherwise" in pair[1])


def _rows_in_words(text: str) -> list[list[str]]:
    r"""Value and condition of each part of "0\text{ if }n\text{ is even}, 1\text{ otherwise}"; empty: it is no such text."""
    split = split_parts(_LINK_IN_TEXT.sub("},", text))
    if split is None or len(split[1]) < 2:
        return []
    rows = []
    for part in split[1]:
        condition = _BEFORE_CONDITION.search(part)
        if condition is None or condition.start() == 0:
            return []
        rows.append([part[: condition.start()], part[condition.start() :]])
    return rows


def _same_condition(a: str, b: str, agree: Agree, both_say_it: bool) -> bool:
    """both_say_it: "otherwise" is on both sides; on one alone it is what is left of the others."""
    if "otherwise" in a + b:
        return not both_say_it or ("otherwise" in a) == ("otherwise" in b)
    words = [_WORD.findall(_SAYS_LITTLE.sub(" ", text.lower())) for text in (a, b)]
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


def without_sizes(text: str) -> str:
    r"""Remove \left and \right."""
    return text.replace("\\left", "").replace("\\right", "")


def split_parts(text: str) -> Parts | None:
    """Brackets and top-level parts of a text in one spelling; None: unmatched brackets."""
    text = without_sizes(text.replace(",\\!", ","))
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


_OPEN_OR_CLOSE = re.compile(r"[(){}\[\]]")


def nesting_depth(text: str) -> int:
    """Return the largest number of brackets open at once, of any kind."""
    depth = deepest = 0
    for bracket in _OPEN_OR_CLOSE.findall(text):
        if bracket in "({[":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth = max(0, depth - 1)
    return deepest
