"""Units of an answer. A missing unit is forgiven, as the field does; another unit is not, unless the amount is the same."""

from __future__ import annotations

import re
from fractions import Fraction

_SYNONYMS = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard",
    "mile": "mi mile",
    "mg": "mg milligram",
    "g": "g gram",
    "kg": "kg kilogram",
    "pound": "lb pound",
    "ounce": "oz ounce",
    "second": "s sec second",
    "minute": "min minute",
    "hour": "h hr hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "yr year",
    "dollar": "dollar usd",
    "cent": "cent ¢",
    "euro": "euro eur",
    "degree": "degree",
    "celsius": "celsius",
    "fahrenheit": "fahrenheit",
    "kelvin": "kelvin",
    "radian": "rad radian",
    "liter": "l liter litre",
    "ml": "ml milliliter millilitre",
    "ms": "ms millisecond",
    "decade": "decade",
    "century": "century centurie",
    "dozen": "dozen",
    "rupee": "rupee",
    "nickel": "nickel",
    "dime": "dime",
    "penny": "penny pennie",
    "acre": "acre",
    "hectare": "ha hectare",
    "cup": "cup",
    "pint": "pint",
    "quart": "qt quart",
    "ton": "ton",
    "tonne": "tonne",
    "mole": "mol mole",
    "pascal": "pascal",
    "atmosphere": "atm atmosphere",
    "volt": "volt",
    "ampere": "amp ampere",
    "ohm": "ohm",
    "hertz": "hertz hz",
    "kilohertz": "khz kilohertz",
    "megahertz": "mhz megahertz",
    "kilojoule": "kj kilojoule",
    "kilowatt": "kw kilowatt",
    "electronvolt": "ev electronvolt",
    "unit": "unit",
    "gallon": "gal gallon",
    "newton": "newton",
    "joule": "joule",
    "watt": "watt",
    "grade": "grade",
    "am": "am",
    "pm": "pm",
}
_UNITS = {word: unit for unit, words in _SYNONYMS.items() for word in words.split()}
_SPEEDS = {"mph": "mile/hour", "kph": "km/hour", "kmh": "km/hour", "kmph": "km/hour", "mps": "m/second"}
_SYMBOLS = {  # in capitals, and only as a text of their own
    "N": "newton", "J": "joule", "W": "watt", "V": "volt", "A": "ampere", "K": "kelvin", "Pa": "pascal",
}  # fmt: skip
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
# amounts of one kind: unit -> (kind, how many of the smallest)
_AMOUNTS = {
    "mm": ("length", 1), "cm": ("length", 10), "m": ("length", 1000), "km": ("length", 10**6),
    "inch": ("feet", 1), "foot": ("feet", 12), "yard": ("feet", 36), "mile": ("feet", 63360),
    "mg": ("mass", 1), "g": ("mass", 1000), "kg": ("mass", 10**6),
    "ounce": ("pounds", 1), "pound": ("pounds", 16),
    "second": ("time", 1), "minute": ("time", 60), "hour": ("time", 3600), "day": ("time", 86400), "week": ("time", 604800),
    "cent": ("money", 1), "dollar": ("money", 100),
    "ml": ("volume", 1), "liter": ("volume", 1000),
    "decade": ("years", 10), "century": ("years", 100), "year": ("years", 1),
    "ms": ("milliseconds", 1),
    "cup": ("cups", 1), "pint": ("cups", 2), "quart": ("cups", 4), "gallon": ("cups", 16),
    "hertz": ("frequency", 1), "kilohertz": ("frequency", 1000), "megahertz": ("frequency", 10**6),
    "joule": ("energy", 1), "kilojoule": ("energy", 1000), "watt": ("power", 1), "kilowatt": ("power", 1000),
}  # fmt: skip
_CURRENCY = {"\\$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee"}
_CURRENCY_SIGN = re.compile(r"^\s*(?:\\text\s*\{\s*)?[-+]?\s*(\\\$|[€£¥₹])")
_CIRC = r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|°)"
_DEGREES = re.compile(rf"{_CIRC}\s*(?:\\(?:text|mathrm)\s*\{{)?\s*([CF]?)\s*\}}?\s*\$?$")
_WRAPPED = re.compile(
    r"\s*\\(?:text|mbox|textrm|mathrm|textnormal|textbf|textit|mathit)\s*\{([a-zA-Z ./~¢]*)\}(\s*\^\s*\{?-?[123]\}?)?$"
)
_WRAPPED_SPEED = re.compile(
    r"\s*\\(?:text|mbox|textrm|mathrm)\s*\{\s*([a-zA-Z]+)\s*\}\s*/\s*\\(?:text|mbox|textrm|mathrm)\s*\{\s*([a-zA-Z]+)\s*\}$"
)
_PLAIN = re.compile(
    r"(?<=[\d)}])\s*((?:square |cubic |sq\.? |cu\.? )?[a-zA-Z]+(?:(?:/| per )[a-zA-Z]+)?|¢|[ap]\.m\.?)(\s*\^\s*\{?[23]\}?|[²³])?$"
)
_SPACE = r"(?:\s|\\[,;:! ]|~)"
# behind a letter or a sign it may be a product as well: "5\\pi cm", "x m", "\\pi h"
_LOOSE = re.compile(
    rf"(?:\\(?:pi|theta|alpha|beta|phi|lambda|mu|omega){_SPACE}*|(?<![a-zA-Z\\])[a-zA-Z]{_SPACE}+|[\d)}}]{_SPACE}+)"
    r"(?P<unit>(?:square |cubic |sq\.? |cu\.? )?[a-zA-Z]+(?:(?:/| per )[a-zA-Z]+)?)(?P<power>\s*\^\s*\{?[23]\}?|[²³])?$"
)
NO_UNIT = re.compile(
    r"\b(?:or|not|no|than|least|most|and|but|less|more|maybe|neither|wrong|except|other"
    r"|hundred|factorial|half|halves|thirds?|fourths|fifths|tenths|times|negative|minus|plus|between|false|incorrect|yes|never|unknown)\b"
    r"|^\s*(?:squared|cubed)\s*$"
)


def split_unit(text: str) -> tuple[str, str | None]:
    """("15", "cm^2") for "15\\text{ cm}^2" and "15 square centimeters"; the unit is None when none is known.

    Anything inside \\text{} behind a number counts as a unit, known or not ("5\\text{ apples}"), unless it takes back
    what stands before it ("5\\text{ or more}"); plain words only when they are known.
    """
    if match := _WRAPPED_SPEED.search(text):
        return text[: match.start()], _known(f"{match[1]}/{match[2]}", None)
    if match := _WRAPPED.search(text):
        if NO_UNIT.search(match[1].lower()):
            return text, None
        return text[: match.start()], _known(match[1], match[2])
    if (match := _PLAIN.search(text)) and (unit := _known(match[1], match[2])):
        return text[: match.start()], unit
    return text, None


def unit_of(answer: str) -> str | None:
    """The unit that an answer states, by a sign or a word; None when it states none that is known."""
    if sign := _CURRENCY_SIGN.match(answer):
        return _CURRENCY[sign[1]]
    if degrees := _DEGREES.search(answer):
        return {"C": "celsius", "F": "fahrenheit"}.get(degrees[1], "degree")
    return split_unit(answer.strip().removesuffix("."))[1]


def units_differ(answer: str, reference: str) -> bool:
    r"""Whether both state a unit, one of them behind a letter or a sign (5\pi cm, x m), and the units are different ones.

    Single letters there may be factors: \pi g and \pi h only differ in the unit if all the rest is the same text.
    """
    answer, reference = answer.strip(), reference.strip()
    mine, theirs = _LOOSE.search(answer), _LOOSE.search(reference)
    units = [
        unit_of(text) or (_known(found["unit"], found["power"]) if found else None)
        for text, found in ((answer, mine), (reference, theirs))
    ]
    if None in units or units[0] == units[1] or not (mine or theirs):
        return False
    if mine and theirs and len(mine["unit"]) == len(theirs["unit"]) == 1:
        return answer[: mine.start("unit")] == reference[: theirs.start("unit")]
    return True


def conversion(unit: str, other: str) -> Fraction | None:
    """How many of `other` one `unit` is; None when they measure different things, or it is not known."""
    if unit == other:
        return Fraction(1)
    a, b = _AMOUNTS.get(unit), _AMOUNTS.get(other)
    if a and b and a[0] == b[0]:
        return Fraction(a[1], b[1])
    (base, power), (other_base, other_power) = _with_power(unit), _with_power(other)
    if power == other_power and "unit" in (base, other_base):
        return Fraction(1)  # units of length are whatever the other says
    if power == other_power and power > 1:
        factor = conversion(base, other_base)
        return None if factor is None else factor**power
    above, below = unit.split("/"), other.split("/")
    if len(above) == len(below) == 2:
        top, bottom = (conversion(here, there) for here, there in zip(above, below, strict=True))
        return top / bottom if top and bottom else None
    return None


def _with_power(unit: str) -> tuple[str, int]:
    base, _, power = unit.partition("^")
    return base, int(power) if power else 1


def _known(words: str, power: str | None) -> str | None:
    if words.strip(" ~") in _SYMBOLS:
        return _SYMBOLS[words.strip(" ~")]
    text = words.lower().replace(".", "").replace("~", " ").strip()
    if text in _SPEEDS:
        return _SPEEDS[text]
    sides = re.split(r"/|\bper\b", text)
    parts = [unit for side in sides if (unit := _one(side))]
    if len(parts) < len(sides):
        return None
    unit = "/".join(parts)
    exponent = re.search(r"-?[123]|[²³]", power or "")
    return f"{unit}^{ {'²': '2', '³': '3'}.get(exponent[0], exponent[0]) }" if exponent else unit


def _one(words: str) -> str | None:
    parts = words.split()
    powers = [_POWERS[part] for part in parts if part in _POWERS]
    names = [part for part in parts if part not in _POWERS]
    if not names or len(powers) > 1:
        return None
    unit = _UNITS.get(names[-1]) or _UNITS.get(names[-1].removesuffix("s"))
    return f"{unit}^{powers[0]}" if unit and powers else unit
