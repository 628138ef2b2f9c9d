"""Units of an answer. A missing unit is forgiven; another is not, unless the amount is equal."""

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from r3_openrlhf.rewards.answers.text.number_words import is_number_word
from r3_openrlhf.rewards.answers.text.patterns import phrases, table

_TABLE = table("units.toml")
_PREFIXES, _PREFIXED, _PLAIN_UNITS, _COUNTS = map(
    _TABLE.pop, ("prefixes", "prefixed", "plain", "counts")
)
_SPEEDS, _SYMBOLS, _POWERS, _CURRENCY = map(
    _TABLE.pop, ("speeds", "symbols", "powers", "currencies")
)
AMOUNT_SYMBOLS: dict[str, list[str]] = _TABLE.pop("amounts")
_AMOUNT_PREFIXES: dict[str, str] = _TABLE.pop("amount_prefixes")
# a number of base units, and their powers: 1 km/hour is (1000/3600, {"m": 1, "second": -1})
Dimension = tuple[Fraction, dict[str, int]]
_DIMENSIONS: dict[str, Dimension] = {}
_UNITS = {word: words.split()[0] for words in _TABLE["others"] for word in words.split()}
_UNITS |= {word: unit for unit, (_, words) in _COUNTS.items() for word in words.split()}


def _define(unit: str, size: str, words: Iterable[str], factor: Fraction) -> None:
    """Enter a unit that is so many times "0.3048 m", or a base unit: "1 m" for m."""
    count, *parts = size.split()
    value, powers = factor * Fraction(count), dict[str, int]()
    for name, _, power in (part.partition("^") for part in parts):
        if name == unit or name not in _DIMENSIONS:
            powers[name] = int(power or 1)
            continue
        of_one, below = _raise(_DIMENSIONS[name], int(power or 1))
        value *= of_one
        powers |= below
    _DIMENSIONS[unit] = value, powers
    for word in words:
        _UNITS.setdefault(word, unit)


def _raise(dimension: Dimension, power: int) -> Dimension:
    return dimension[0] ** power, {name: n * power for name, n in dimension[1].items()}


def _define_prefixed(unit: str, size: str, symbol: str, prefixes: str, words: str) -> None:
    """Enter a unit and, with each of its prefixes, "km kilometer 千米"."""
    _define(unit, size, words.split(), Fraction(1))
    for prefix in prefixes.split():
        factor, latin, chinese = _PREFIXES[prefix]
        signs = [prefix + symbol]
        if prefix == "µ":
            signs += ["μ" + symbol, "u" + symbol]
        named = [(latin if word.isascii() else chinese) + word for word in words.split()]
        made = prefix + unit
        _define(made, size, [*named, *map(str.lower, signs)], Fraction(factor))
        _SYMBOLS.update(dict.fromkeys(signs, made))


for _unit, _row in _PREFIXED.items():
    _define_prefixed(_unit, *_row)
for _unit, (_size, _words) in _PLAIN_UNITS.items():
    _define(_unit, _size, _words.split(), Fraction(1))


def _define_amounts(unit: str, size: str, symbol: str) -> None:
    """Enter a unit's symbol with each SI prefix, for amounts alone; words of mathematics stay as they are."""
    AMOUNT_SYMBOLS.setdefault(symbol, [unit])
    factors = {prefix: row[0] for prefix, row in _PREFIXES.items()} | _AMOUNT_PREFIXES
    for prefix, factor in factors.items():
        made = prefix + unit
        if made not in _DIMENSIONS:
            _define(made, size, [], Fraction(factor))
        for sign in ("µ", "u") if prefix == "µ" else (prefix,):
            AMOUNT_SYMBOLS.setdefault(sign + symbol, [made])


for _unit, (_size, _symbol, *_) in _PREFIXED.items():
    _define_amounts(_unit, _size, _symbol)
_SEPARATORS = re.compile(r"\\[,;: ]|\\cdot(?![a-zA-Z])|[~⋅·]")
_SAID_POWER = re.compile(r"\s*([a-zµμ-]+)\s+(squared|cubed)(?![a-z])")
_FACTOR = re.compile(r"(/?)\s*([a-zA-Zµμω]+)(?:\s*\^\s*\{?\s*(-?[123])\s*\}?)?")
_EXPONENT = re.compile(r"\s*\^\s*\{?\s*-?[123]\s*\}?\s*$")
_CURRENCY_SIGN = re.compile(r"^\s*(?:\\text\s*\{\s*)?[-+]?\s*(\\\$|[€£¥₹])")
_CURRENCY_BEHIND = re.compile(r"^\s*[-+]?\d[\d.,' ]{0,40}([€£¥₹])\s*$")
_CIRC = r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|°)"
_OHM = re.compile(r"\\Omega(?![a-zA-Z])\s*")
_DEGREES = re.compile(rf"{_CIRC}\s*(?:\\(?:text|mathrm)\s*\{{)?\s*([CF]?)\s*\}}?\s*\$?$")
_WORDS_OF_UNITS = r"a-zA-Z ./~¢µμωΩ\u4e00-\u9fff⋅·-"
_WRAPPED = re.compile(
    rf"\s*\\(?:text|mbox|textrm|mathrm|textnormal|textbf|textit|mathit|operatorname)\s*\{{"
    rf"((?:[{_WORDS_OF_UNITS}]|\\[,;: ]|\\cdot(?![a-zA-Z])|\^\s*\{{?\s*-?[123]\s*\}}?)*)\}}(\s*\^\s*\{{?-?[123]\}}?)?$"
)
_PLAIN = re.compile(
    r"(?<=[\d)}])\s*((?:square |cubic |sq\.? |cu\.? )?[a-zA-ZµμΩ]+(?:(?:/| per )[a-zA-Z]+)?|[\u4e00-\u9fff]+(?: ?/ ?[\u4e00-\u9fff]+)?|¢|[ap]\.m\.?)"
    r"(\s*\^\s*\{?[23]\}?|[²³])?$"
)
# "9+4" before t, and what has letters of its own
_SUM = re.compile(r"[\da-zA-Z)}\]]\s*[-+]|\\[a-zA-Z]*\{[^{}]*[a-zA-Z]")
A_RATE = re.compile(
    r"(?:\\(?:text|mathrm)\s*\{\s*)?(?:/|(?<![a-zA-Z])per(?![a-zA-Z]))\s*(?:\\(?:text|mathrm)\s*\{)?\s*([a-zA-Z]+)\s*\}?\s*$"
)
_SPACE = r"(?:\s|\\[,;:! ]|~)"
# after a letter or a sign it may be a product as well: "5\\pi cm", "x m", "\\pi h"
_LOOSE = re.compile(
    rf"(?:\\(?:pi|theta|alpha|beta|phi|lambda|mu|omega){_SPACE}*|(?<![a-zA-Z\\])[a-zA-Z]{_SPACE}+|[\d)}}]{_SPACE}+)"
    r"(?P<unit>(?:square |cubic |sq\.? |cu\.? )?[a-zA-Z]+(?:(?:/| per )[a-zA-Z]+)?)(?P<power>\s*\^\s*\{?[23]\}?|[²³])?$"
)
_SPACE_BEHIND = re.compile(rf"(?:{_SPACE}|\\$)+$")
# things counted, in the plural: "red balls", "pages per day", "inches tall", "of them"
_COUNTED = (
    r"(?:[a-z]{3,20} ){0,3}(?:[a-z]{2,19}s|people|children|men|women|feet|fish|sheep|dice|mice|teeth)"
    r"(?: squared| cubed| per [a-z]{3,20}(?: squared)?)?"
)
_AFTER_IT = r"(?: (?:left|old|tall|long|wide|high|deep|away|apart|each|total|in total|in all|altogether|remaining))?"
# of words that say another number, or a bound, it is none: 万 倍 多 以上
_COUNTED_IN_CHINESE = re.compile(
    r"\s*([-+]?\d[\d,]{0,20}(?:\.\d{1,20})?)\s*(?![^\s]*[万亿千百十两倍半多余几或不非无以上下约至超近负分之左右的是])[\u4e00-\u9fff]{1,6}"
)
_NOUNS = re.compile(
    rf"([-+]?\d[\d,]{{0,20}}(?:\.\d{{1,20}})?)\s+({_COUNTED}){_AFTER_IT}", re.IGNORECASE
)
_COMMENT = re.compile(r"\\text\s*\{\s*(?:\((?!or\b|not\b)[^(){},;/]*\)|is the answer)\s*\}$")
_ONE_LETTER = re.compile(r"(?<![a-zA-Z])[a-zA-Z]$")  # outside of \\text{} also a factor
_SAYS = phrases("units")
_NAMED = re.compile(_COUNTED + _AFTER_IT)
_IN_T = re.compile(rf"(?<=\d){_SPACE}*(?:\\(?:text|mathrm)\s*\{{{_SPACE}*t\s*\}}|t)$")
_IRRATIONAL = re.compile(r"\\(?:pi|sqrt)(?![a-zA-Z])")


def split_unit(text: str) -> tuple[str, str | None]:
    """("15", "cm^2") for "15\\text{ cm}^2", "15 square centimeters"; unit None: unknown.

    In \\text{} after a number, and after a plain number anywhere, things counted go too: plural
    words ("8 people", "5\\text{ red apples}"). Words of another number stay ("7\\text{ point
    five}")."""
    if _OHM.search(text):  # "m\\Omega"
        rest, unit = split_unit(_OHM.sub("Ω", text))
        return (rest, unit) if unit else (text, None)
    if match := _WRAPPED.search(text):
        unit = _known(match[1], match[2])
        words = match[1].replace("~", " ").strip(" .,")
        if (
            unit is None
            and words
            and not (_SAYS["says_little"].fullmatch(words) or _are_counted(words.lower()))
        ):
            return text, None
        return text[: match.start()], unit
    if (match := _PLAIN.search(text)) and (unit := _known(match[1], match[2])):
        if (
            len(match[1]) > 1
            or text[match.start() - 1].isdigit()
            and not _SUM.search(text[: match.start()])
        ):
            return text[: match.start()], unit
    if counted := _COUNTED_IN_CHINESE.fullmatch(text):
        return counted[1], None
    if (match := _NOUNS.fullmatch(text)) and _are_counted(match[2].lower()):
        return match[1], _known(match[2], None)
    return text, None


def _are_counted(words: str) -> bool:
    return _NAMED.fullmatch(words) is not None and not (
        _SAYS["no_unit"].search(words)
        or _SAYS["no_noun"].search(words)
        or any(map(is_number_word, words.split()))
    )


@lru_cache(maxsize=64)  # a comparison asks more than once
def unit_of(answer: str) -> str | None:
    """Return the unit that an answer states, by a sign or a word; None: no known one."""
    if sign := _CURRENCY_SIGN.match(answer) or _CURRENCY_BEHIND.match(answer):
        rate = A_RATE.search(answer)
        below = _one(rate[1].lower()) if rate else None
        return f"{_CURRENCY[sign[1]]}/{below}" if below else _CURRENCY[sign[1]]
    if degrees := _DEGREES.search(answer):
        return {"C": "celsius", "F": "fahrenheit"}.get(degrees[1], "degree")
    return _apart(answer.removesuffix("."))[1]


def in_one_unit(answer: str, reference: str) -> tuple[str, str]:
    r"""Both without units, the answer scaled: "300\pi cm" against "3\pi m" is 300\pi/100.

    A unit that one alone states goes. Plain numbers, and units of different kinds, stay.
    """
    if not (_IRRATIONAL.search(answer) and _IRRATIONAL.search(reference)):
        return answer, reference
    (mine, unit), (theirs, other) = _apart(answer), _apart(reference)
    if unit and other and unit != other and (factor := conversion(unit, other)):
        return rf"\frac{{{factor.numerator}}}{{{factor.denominator}}} \cdot ({mine})", theirs
    is_only_one = (unit_of(answer) is None) != (unit_of(reference) is None)
    return (mine, theirs) if is_only_one else (answer, reference)


def with_tonnes(text: str, other: str) -> str:
    r"""3\text{ tonne} of "3 t" beside another amount of mass; elsewhere t is a variable."""
    if not _IN_T.search(text):
        return text
    unit = unit_of(other)
    is_mass = unit is not None and conversion(unit, "tonne") is not None
    return _IN_T.sub(r"\\text{ tonne}", text) if is_mass else text


def without_unit(text: str) -> str:
    """Remove the unit, the counted things or the comment in brackets after a text."""
    text = _COMMENT.sub("", text.strip())
    return text if _ONE_LETTER.search(text) else _apart(text)[0]


def _apart(text: str) -> tuple[str, str | None]:
    """Split a text from the unit after it; a bare letter counts only if it is no factor."""
    text = text.strip()
    if (loose := _LOOSE.search(text)) and (len(loose["unit"]) > 1 or loose["power"]):
        unit = _known(loose["unit"], loose["power"])
        return (
            (_SPACE_BEHIND.sub("", text[: loose.start("unit")]), unit) if unit else (text, None)
        )
    rest, unit = split_unit(text)
    return _SPACE_BEHIND.sub("", rest), unit


def conversion(unit: str, other: str) -> Fraction | None:
    """Count the `other` in one `unit`; None: they measure different things, or unknown."""
    (size, powers), (other_size, other_powers) = _dimension(unit), _dimension(other)
    if powers == other_powers:
        return size / other_size
    if "unit" in {*powers, *other_powers} and [*powers.values()] == [*other_powers.values()]:
        return Fraction(1)  # units of length are whatever the other says
    if {unit.partition("/")[0], other.partition("/")[0]} == {"dollar"}:
        return Fraction(1)  # "$5" for "$5 per hour": a missing rate is forgiven
    return None


def _dimension(unit: str) -> Dimension:
    """Multiply out the units of "kg*m/second^2"; those that are not in the table stand for themselves."""
    size, powers = Fraction(1), dict[str, int]()
    above, _, below = unit.partition("/")
    for sign, side in ((1, above), (-1, below)):
        for name, _, power in (part.partition("^") for part in filter(None, side.split("*"))):
            one = _DIMENSIONS.get(name, (Fraction(1), {name: 1}))
            value, of_one = _raise(one, sign * int(power or 1))
            size *= value
            for base, n in of_one.items():
                powers[base] = powers.get(base, 0) + n
    return size, {name: n for name, n in powers.items() if n}


def named_units(name: str) -> list[str]:
    """Return the units that a word or a symbol after a number may mean, in any of its prefixes; []: none."""
    if name in AMOUNT_SYMBOLS:
        return AMOUNT_SYMBOLS[name]
    unit = _SYMBOLS.get(name) or _SPEEDS.get(name.lower()) or _one(name.lower())
    return [unit] if unit else []


def from_kelvin(kelvin: Fraction, unit: str) -> Fraction:
    """Convert a temperature from kelvin to celsius or fahrenheit, or leave it."""
    scale = _KELVIN.get(unit)
    return (kelvin - scale[1]) / scale[0] if scale else kelvin


_KELVIN = {
    "celsius": (Fraction(1), Fraction("273.15")),
    "fahrenheit": (Fraction(5, 9), Fraction("459.67") * 5 / 9),
}


def in_kelvin(value: Fraction, unit: str | None) -> Fraction | None:
    """Convert a temperature to kelvin; None: the unit is of something else."""
    if unit == "kelvin":
        return value
    scale = _KELVIN.get(unit or "")
    return value * scale[0] + scale[1] if scale else None


def asked_unit(problem: str, stated: str) -> str | None:
    """Return the unit in which the problem wants a number, where an answer that states another
    means another amount: "dollar" for an answer in cents. Of two that do not convert, either may be."""
    asked = [
        unit
        for words in _SAYS["asked"].findall(problem)
        if (unit := _known(words.lower(), None))
    ]
    others = (unit for unit in asked if stated not in asked or conversion(unit, stated))
    return next(
        (
            unit
            for unit in others
            if unit != stated and not (unit == "degree" and stated in _KELVIN)
        ),
        None,
    )


def count_of(unit: str | None) -> int | None:
    """Count the things in one of it: 12 for a dozen; None for other units."""
    return _COUNTS[unit][0] if unit in _COUNTS else None


def _known(words: str, power: str | None) -> str | None:
    """Write a unit's name in one spelling: "m/second" for m/s, m s^{-1}; "/day" for "pages per day"."""
    symbol = words.strip(" ~")
    if symbol in _SYMBOLS:
        return _raised(_SYMBOLS[symbol], power)
    if len(symbol) == 1 and symbol.isascii() and symbol.isupper() and symbol != "L":
        return None
    text = _SEPARATORS.sub(
        " ",
        words.lower()
        .replace(".", "")
        .replace("per mille", "permille")
        .replace("nautical mile", "nmi")
        .replace("light year", "light-year"),
    )
    text = text.replace("平方", " square ").replace("立方", " cubic ").replace("每", "/")
    text = _SAID_POWER.sub(lambda said: f" {said[1]}^{_POWERS[said[2]]}", text).strip()
    if text in _SPEEDS:
        return _SPEEDS[text]
    if product := _product(words, power or ""):
        return product
    sides = [side.strip() for side in re.split(r"/|\bper\b", text)]
    if len(sides) == 2 and (below := _with_exponent(sides[1], None)):
        above = _SYMBOLS.get(symbol.partition("/")[0]) or _with_exponent(sides[0], None) or ""
        return f"{above}/{_raised(below, power)}"
    return _with_exponent(text, power) if len(sides) == 1 else None


def _product(words: str, power: str) -> str | None:
    """ "kg*m/second" of "kg m/s", "kg·m·s^{-1}"; None: not all are units."""
    powers: dict[str, int] = {}
    if not re.search(r"[/^·⋅]|\\cdot", words + power):
        return None  # "degrees Celsius"
    for slash, name, exponent in _FACTOR.findall(_SEPARATORS.sub(" ", words) + power):
        unit = _SYMBOLS.get(name) or _one(name.lower())
        if unit is None:
            return None
        powers[unit] = powers.get(unit, 0) + int(exponent or 1) * (-1 if slash else 1)
    above, below = (
        "*".join(
            f"{unit}^{n * sign}".removesuffix("^1")
            for unit, n in sorted(powers.items())
            if n * sign > 0
        )
        for sign in (1, -1)
    )
    return f"{above}/{below}".removesuffix("/") if len(powers) > 1 else None


def _raised(unit: str, power: str | None) -> str:
    exponent = re.search(r"-?[123]|[²³]", power or "")
    return (
        f"{unit}^{ {'²': '2', '³': '3'}.get(exponent[0], exponent[0]) }" if exponent else unit
    )


def _with_exponent(text: str, power: str | None) -> str | None:
    """ "cm^2" for "cm^2", "square cm" and "cm" with the power ^2."""
    inside = _EXPONENT.search(text)
    unit = _one(text[: inside.start()] if inside else text)
    return _raised(unit, inside[0] if inside else power) if unit else None


def _one(words: str) -> str | None:
    parts = words.split()
    powers = [_POWERS[part] for part in parts if part in _POWERS]
    names = [part for part in parts if part not in _POWERS]
    if not names or len(powers) > 1:
        return None
    unit = _UNITS.get(names[-1]) or _UNITS.get(names[-1].removesuffix("s"))
    return f"{unit}^{powers[0]}" if unit and powers else unit
