r"""An amount of physics: a number and its unit, "3 kN", "5\,\text{J/(kg K)}", "2.0 \times 10^{-3} m s^{-1}".

In a task of numbers a letter after the number is a unit. In mathematics (comparison.py) it may be a variable, so
single capitals and products of symbols are no units there."""

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from r3_openrlhf.rewards.answers import comparison
from r3_openrlhf.rewards.answers.spelling import unify
from r3_openrlhf.rewards.answers.units import conversion, from_kelvin, in_kelvin, named_units

MAX_CHARS = 200  # of an amount, and of the end of a line in which it is looked for
_DIGITS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"(?<![\w.^{{_\\/])(?<![\^{{][-+−])[-+−]?(?:\\[dt]?frac\s*\{{[\d.]+\}}\s*\{{[\d.]+\}}|(?:{_DIGITS})(?:\s*/\s*\d+(?![\w.]))?)"
    r"(?:[eE][-+−]?\d+(?![\w.]))?(?:\s*(?:\\times|\\cdot|×|x|\*|·)\s*10\s*\^\s*(?:\{\s*[-+−]?\d+\s*\}|[-+−]?\d+))?"
)
# LaTeX around units, and signs that are written in several ways
_SPELLINGS = [
    (
        re.compile(
            r"\\(?:text|mathrm|textrm|mbox|rm|operatorname|unit|textnormal)(?![a-zA-Z])"
        ),
        " ",
    ),
    (re.compile(r"\\(?:left|right|[,;:! ])|[{}$~]|\\(?=[,;:! ])"), " "),
    (re.compile(r"\^\s*\\circ(?![a-zA-Z])|\\degree(?![a-zA-Z])|\\circ(?![a-zA-Z])|º"), "°"),
    (
        re.compile(r"\b(?:degrees?|deg)\s+(?=[CFK]\b|celsius\b|fahrenheit\b)", re.IGNORECASE),
        "°",
    ),
    (re.compile(r"°\s*(?:C\b|celsius\b)", re.IGNORECASE), "°C"),
    (re.compile(r"°\s*(?:F\b|fahrenheit\b)", re.IGNORECASE), "°F"),
    (re.compile(r"\\mu(?![a-zA-Z])\s*|μ"), "µ"),
    (re.compile(r"\\[oO]mega(?![a-zA-Z])|Ω"), "Ω"),
    (re.compile(r"\\(?:AA|angstrom)(?![a-zA-Z])|Å"), "Å"),
    (re.compile(r"\\cdot(?![a-zA-Z])|\\times(?![a-zA-Z])|[·⋅*×•]"), " "),
    (re.compile(r"\bper\b"), "/"),
]
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RAISED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_FACTOR = re.compile(
    r"\s*(?P<sign>[/()])|\s*(?P<name>°?[^\W\d_]+|°)(?:\s*\^\s*(?P<power>[-+]?\d)|(?P<bare>[23]))?"
)
_END = re.compile(r"(?:[\s.*_$}]|\\[\])])*$")
_OPEN = re.compile(r"\\[\[(]|\$")
_MOST_READINGS = 16


@dataclass(frozen=True, slots=True)
class Amount:
    """A number and the units that it may have: of "5 C" coulomb or celsius; (): none is stated."""

    value: Fraction
    units: tuple[str, ...]
    percent: bool = False


@lru_cache(maxsize=4096)
def amount(text: str) -> Amount | None:
    """Return the amount that a text is; None: it is anything else."""
    text = text.strip()
    found = _NUMBER.match(text)
    if found is not None and len(text) <= MAX_CHARS:
        value = comparison.number(unify(found[0].replace("−", "-")))
        units = _units_of(text[found.end() :])
        if value is not None and units is not None:
            return Amount(value.value, units)
    value = comparison.number(unify(text))
    if value is None:
        return None
    return Amount(value.value, (value.unit,) if value.unit else (), value.percent)


def last_amount(text: str) -> Amount | None:
    """Return the amount with which the last line of a text ends; None: it ends with something else."""
    line = _END.sub("", text.strip().rpartition("\n")[2])[-MAX_CHARS:]
    places = [found.start() for found in _NUMBER.finditer(line)]
    tails = (_OPEN.sub("", line[place:]) for place in reversed(places))
    word = line.split()[-1] if line.split() else ""
    found = (amount(tail) for tail in itertools.chain(tails, [word]))
    return next((one for one in found if one is not None), None)


def _units_of(text: str) -> tuple[str, ...] | None:
    """Return the readings of a product of units, "kg*m^2*second^-2"; (): nothing is there, None: no units."""
    for pattern, sign in _SPELLINGS:
        text = pattern.sub(sign, text)
    text = _RAISED.sub(lambda raised: f"^{raised[0].translate(_SUPERSCRIPTS)}", text).strip(
        " ."
    )
    factors: list[tuple[list[str], int]] = []
    signs, below = [1], 1  # of each open bracket, and of what follows a slash
    place = 0
    while place < len(text):
        found = _FACTOR.match(text, place)
        if found is None:
            return None
        place = found.end()
        match found["sign"]:
            case "/":
                below = -1
            case "(":
                signs.append(signs[-1] * below)
                below = 1
            case ")":
                if len(signs) == 1:
                    return None
                signs.pop()
            case _:
                names = named_units(found["name"])
                if not names:
                    return None
                power = int(found["power"] or found["bare"] or 1)
                factors.append((names, power * signs[-1] * below))
    if len(signs) > 1:
        return None
    readings = itertools.product(*(names for names, _ in factors))
    powers = [power for _, power in factors]
    found_units = (
        _product(list(one), powers) for one in itertools.islice(readings, _MOST_READINGS)
    )
    return tuple(dict.fromkeys(filter(None, found_units)))


def _product(names: list[str], powers: list[int]) -> str:
    """Write a product as units.py reads it. In a product a difference of temperatures is meant."""
    if len(names) > 1:
        names = ["kelvin" if name == "celsius" else name for name in names]
    above: list[str] = []
    below: list[str] = []
    for name, power in zip(names, powers, strict=True):
        over, _, under = name.partition("/")  # a unit may be a ratio itself: mile/hour
        above += [f"{over}^{power}"]
        below += [f"{under}^{power}"] if under else []
    product = "/".join("*".join(side) for side in (above, below) if side)
    return product.removesuffix("^1") if len(names) == 1 and not below else product


def amounts_agree(said: Amount, wanted: Amount, *, tolerance: Fraction) -> bool:
    """Tell whether an amount is the other within a relative tolerance. A unit may be missing on one side."""
    if said.percent != wanted.percent and not (said.units or wanted.units):
        shares = (
            Fraction(1, 100 if said.percent else 1),
            Fraction(1, 100 if wanted.percent else 1),
        )
        if _is_near(said.value * shares[0], wanted.value * shares[1], tolerance):
            return True
    if not said.units or not wanted.units:
        return _is_near(said.value, wanted.value, tolerance)
    values = (
        _in_unit(said.value, unit, other)
        for unit, other in itertools.product(said.units, wanted.units)
    )
    return any(
        value is not None and _is_near(value, wanted.value, tolerance) for value in values
    )


def _is_near(value: Fraction, wanted: Fraction, tolerance: Fraction) -> bool:
    return abs(value - wanted) <= tolerance * abs(wanted)


def _in_unit(value: Fraction, unit: str, other: str) -> Fraction | None:
    """Convert an amount; None: the units measure different things."""
    if unit == other:
        return value
    kelvin = in_kelvin(value, unit)
    if kelvin is not None and in_kelvin(value, other) is not None:
        return from_kelvin(kelvin, other)
    factor = conversion(unit, other)
    return None if factor is None else value * factor
