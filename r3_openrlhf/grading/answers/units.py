"""Units behind a number. A missing unit is forgiven, as the field does; another unit is not."""

from __future__ import annotations

import re

_SYNONYMS = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard",
    "mile": "mi mile",
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
    "dollar": "dollar",
    "cent": "cent",
    "degree": "degree",
    "radian": "rad radian",
    "mph": "mph",
    "liter": "l liter litre",
    "ml": "ml milliliter millilitre",
    "unit": "unit",
}
_UNITS = {word: unit for unit, words in _SYNONYMS.items() for word in words.split()}
_WRAPPED = re.compile(r"\s*\\(?:text|mbox|textrm|mathrm|textnormal)\s*\{([a-zA-Z ./]*)\}(?:\s*\^\s*\{?[23]\}?)?$")
_PLAIN = re.compile(r"(?<=[\d)}])\s*((?:square |cubic |sq\.? |cu\.? )?[a-zA-Z]+)(?:\s*\^\s*\{?[23]\}?|[²³])?$")


def split_unit(text: str) -> tuple[str, str | None]:
    """("15", "cm") for "15\\text{ cm}^2" and "15 square centimeters"; the unit is None when none is known.

    Anything inside \\text{} behind a number counts as a unit, known or not ("5\\text{ apples}"); plain words only when
    they are known. Powers are not told apart.
    """
    if match := _WRAPPED.search(text):
        return text[: match.start()], _known(match[1])
    if (match := _PLAIN.search(text)) and (unit := _known(match[1])):
        return text[: match.start()], unit
    return text, None


def _known(words: str) -> str | None:
    parts = words.lower().replace(".", " ").split()
    if not parts:
        return None
    word = parts[-1]
    return _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
