r"""Decide whether an answer that equals the reference is an answer, or still the task. Only for
answers that would be correct.

`x^2-5x+6<0` has the solutions (2,3), `\frac{3}{\sqrt{27}}` is \frac{\sqrt3}{3}: both may be copied.
An answer counts in the form of the reference, or solved: an inequality with a variable alone on a
side, an equation that says what a name or a quantity is, a formula not of the problem. With the
problem's text, what is in it is no answer unless the reference is there too."""

import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from r3_openrlhf.rewards.answers.amounts.comparison import Number, normalise, number
from r3_openrlhf.rewards.answers.amounts.units import unit_of
from r3_openrlhf.rewards.answers.formulas.real_sets import condition
from r3_openrlhf.rewards.answers.formulas.spelling import unify
from r3_openrlhf.rewards.answers.text.parts import (
    A_LETTER,
    COMMA_OF_THOUSANDS,
    without_head,
    without_sizes,
)
from r3_openrlhf.rewards.answers.text.patterns import phrases

MAX_FORMULAS = 60  # of a problem; the first ones
MIN_COPIED_SIZE = 2  # of one that is the whole answer
MIN_SHARE_OF_THE_TASK = 0.5  # of an answer's signs: with less it is worked out
MAX_GROWTH = 1.5  # an answer that is right is seldom half as long again as the reference,
MAX_MORE_SIGNS = 2  # short ones aside, where a sign of multiplication or two makes as much

SameValue = Callable[[str, str], bool]

_SEGMENTS = re.compile(
    r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|\\begin\{((?:align|equation|gather)\*?)\}(.+?)\\end\{\5\}",
    re.DOTALL,
)
_PLAIN_ARITHMETIC = re.compile(
    r"(?:[0-9(√]|(?<![0-9.])\.(?=\d))[-+*/^0-9(){}. ×÷·⋅−√!⁰¹²³⁴⁵⁶⁷⁸⁹]{1,200}[0-9)}!⁰¹²³⁴⁵⁶⁷⁸⁹]"
)
_SAID_FUNCTION = re.compile(
    r"\b(sin|cos|tan|cot|sec|csc)(?:e|ine|gent|angent|ant|ecant)?\s?(?:of\s)?\(?(\d{1,4}(?:\.\d{1,4})?)\s?(?:°|degrees?\b)"
)
_ONE_FUNCTION = re.compile(
    r"\\(?:sin|cos|tan|cot|sec|csc|log|ln)(?![a-zA-Z])(?:[^a-zA-Z\\]|\\(?:frac|pi|circ|left|right)(?![a-zA-Z]))*"
)
_PERCENTAGE = re.compile(r"\d+(?:\.\d+)?\s*\\?%")
_SIMPLE_FRACTION = re.compile(r"(?<![\d.])(\d+)\s*/\s*(\d+)(?![\d.])")
_SCIENTIFIC = re.compile(r"(?:\\times|\\cdot|\*)\s*10\s*\^")
_INEQUALITY = re.compile(r"<|>|\\(?:l|g)(?:eq?|t)(?:slant)?(?![a-zA-Z])|\\neq?(?![a-zA-Z])")
_SIDES = re.compile(rf"{_INEQUALITY.pattern}|=|\\equiv(?![a-zA-Z])|\\approx(?![a-zA-Z])|&")
_CONNECTIVE = re.compile(
    r"\\text\s*\{\s*(?:or|and|for|where|with|if|when)\s*\}|\\(?:lor|land|vee|wedge|cup|quad|qquad)(?![a-zA-Z])|\b(?:or|and)\b|\\\\|;|,"
)
_NAME = re.compile(
    r"[-+]?\|?(?:\\[a-zA-Z]+\s*)?(?:[a-zA-Z]|\\[a-zA-Z]+)'*(?:_\s*(?:\{[^{}]*\}|\w))?'*(?:\s*\([a-zA-Z](?:,[a-zA-Z])*\))?\|?"
)
_BRACKETED = re.compile(
    r"[_^]\s*\{[^{}]*\}|[_^]\s*\\?\w|(?<=[a-zA-Z}'])\s*\([^()=]*\)|(?<=[a-zA-Z}'])\s*\[[^\[\]=]*\]"
)
_SHORT_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{1,2}(?![a-zA-Z])")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|[a-zA-Z]|[-+^=<>!|%']")
_NO_TOKEN = frozenset(
    [
        r"\left",
        r"\right",
        r"\cdot",
        r"\times",
        r"\displaystyle",
        r"\text",
        r"\mathrm",
        r"\quad",
        r"\qquad",
        r"\big",
        r"\Big",
        r"\bigl",
        r"\bigr",
        r"\limits",
        r"\ast",
        r"\cdots",
    ]
)
_DOUBLE_SIGN = re.compile(r"\+(?=[\s({\[]*-)")
_NO_SIGN = re.compile(r"\\(?=%)|\\left|\\right|\\cdot|\\times|[\s*{}()$\[\]~]|\\[,;:! ]")
_SAME_TOKEN = {
    "\\div": "\\frac",
    "\\dbinom": "\\binom",
    "\\leq": "\\le",
    "\\geq": "\\ge",
    "\\lt": "<",
    "\\gt": ">",
}
_LITERAL = re.compile(
    r"[-+]?\s*(?:\d[\d, ]*(?:\.\d*)?|\.\d+)(?:\\overline\s*\{\d+\})?(?:\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*-?\d+\s*\}|\d))?"
    r"|[-+]?\s*(?:\\frac\s*\{\s*[-+]?\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d+\s*/\s*\d+|\d+\s*\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})"
)
_FRACTION = re.compile(
    r"[-+]?\s*(?:\\frac\s*\{\s*([-+]?\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d+)\s*/\s*(\d+))"
)
_SAYS = phrases("form")
_LAST_LETTER = re.compile(r"(?<=\d)[a-zA-Z]$")
_A_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SAID_POWERS = {
    "2": re.compile(r"\bsquare", re.IGNORECASE),
    "3": re.compile(r"\bcube", re.IGNORECASE),
}
_POWER = re.compile(r"(\d+)\s*\^\s*\{?\s*(\d+)\s*\}?")
_ARITHMETIC = re.compile(  # no sign, exponent of ten or fraction's line
    r"[\d)}!%]\s*(?:[-+*(]|\\(?:cdot|times|div|left\s*\()(?![a-zA-Z]))"
)
_ROOT = re.compile(r"\\sqrt\s*\{?\s*(\d{1,9})(?![\d\]])")
_ROOT_AS_POWER = re.compile(r"\^\s*\{\s*-?\s*(?:\\frac|\d+\s*/|\d*\.\d)")
_INVERSE = re.compile(r"\\(sin|cos|tan)\s*\^\s*\{?\s*-\s*1\s*\}?")
# two terms, not 0
_PLUS = re.compile(r"(?<![\d.\w])(?!0\s*\+)[\d.]+\s*\+|[a-zA-Z)}\]!'|%]\s*\+")
_IN_BRACKETS = re.compile(r"\([^()]*\)")
_NUMBER_IN_FRONT = re.compile(r"\s*-?\s*(?:\d|\\frac\{\d+\}\{\d+\})")
_FACTOR = re.compile(r"(?<![\\a-zA-Z^{])[a-zA-Z](?:\^\{?(\d{1,3})\}?)?(?![a-zA-Z]{3})")
_INNERMOST = re.compile(r"[({\[][^(){}\[\]]*[)}\]]")
_SIGN_BETWEEN = re.compile(r"[\w)\]!'|%](?<!\\cdot)(?<!\\times)\s*[-+]")
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus)(?![a-zA-Z])")
_ONE_SET = re.compile(r"[(\[][^()\[\],]+,[^()\[\],]+[)\]]|\\?\{[^{}|:]*\}")
_ABOUT = re.compile(r"\\(?:approx|equiv|simeq|sim)(?![a-zA-Z])")
MAX_ROUNDING = 0.05  # relative: what follows "approximately" may be off by this much


class Formula(NamedTuple):
    """A formula of a problem: one spelling, as text and as a bag of signs, brackets left out."""

    text: str
    plain: str
    signs: Counter

    @property
    def size(self) -> int:
        """The number of its signs, repeated ones included."""
        return self.signs.total()


def objection(answer: str, gold: str, problem: str, same_value: SameValue) -> str | None:
    """Say why an answer that equals `gold` does not count ("unsolved", "restated"); None when it does.

    answer, gold: in one spelling (spelling.unify). same_value: whether two texts have the same
    value."""
    if normalise(answer) == normalise(gold):
        return None
    answer = condition(without_head(answer))
    if _SAYS["taken_back"].search(answer) and not _SAYS["taken_back"].search(gold):
        return "unsolved"
    if _leaves_the_inequality(answer, gold) or _leaves_the_sets(answer, gold):
        return "unsolved"
    if "=" in answer:
        if _is_unsolved_equation(answer, gold, problem, same_value):
            return "unsolved"
    elif not _are_close(_ABOUT.split(answer)):
        return "unsolved"
    if _SAYS["factor"].search(problem) and _has_fewer_factors(answer, gold, problem):
        return "unsolved"
    if problem and _is_restated(answer, gold, problem, same_value):
        return "restated"
    return None


def _leaves_the_inequality(answer: str, gold: str) -> bool:
    """Tell whether an inequality is still to be solved, where the reference has none or a solved one."""
    if "{cases}" in gold:
        return False
    return _is_unsolved_inequality(answer) and not _is_unsolved_inequality(gold)


def _leaves_the_sets(answer: str, gold: str) -> bool:
    """Tell whether an operation on sets is left, where the reference is an interval or a set."""
    if not _SET_OPERATION.search(answer):
        return False
    bare = without_sizes(gold).strip()
    return _ONE_SET.fullmatch(bare) is not None


def is_other_amount(answer: str, gold: str, problem: str) -> bool:
    r"""Tell whether a word changes the amount: "5 dozen" for 5, "\frac{\pi}{3} degrees" for \pi/3."""
    stated, wanted = number(answer), number(gold)
    if _adds_dozens(answer, gold, problem):
        if stated is None or wanted is None:
            return True
        return stated.unit is not None and stated.value == wanted.value
    if problem and stated and wanted and _differs_in_percent(stated, wanted):
        # 0.2% for a share of 0.2, 3% for 3 dogs
        is_share = wanted.value < 1 or "how many" in problem.lower()
        return is_share and _SAYS["percent_asked"].search(problem) is None
    if _swaps_case_of_letter(answer, gold, problem):
        return True
    return _says_degrees(answer, gold, problem)


def _says_degrees(answer: str, gold: str, problem: str) -> bool:
    r"""Tell whether an answer is in degrees for a multiple of \pi: of \pi itself, or of a size that is no angle."""
    if "\\pi" not in gold or unit_of(answer) != "degree":
        return False
    if unit_of(gold):
        return False
    return "\\pi" in answer or _asks_for_a_size(problem)


def _asks_for_a_size(problem: str) -> bool:
    """Tell whether a problem asks for a length, an area or the like, and speaks of no angle."""
    asks = _SAYS["size_asked"].search(problem) is not None
    return asks and _SAYS["angle_asked"].search(problem) is None


def estimates_a_count(answer: str, problem: str) -> bool:
    """Tell whether an answer is about a whole number, where the problem asks how many there are."""
    if not _SAYS["estimates"].search(answer):
        return False
    asks_for_count = _SAYS["count_asked"].search(problem) is not None
    return asks_for_count and _SAYS["estimate_asked"].search(problem) is None


def _differs_in_percent(stated: Number, wanted: Number) -> bool:
    """Tell whether one of two equal numbers is a percentage."""
    return stated.percent != wanted.percent and stated.value == wanted.value


def _adds_dozens(answer: str, gold: str, problem: str) -> bool:
    """Tell whether the answer alone counts in dozens."""
    if not re.search(r"\d", answer) or not _SAYS["dozen"].search(answer):
        return False
    return not _SAYS["dozen"].search(gold) and not _SAYS["dozen"].search(problem)


def _swaps_case_of_letter(answer: str, gold: str, problem: str) -> bool:
    """Tell whether the answer has Mg for mg, where the problem has M and m."""
    in_answer, in_gold, in_problem = (
        set("".join(_SHORT_WORD.findall(text))) for text in (answer, gold, problem)
    )
    for letter in in_answer - in_gold:
        other = letter.swapcase()
        if other in in_gold and {letter, other} <= in_problem:
            return True
    return False


def is_plain(answer: str, gold: str) -> bool:
    """Tell whether it is an answer to any problem: no relation, and one number, name or choice."""
    return answer.isalnum() and _SCIENTIFIC.search(gold) is None


def is_single(gold: str) -> bool:
    """Tell whether a reference is one value: no list, no alternatives, no relation, no words."""
    return not re.search(
        r"[,;<>=]|\\(?:text|pm|mp|cup|cap|le|ge|ne|lor|in|begin)|[a-zA-Z]{2} |\bor\b|\band\b",
        gold,
    )


def is_copied(answer: str, gold: str, problem: str) -> bool:
    """Tell whether the answer is, by signs, a formula of the problem, no number or reference."""
    own, wanted = _formula(answer), _formula(gold)
    part_of_wanted = (
        own.signs == wanted.signs or own.signs <= wanted.signs and "=" not in answer
    )
    if (
        own.size < MIN_COPIED_SIZE
        or part_of_wanted
        or own.plain == wanted.plain
        or is_literal(answer)
    ):
        return False
    return own.plain in {formula.plain for formula in formulas(problem)}


# Inequalities


def _is_unsolved_inequality(text: str) -> bool:
    """Tell whether some inequality has no side that is a variable alone, and on no other side."""
    for piece in _CONNECTIVE.split(text):
        if not _INEQUALITY.search(piece):
            continue
        sides = [side.strip(" $&") for side in _SIDES.split(piece)]
        if not any(
            _NAME.fullmatch(side)
            and not any(_mentions(other, side) for j, other in enumerate(sides) if j != i)
            for i, side in enumerate(sides)
        ):
            return True
    return False


def _mentions(text: str, name: str) -> bool:
    letters = set(A_LETTER.findall(name)) or {name.strip("|-+")}
    return any(
        re.search(rf"(?<![\\a-zA-Z]){re.escape(letter)}(?![a-zA-Z])", text)
        for letter in letters
    )


# Equations


def _is_unsolved_equation(answer: str, gold: str, problem: str, same_value: SameValue) -> bool:
    """Tell whether a part is an equation still to be solved: `x+1=2` for 2, `2x+3=7` for x=2."""
    if "=" in gold and not _is_value_of(gold):
        return False  # the reference is an equation: of a line, a circle
    for piece in _CONNECTIVE.split(answer):
        if "=" not in piece or _INEQUALITY.search(piece):
            continue
        sides = [side.strip(" $&") for side in piece.split("=")]
        left, right = sides[0], sides[-1]
        if left == right:
            return not _is_nonzero(left)  # 12 = 12 is 12; 0 = 0 says nothing
        if _contradicts_itself(sides):
            return True
        if not left or not right or _is_quantity(left) or _is_quantity(right):
            continue
        if _asked_for(left, piece, problem):
            continue
        if not _ends_a_computation(sides, same_value):
            return True
    return False


def _is_nonzero(side: str) -> bool:
    """Tell whether a side is a number as one writes it down, other than 0."""
    value = number(side) if is_literal(side) else None
    return value is not None and value.value != 0


def _contradicts_itself(sides: list[str]) -> bool:
    """Tell whether a chain of equations has unequal numbers after its first side: x = 6 = 5."""
    if len(sides) < 3:
        return False
    values = set()
    for side in sides[1:]:
        stated = number(side)
        if stated is not None and not stated.percent:
            values.add(stated.value)
    return not _within_rounding(list(values))


def _ends_a_computation(sides: list[str], same_value: SameValue) -> bool:
    """Tell whether the last side of an equation equals the first, or the one before it."""
    if same_value(sides[0], sides[-1]):
        return True
    return len(sides) > 2 and same_value(sides[-2], sides[-1])


def _within_rounding(values: list[Fraction]) -> bool:
    """Tell whether numbers differ by no more than MAX_ROUNDING of the largest."""
    if len(values) < 2:
        return True
    return max(values) - min(values) <= MAX_ROUNDING * max(map(abs, values))


def _are_close(sides: list[str]) -> bool:
    """Tell whether the numbers among them are about the same: 22/7 and 3.14, not 5 and 7."""
    numbers = [number(side.strip()) for side in sides]
    return _within_rounding([stated.value for stated in numbers if stated is not None])


def _is_value_of(equation: str) -> bool:
    """Tell whether it says what a name is, without another unknown: x=2, but not y=2x+1."""
    left, _, right = equation.partition("=")
    return bool(_NAME.fullmatch(left.strip())) and not A_LETTER.search(right)


def _is_quantity(side: str) -> bool:
    r"""Tell whether it only names the question: x, m+n, f(2), P(A), |AB|, \sin x; not x+1, 2x, 6."""
    bare = _BRACKETED.sub("", _BRACKETED.sub("", side))
    return (
        not re.search(r"\d", bare)
        and re.search(r"[a-zA-Z]", re.sub(r"\\(?:frac|sqrt|cdot|times|pi)", "", bare))
        is not None
    )


def _asked_for(left: str, equation: str, problem: str) -> bool:
    """Tell whether the left side is in the problem, with letters, but not all: "find 2x+3y"."""
    own, whole = _formula(left), _formula(equation)
    plain = (
        {formula.plain for formula in formulas(problem)}
        if problem and re.search("[a-zA-Z]", left)
        else set()
    )
    return own.plain in plain and whole.plain not in plain


# Copies of the problem


def _is_restated(answer: str, gold: str, problem: str, same_value: SameValue) -> bool:
    """Tell whether an answer of `gold`'s value is still the task: copied from the problem or moved."""
    if answer.isalnum():  # 1500 where the problem asks for 1500 in scientific notation
        return _SAYS["powers_asked"].search(problem) is not None and answer in _numbers(problem)
    said = _said_by(answer)
    if is_literal(said):
        if (
            "=" in answer
            and is_copied(answer, gold, problem)
            or _is_unreduced(said, gold, problem, same_value)
        ):
            return True
        return "=" not in answer and _other_notation(said, gold, problem)
    return (
        is_copied(answer, gold, problem)
        or is_copied(said, gold, problem)
        or _leaves_the_arithmetic(said, gold, problem)
        or any(
            _is_unfinished(said, formula, gold, problem) and same_value(formula.text, gold)
            for formula in formulas(problem)
        )
    )


def _said_by(answer: str) -> str:
    """Return the side of an equation with the value: 60 of 60=3*4*5, x+1 of y=x+1; else all of it."""
    if "=" not in answer or _INEQUALITY.search(answer):
        return answer
    first, last = answer.partition("=")[0], answer.rpartition("=")[2]
    return first if is_literal(first) and not is_literal(last) else last


def _is_unfinished(said: str, formula: Formula, gold: str, problem: str) -> bool:
    """Tell whether most signs are the task's, or it is much longer or less simple than the reference."""
    own, wanted = _formula(said), _formula(gold)
    if (
        formula.plain == wanted.plain
        or formula.signs <= wanted.signs
        and not _SAYS["factor"].search(problem)
    ):
        return False  # it is the reference, or a part of it
    if not _ONE_FUNCTION.search(gold) and all(
        _ONE_FUNCTION.fullmatch(text) for text in (said, formula.text)
    ):
        return True  # \cos 75^\circ where the task is \sin 15^\circ
    if formula.signs <= own.signs and formula.size > MIN_SHARE_OF_THE_TASK * own.size:
        return True
    much_longer = own.size > MAX_GROWTH * wanted.size + MAX_MORE_SIGNS
    if formula.size > wanted.size and (much_longer or is_literal(gold)):
        return True
    return _is_less_simple(said, gold, problem)


def _numbers(text: str) -> set[str]:
    return set(_A_NUMBER.findall(COMMA_OF_THOUSANDS.sub("", text)))


def _leaves_the_arithmetic(answer: str, gold: str, problem: str) -> bool:
    """Tell whether it is a sum or product of numbers of the problem, for a number: 12-5 for 7.

    A power counts as written down (2^{10} subsets), unless the problem says it ("12 squared").
    """
    if not is_literal(gold) or is_literal(answer) or number(answer) is None:
        return False
    if power := _POWER.fullmatch(answer):
        said = _SAID_POWERS.get(power[2])
        return (
            said is not None
            and said.search(problem) is not None
            and power[1] in _numbers(problem)
        )
    return _ARITHMETIC.search(answer) is not None and _numbers(answer) <= _numbers(problem)


def _is_unreduced(answer: str, gold: str, problem: str, same_value: SameValue) -> bool:
    """Tell whether both are fractions, this one reducible, and the problem's is to be simplified."""
    own, wanted = _FRACTION.fullmatch(answer.strip()), _FRACTION.fullmatch(gold.strip())
    if own is None or wanted is None or not _SAYS["simplify"].search(problem):
        return False
    top, bottom = (int(group) for group in own.groups() if group)
    said = _SAYS["lowest"].search(problem) is not None
    return gcd(top, bottom) > 1 and (
        said or any(same_value(formula.text, gold) for formula in formulas(problem))
    )


def _is_less_simple(answer: str, gold: str, problem: str) -> bool:
    """Tell whether a rewritten formula is unfinished: a sum for a term, or for factors, larger roots."""
    wanted = _formula(gold).signs
    if _PLUS.search(answer) and not wanted["+"] and not wanted["-"]:
        return True
    if not _SAYS["simplify"].search(problem):
        return False
    roots, wanted_roots = (list(map(int, _ROOT.findall(text))) for text in (answer, gold))
    if roots and wanted_roots and max(roots) > max(wanted_roots):
        return True
    return bool(wanted_roots) and not roots and _ROOT_AS_POWER.search(answer) is not None


def _has_fewer_factors(answer: str, gold: str, problem: str) -> bool:
    """Tell whether a product has fewer factors than the reference, among them a number in front
    where the problem says "completely"."""
    own, wanted = _num_factors(answer), _num_factors(gold)
    if _SAYS["completely"].search(problem):
        own += _NUMBER_IN_FRONT.match(answer) is not None
        wanted += _NUMBER_IN_FRONT.match(gold) is not None
    return own < wanted


def _num_factors(text: str) -> int:
    """Count letters and brackets of a product, with their powers; 1: a sum."""
    if _is_sum(text):
        return 1
    text = without_sizes(text)
    while (shorter := _IN_BRACKETS.sub(" x", text)) != text:
        text = shorter
    return sum(int(power or 1) for power in _FACTOR.findall(text))


def _is_sum(text: str) -> bool:
    """Tell whether a sign is between terms outside of brackets."""
    while (shorter := _INNERMOST.sub("x", text)) != text:
        text = shorter
    return _SIGN_BETWEEN.search(text) is not None


def _other_notation(answer: str, gold: str, problem: str) -> bool:
    """Tell whether a number is copied where another notation is asked: 3/20 as a decimal, 34/14."""
    own_plain = _formula(answer).plain
    if not is_literal(gold) or own_plain == _formula(gold).plain:
        return False
    if not any(own_plain == formula.plain for formula in formulas(problem)):
        return False
    own, wanted = _FRACTION.fullmatch(answer.strip()), _FRACTION.fullmatch(gold.strip())
    if own is not None and (wanted is not None or gold.isdecimal()):
        return True  # two fractions of one value, or 6/2 for 3: the other is the reduced one
    repeating = "\\overline" in answer and "\\overline" not in gold
    return (
        repeating
        or _notation(answer) != _notation(gold)
        and _SAYS["notation_asked"].search(problem) is not None
    )


def _notation(text: str) -> str:
    """Name the notation in which a number is written."""
    if _FRACTION.fullmatch(text.strip()):
        return "fraction"
    if _PERCENTAGE.search(text):
        return "percent"
    return "scientific" if _SCIENTIFIC.search(text) else "decimal"


def is_literal(text: str) -> bool:
    """Tell whether it is a number as one writes it down, maybe in brackets, not one that is still to be computed."""
    text = text.strip()
    found = number(text)
    return found is not None and _LITERAL.fullmatch(found.text.strip("() ")) is not None


@lru_cache(maxsize=1024)
def formulas(problem: str) -> tuple[Formula, ...]:
    """Return the formulas of a problem, whole and in parts."""
    found: dict[str, None] = {}
    for match in _SEGMENTS.finditer(problem):
        found[next(group for group in (*match.groups()[:4], match[6]) if group)] = None
    prose = _SEGMENTS.sub(" ", problem)
    for pattern in (_PLAIN_ARITHMETIC, _PERCENTAGE):
        for match in pattern.finditer(prose):
            found[match[0].strip().rstrip(" .")] = None
    for function in _SAID_FUNCTION.finditer(prose):
        found[rf"\{function[1]} {function[2]}^\circ"] = None
    texts: dict[str, None] = {}
    for segment in list(found)[:MAX_FORMULAS]:
        whole = unify(segment.strip().rstrip(".,;:?").strip())
        for part in (whole, *_SIDES.split(whole), *re.split(r"\\\\|\\quad|\\qquad|;", whole)):
            if part.strip(" &,."):
                texts[re.sub(r"^[ &,]*(?:\.(?!\d)[ &,.]*)?", "", part).rstrip(" &,.")] = None
    return tuple(_formula(text) for text in list(texts)[: 3 * MAX_FORMULAS])


@lru_cache(maxsize=4096)
def _formula(text: str) -> Formula:
    text = _INVERSE.sub(r"\\arc\1 ", text.strip().rstrip("."))
    in_signs = _DOUBLE_SIGN.sub("", text.replace("/", "\\frac ").replace("÷", "\\frac "))
    signs = [
        _SAME_TOKEN.get(sign, sign)
        for sign in _TOKEN.findall(in_signs)
        if sign not in _NO_TOKEN
    ]
    return Formula(
        text, _NO_SIGN.sub("", _SIMPLE_FRACTION.sub(r"\\frac{\1}{\2}", text)), Counter(signs)
    )


def with_factors(text: str, problem: str) -> str:
    r"""6m as 6 \cdot m, where the problem has a variable m: it is no unit."""
    letter = _LAST_LETTER.search(text)
    if letter is None or not any(
        formula.size > 2 and formula.signs[letter[0]] for formula in formulas(problem)
    ):
        return text
    return rf"{text[: letter.start()]} \cdot {letter[0]}"
