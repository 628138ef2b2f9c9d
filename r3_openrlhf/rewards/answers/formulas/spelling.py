r"""One spelling for what is written in many: Unicode signs, fonts, sizes of brackets, \frac without
braces.

Applied before any comparison, to answer and reference alike. Linear time: the text is hostile."""

import re
import unicodedata
from collections.abc import Callable
from functools import partial

from r3_openrlhf.rewards.answers.amounts.comparison import number, numbers_agree
from r3_openrlhf.rewards.answers.amounts.units import in_one_unit, split_unit, unit_of
from r3_openrlhf.rewards.answers.formulas.real_sets import condition
from r3_openrlhf.rewards.answers.reading.scanner import FULL_WIDTH
from r3_openrlhf.rewards.answers.text.number_words import value_in_words
from r3_openrlhf.rewards.answers.text.parts import A_LETTER, OR, top_level, without_head
from r3_openrlhf.rewards.answers.text.patterns import compiled, table
from r3_openrlhf.rewards.answers.text.plain import in_ascii_signs, in_english

_TABLE = table("spelling.toml")
_compiled = partial(compiled, pieces=_TABLE["pieces"])


def _latex_of(sign: str) -> str:
    """Write a sign as LaTeX does; a command ends with a space."""
    name = unicodedata.name(sign, "")
    letter = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", name)
    text = _SIGNS.get(sign, sign)
    if letter:
        word = letter[2].replace("LAMDA", "LAMBDA")
        text = "\\" + (word.lower() if letter[1] == "SMALL" else word.capitalize())
    return f"{text} " if re.fullmatch(r"\W?\\[a-zA-Z]+", text) else text


_SIGNS = {line[0]: line[2:] for line in _TABLE["signs"].splitlines()}
_GREEK = "".join(map(chr, range(0x391, 0x3CA)))
_UNICODE = str.maketrans(
    {sign: _latex_of(sign) for sign in (*_SIGNS, *_GREEK)}
    | dict.fromkeys("\u00a0\u2009\u202f", " ")
    | dict.fromkeys("\u200b\ufeff", "")
)
_UNICODE |= FULL_WIDTH
_MATH_LETTERS = re.compile("[\U0001d400-\U0001d7ff]")  # 𝑥 and the like


def _plain(match: re.Match) -> str:
    """Write raised, lowered and vulgar signs in ASCII: "-3" for ⁻³, "1/2" for ½."""
    return unicodedata.normalize("NFKC", match[0]).replace("−", "-").replace("⁄", "/")


_DEGREES = _compiled(r"(\d+(?:\.\d+)?)<DEGREES>")


def _mixed(match: re.Match) -> str:
    r"""7\text{ and a half} as 7\frac{1}{2}."""
    part = value_in_words(match[1].replace("-", " "))
    return (
        rf"\frac{{{part.numerator}}}{{{part.denominator}}}\text{{{match[2]}}}"
        if part and part < 1
        else match[0]
    )


def _said_once(match: re.Match) -> str:
    """7 of "7 (seven)"."""
    said = number(match[1])
    return match[1] if said is not None and value_in_words(match[2]) == said.value else match[0]


def _relation(match: re.Match) -> str:
    r"""x \geq 5 of "x is at least 5", [5,\infty) of "all real numbers greater than or equal to 5"."""
    end, is_above = match["end"].strip(" .$}"), bool(match["above"] or match["least"])
    is_closed = bool(match["closed"] or match["least"] or match["most"])
    if match["name"]:
        return f"{match['name']} {'><'[not is_above]}{'=' * is_closed} {end}"
    return (
        f"{'(['[is_closed]}{end},\\infty)" if is_above else f"(-\\infty,{end}{')]'[is_closed]}"
    )


def _said_amount(match: re.Match) -> str:
    r"""5\text{ apples} of "five apples"."""
    words = match[1].split()
    for i in range(len(words) - 1, 0, -1):
        value, rest = value_in_words(" ".join(words[:i])), " ".join(words[i:])
        if value is not None and split_unit(f"2 {rest}")[0] == "2":
            return rf"{value}\text{{ {rest}}}"
    return match[0]


def _residue(match: re.Match) -> str:
    r"""7 of 7 \pmod{12}, but not of 7 \pmod{5}, where it is no remainder."""
    return match[1] if int(match[1]) < int(match[2]) else match[0]


_BY: dict[str, Callable[[re.Match], str]] = {
    "raised": lambda match: f"^{{{_plain(match)}}}",
    "lowered": lambda match: f"_{{{_plain(match)}}}",
    "fraction": lambda match: r"\frac{" + _plain(match).replace("/", "}{") + "}",
    "turned": lambda match: f"{'[('[match[1] == ']']}{match[2]}{'])'[match[3] == '[']}",
    "in_radians": lambda match: _DEGREES.sub(r"\\frac{\1\\pi}{180}", match[0]),
    "without_points": lambda match: match[1].replace(".", ""),
    "residue": _residue,
    "mixed": _mixed,
    "twice": _said_once,
    "relation": _relation,
    "amount": _said_amount,
}


def _replacement(new: str) -> str | Callable[[re.Match], str]:
    """Return what takes a match's place: a text, or the function that a table names."""
    return _BY[new.removeprefix("by ")] if new.startswith("by ") else new


_REWRITES = [(_compiled(pattern), _replacement(new)) for pattern, new in _TABLE["rules"]]
_LEAD = _compiled(r"\s*<TEXT>([^{}]*)\}<GAP>(?:(=)(?!.*=)|[:=])?<GAP>(?=[-+.\d\\$(\[{a-zA-Z])")
_SAYS_NOTHING = _compiled("|".join(_TABLE["leads"]["says_nothing"]), flags=re.IGNORECASE)
_HEDGE = _compiled(rf"\b(?:{_TABLE['leads']['hedges']})\b|n['’]t\b", flags=re.IGNORECASE)
_PLAIN = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?|[a-zA-Z]+")
_FONT = re.compile(
    r"\\(?:boldsymbol|bm|pmb|underline|mathbf|mathit|mathsf|bf)(?![a-zA-Z])\s*\{([^{}]*)\}"
)
_FORMS = {name: _compiled(text) for name, text in _TABLE["forms"].items()}
_BESIDE = [
    (_compiled(text), _compiled(other), _replacement(new))
    for text, other, new in _TABLE["beside"]
]
UNEVALUATED = _FORMS["unevaluated"]
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
# \pi itself is a length or an area as well as an angle
_PART_OF_PI = re.compile(
    r"\\pi\s*\}?\s*(?:\}\s*\{|/)\s*\d|\}\s*\\pi(?![a-zA-Z])|\d\s*\\pi(?![a-zA-Z])"
)
_VALUE_OF = re.compile(r"\s*([a-zA-Z])\s*=([^=]*)")

_Y_VALUE = re.compile(r"^\s*y\s*=(?!.*=)")
_MEANINGS = {
    meaning: sign
    for sign, meanings in _TABLE["words"].items()
    for meaning in meanings.split(", ")
}
_SAYS_THAT = re.compile(
    r"^(?:there (?:is|are)|(?:it|(?:the|this) [a-z]+) (?=has |does )(?:has )?) ?"
)
# "infinitely many such pairs"
_INFINITELY_MANY = re.compile(
    r"^(?:an )?(infinitely many|infinite number|infinite)(?: of)?(?: (?:such|real|positive|distinct|ordered|possible))? [a-z]+s$"
)
MAX_ROWS = 12
MIN_WRITTEN_OUT = 3  # digits of a period that is written out
_TUPLE = re.compile(r"\s*(?:\\left)?\((?!\s*\\begin)")
_IN_DOLLARS = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$|\\\((.+?)\\\)")
_A_WORD = re.compile(r"(?<![\\a-zA-Z])(?!(?:or|and)\b)[a-zA-Z]{2,}")


def unify(answer: str) -> str:
    """Rewrite the answer with LaTeX for Unicode, without fonts and sizes, arguments in braces."""
    text = answer.strip()
    if _PLAIN.fullmatch(text):
        return r"\pi" if text == "pi" else text
    if not text.isascii():
        text = _MATH_LETTERS.sub(
            lambda match: unicodedata.normalize("NFKC", match[0]), in_ascii_signs(text)
        )
        text = in_english(text).translate(_UNICODE)
        if (value := value_in_words(text)) is not None:
            return str(value)
    text = _without_lead(text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _coordinates(text) or _FONT.sub(r"\1", _FONT.sub(r"\1", text))
    return _both_signs(_computed(_once(_system(_without_inner_dollars(text)))))


def _without_lead(text: str) -> str:
    r"""Drop words before a value: "\text{Area is }42", "\text{Area} = 42"; not "\text{at least }42", or several."""
    lead = _LEAD.match(text) if "{" in text else None
    if lead is None:
        return text
    said = lead[1].strip(" \\")
    # in the name of a value, "Area under it = ", such words say nothing of the value, unless they end it
    hedges = [
        found for found in _HEDGE.finditer(said) if not lead[2] or found.end() == len(said)
    ]
    if hedges or not _SAYS_NOTHING.fullmatch(said + (lead[2] or "")):
        return text
    return text if any(map(_LEAD.match, re.split("[,;]", text)[1:])) else text[lead.end() :]


def _without_inner_dollars(text: str) -> str:
    r"""Mathematics in dollar signs, and next to it, as one text: "$\frac12$, x+17"."""
    outside = _IN_DOLLARS.sub(" ", text)
    if outside == text or "$" in outside or _A_WORD.search(outside):
        return text
    return _IN_DOLLARS.sub(lambda match: match[1] or match[2], text)


def _system(text: str) -> str:
    r"""\begin{cases} x=1 \\ y=2 \end{cases} as x=1, y=2; only if each row names a letter."""
    rows = _FORMS["rows"].fullmatch(text)
    if rows is None:
        return text
    said = [row.replace("&", " ") for row in rows[1].split("\\\\") if row.strip()]
    found = [match for row in said if (match := _VALUE_OF.fullmatch(row))]
    return (
        ", ".join(f"{row[1]}={row[2].strip()}" for row in found)
        if len(found) == len(said)
        else text
    )


def _once(text: str) -> str:
    """Reduce a number that is said twice, "1/2 or 0.5", to one."""
    ways = OR.split(text)
    numbers = [found for way in ways if (found := number(way))] if len(ways) > 1 else []
    same = len(numbers) == len(ways) > 1 and all(
        numbers_agree(numbers[0], other) for other in numbers
    )
    return ways[0] if same else text


def _computed(text: str) -> str:
    r"""Return the value after \sum_{k=1}^{4} k = 10: 10."""
    if not UNEVALUATED.search(text) or "=" not in text or re.search(r"=[^=]*,[^=]*=", text):
        return text
    depth, last = 0, -1
    for position, character in enumerate(text):
        depth += (character in "{(") - (character in "})")
        if character == "=" and depth == 0:
            last = position
    return text[last + 1 :].strip() or text


def _both_signs(text: str) -> str:
    r"""\frac{-1\pm\sqrt{5}}{2} as a list of two."""
    signs = _PLUS_MINUS.findall(text)
    if (
        len(signs) != 1
        or "," in text
        and not (text[0] == "(" and len(top_level(text) or "") == 1)
    ):
        return text
    upper, lower = ("+", "-") if signs[0] == "\\pm" else ("-", "+")
    return f"{_PLUS_MINUS.sub(upper, text)}, {_PLUS_MINUS.sub(lower, text)}"


def align(answer: str, reference: str) -> tuple[str, str]:
    r"""Both, where one says more than the other about the same thing, in the form that both have.

    "f(x)=2x" and "y=2x" are both 2x; "x=1, y=2" compared with a pair (1,2) becomes the pair, its
    variables in alphabetical order; "\textbf{(E)} 12" compared with 12 becomes 12, with E it
    becomes E; "x < 1 or x > 2" with a union becomes a union; "k \in \mathbb{Z}" is left out where
    the other does not say it."""
    if answer.isdecimal() and reference.isdecimal():
        return answer, reference
    answer, reference = _beside(answer, reference), _beside(reference, answer)
    if (
        _PART_OF_PI.search(reference)
        and "\\pi" not in answer
        and unit_of(answer) == "degree"
        and unit_of(reference) is None
    ):
        reference = rf"{reference}\text{{ radians}}"  # \frac{\pi}{4} for 45^\circ; degrees that are asked for stay
    return in_one_unit(answer, reference)


def _meaning(words: str) -> str | None:
    r"""Return the sign that a whole answer in words stands for: \infty of "infinitely many pairs"."""
    said = _SAYS_THAT.sub("", words.lower())
    return _MEANINGS.get(_INFINITELY_MANY.sub(r"\1", said))


def _words_beside(text: str, other: str) -> str:
    """Replace words by the sign that the other text uses for them: the empty set for "no solution"."""
    words = _FORMS["whole_text"].fullmatch(text)
    if words is None:
        return text
    alike = _FORMS["whole_text"].fullmatch(other)
    said = number(other)
    wanted = said.value if said else value_in_words(alike[1]) if alike else None
    if wanted is not None and (value := value_in_words(words[1])) is not None:
        return other if said and value == wanted else str(value)
    sign, meant = _meaning(words[1]), other.strip()
    if sign is not None and alike:
        meant = _meaning(alike[1]) or meant
    return sign if sign is not None and sign == meant.replace("{+}", "+") else text


def _renamed(text: str, other: str) -> str:
    """ "f(n)=n+1" for "f(x)=x+1": the variable of a function may have any name."""
    own, wanted = _FORMS["function_of"].match(text), _FORMS["function_of"].match(other)
    if own and _Y_VALUE.match(other):  # "h(t)=2t+3" against "y=2x+3"
        letters = set(A_LETTER.findall(other.partition("=")[2]))
        said = text.partition("=")[2]
        if len(letters) == 1 and letters.isdisjoint(A_LETTER.findall(said)):
            return "y=" + re.sub(rf"(?<![\\a-zA-Z]){own[2]}(?![a-zA-Z])", letters.pop(), said)
    if not own or not wanted or own[1] != wanted[1] or own[2] <= wanted[2]:
        return text
    if re.search(rf"(?<![\\a-zA-Z]){wanted[2]}(?![a-zA-Z])", text):
        return text  # it says something else there
    return re.sub(rf"(?<![\\a-zA-Z]){own[2]}(?![a-zA-Z])", wanted[2], text)


def _beside(text: str, other: str) -> str:
    """Rewrite a text in the form of the other one."""
    text = _renamed(_words_beside(text, other), other)
    if other.startswith("\\mathbb") or _FORMS["matrix"].match(other):
        text = _as_matrix(without_head(text), other)
    for pattern, is_beside, replacement in _BESIDE:
        if pattern.may_match(text) and is_beside.search(other):
            text = pattern.sub(replacement, text).strip() or text
    steps = _progression(text) if "\\ldots" in other else None
    if steps and steps == _progression(other):
        return "{},{},\\ldots,{}".format(*steps)
    text = _as_column(_as_period(text, other), other)
    if condition(other) == other:
        text = condition(text)
    derivative = _FORMS["derivative"].match(text) if "=" in other else None
    if derivative:
        is_same = _is_first_derivative(text, other)
        return text[derivative.end() :].strip() if is_same else text
    return _as_tuple(text) if _TUPLE.match(other) else text


def _is_first_derivative(text: str, other: str) -> bool:
    """Tell whether both texts say what a derivative is, and none of a higher order."""
    if re.search(r"''|\^", text + other):
        return False
    return _FORMS["derivative"].match(other) is not None


def _as_tuple(text: str) -> str:
    """Write values of several letters as a tuple, the letters in alphabetical order."""
    values: dict[str, str] = {}
    parts = text.split(",")
    for part in parts:
        value = _VALUE_OF.fullmatch(part)
        if value is None:
            return text
        values[value[1]] = value[2].strip()
    if len(values) < max(len(parts), 2):
        return text
    return f"({','.join(values[letter] for letter in sorted(values))})"


def _as_matrix(text: str, other: str) -> str:
    r"""Write rows of a program, [[1,2],[3,4]], a vector, (1,2)^T, and diag(1,2) as the other text, a matrix, is."""
    rows = _rows_of_matrix(text, other)
    if rows is None:
        return text
    inside = "\\\\".join(" & ".join(row) for row in rows)
    return rf"\begin{{pmatrix}}{inside}\end{{pmatrix}}"


def _rows_of_matrix(text: str, other: str) -> list[list[str]] | None:
    diagonal = _FORMS["diagonal"].fullmatch(text)
    if diagonal:
        return _diagonal_rows(top_level(diagonal[1]) or [])
    nested = _FORMS["rows_in_brackets"].fullmatch(text)
    if nested:
        return [top_level(row) or [] for row in re.split(r"\]\s*,\s*\[", nested[1])]
    vector = _FORMS["vector"].fullmatch(text)
    if vector is None:
        return None
    entries = top_level(vector[1]) or []
    is_transposed = bool(vector[2])
    is_column = "&" not in other
    if is_transposed and not is_column:
        return None
    if not is_transposed and text.lstrip().startswith(("(", "\\left(")):
        return None
    return [[entry] for entry in entries] if is_column else [entries]


def _diagonal_rows(entries: list[str]) -> list[list[str]]:
    rows = []
    for i, entry in enumerate(entries[:MAX_ROWS]):
        row = ["0"] * len(entries)
        row[i] = entry
        rows.append(row)
    return rows


def _coordinates(text: str) -> str | None:
    r"""2\hat{i}+7\hat{j} as (2,7), or (2,7,0) where a third one is said."""
    if not _FORMS["unit_vector"].search(text):
        return None
    said = {match[2]: match[1].replace(" ", "") for match in _FORMS["term"].finditer(text)}
    if _FORMS["term"].sub("", text).strip() or not said:
        return None
    values = [said.get(name, "0") for name in ("ijk" if "k" in said else "ij")]
    return (
        "("
        + ",".join(
            {"": "1", "+": "1", "-": "-1"}.get(value, value.lstrip("+")) for value in values
        )
        + ")"
    )


def _progression(text: str) -> tuple[int, int, int] | None:
    r"""First, second and last number of "1, 2, 3, \ldots, 50" and of "1 \le n \le 50"."""
    if whole := _FORMS["whole_range"].fullmatch(text):
        return int(whole[1]), int(whole[1]) + 1, int(whole[2])
    row = _FORMS["progression"].fullmatch(text)
    numbers = list(map(int, row[1].replace(" ", "").rstrip(",").split(","))) if row else []
    if row is None or any(
        b - a != numbers[1] - numbers[0] for a, b in zip(numbers, numbers[1:], strict=False)
    ):
        return None
    return numbers[0], numbers[1], int(row[2])


def _as_period(text: str, other: str) -> str:
    r"""0.1666... against an exact number as 0.1\overline{6}; an irrational may repeat by chance."""
    found = (
        _FORMS["written_out"].fullmatch(text.strip())
        if text.rstrip().endswith(("ldots", "..."))
        else None
    )
    exact = number(other) if found else None
    if found is None or exact is None or "." in exact.text and "overline" not in other:
        return text
    return (
        rf"{found[1]}\overline{{{found[2]}}}"
        if len(found[2] + found[3]) >= MIN_WRITTEN_OUT
        else text
    )


def _as_column(text: str, other: str) -> str:
    """Write a column as a pair if the other is one; a binomial as a column, which may look alike."""
    if (
        "{pmatrix}" not in text
        and "{bmatrix}" not in text
        and "binom" not in text
        and "{matrix}" not in text
    ):
        return text
    is_pair = _TUPLE.match(other) and "^" not in other.rpartition(")")[2]
    if is_pair and (column := _FORMS["column"].fullmatch(text.strip())):
        entries = [entry.strip() for entry in column[1].split("\\\\") if entry.strip()]
        return (
            "(" + ",".join(entries) + ")" if len(entries) > 1 and "," not in column[1] else text
        )
    if (two := _FORMS["two_entries"].fullmatch(text.strip())) and _FORMS["column"].fullmatch(
        other.strip()
    ):
        return rf"\begin{{pmatrix}}{two[1]}\\{two[2]}\end{{pmatrix}}"
    return text
