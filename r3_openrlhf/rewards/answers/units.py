"""Units of an answer. A missing unit is forgiven, as the field does; another unit is not, unless the amount is the same."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from r3_openrlhf.rewards.answers.number_words import is_number_word

_SYNONYMS = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre 厘米",
    "m": "m meter metre 米",
    "km": "km kilometer kilometre 公里 千米",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard",
    "mile": "mi mile",
    "mg": "mg milligram",
    "g": "g gram",
    "kg": "kg kilogram 千克 公斤",
    "pound": "lb pound",
    "ounce": "oz ounce",
    "second": "s sec second",
    "minute": "min minute 分钟",
    "hour": "h hr hour 小时",
    "day": "day 天",
    "week": "week",
    "month": "month",
    "year": "yr year 年",
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
    "ohm": "ohm ω",
    "kiloohm": "kω kiloohm kilohm",
    "megaohm": "mω megaohm megohm",
    "hertz": "hertz hz",
    "kilohertz": "khz kilohertz",
    "megahertz": "mhz megahertz",
    "kilojoule": "kj kilojoule",
    "kilowatt": "kw kilowatt",
    "electronvolt": "ev electronvolt",
    "unit": "unit 个 人",
    "gallon": "gal gallon",
    "newton": "newton",
    "joule": "joule",
    "watt": "watt",
    "grade": "grade",
    "yen": "yen",
    "yuan": "yuan rmb 元",
    "peso": "peso",
    "franc": "franc",
    "ruble": "ruble rouble",
    "krona": "krona kronor krone kroner",
    "pence": "pence",
    "shilling": "shilling",
    "quarter coin": "quarter-dollar",
    "gradian": "grad gradian gon",
    "arcminute": "arcminute arcmin",
    "arcsecond": "arcsecond arcsec",
    "revolution": "revolution rev",
    "bit": "bit",
    "byte": "byte",
    "kilobyte": "kb kilobyte",
    "megabyte": "mb megabyte",
    "gigabyte": "gb gigabyte",
    "terabyte": "tb terabyte",
    "knot": "knot",
    "nautical mile": "nmi",
    "light-year": "ly lightyear light-year",
    "parsec": "pc parsec",
    "fathom": "fathom",
    "furlong": "furlong",
    "nm": "nm nanometer nanometre",
    "micrometer": "µm μm um micrometer micrometre micron",
    "dm": "dm decimeter decimetre",
    "microsecond": "µs μs us microsecond",
    "ns": "ns nanosecond",
    "millennium": "millennium millennia",
    "fortnight": "fortnight",
    "cl": "cl centiliter centilitre",
    "dl": "dl deciliter decilitre",
    "kl": "kl kiloliter kilolitre",
    "barrel": "bbl barrel",
    "bushel": "bushel",
    "tablespoon": "tbsp tablespoon",
    "teaspoon": "tsp teaspoon",
    "stone": "stone",
    "carat": "carat",
    "microgram": "µg μg mcg microgram",
    "calorie": "cal calorie",
    "kilocalorie": "kcal kilocalorie",
    "kilopascal": "kpa kilopascal",
    "megapascal": "mpa megapascal",
    "torr": "torr mmhg",
    "psi": "psi",
    "gigahertz": "ghz gigahertz",
    "megajoule": "mj megajoule",
    "megawatt": "megawatt",
    "kilowatt-hour": "kwh",
    "kilonewton": "kn kilonewton",
    "millivolt": "mv millivolt",
    "kilovolt": "kv kilovolt",
    "milliampere": "ma milliamp milliampere",
    "megaelectronvolt": "mev",
    "gigaelectronvolt": "gev",
    "coulomb": "coulomb",
    "farad": "farad",
    "tesla": "tesla",
    "henry": "henry henries",
    "millimole": "mmol millimole",
    "horsepower": "hp horsepower",
    "pair": "pair",
    "permille": "permille",
    "ppm": "ppm",
    "score": "score",
    "gross": "gross",
    "lumen": "lumen",
    "candela": "candela",
    "rpm": "rpm",
    "am": "am",
    "pm": "pm",
}
_DOZENS = {"dozen": 12, "score": 20, "gross": 144, "pair": 2}  # so many of whatever is counted
_UNITS = {word: unit for unit, words in _SYNONYMS.items() for word in words.split()}
_SEPARATORS = re.compile(r"\\[,;: ]|\\cdot(?![a-zA-Z])|[~⋅·]")
_SAID_POWER = re.compile(r"\s*([a-zµμ-]+)\s+(squared|cubed)(?![a-z])")
_LIGHT_YEAR = re.compile(r"light years?")
_PRODUCT = re.compile(r"([a-zµμ-]+)\s+([a-zµμ]+)\s*\^\s*\{?\s*(-[12])\s*\}?")
_EXPONENT = re.compile(r"\s*\^\s*\{?\s*-?[123]\s*\}?\s*$")
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
    "bit": ("data", 1), "byte": ("data", 8), "ns": ("short times", 1), "microsecond": ("short times", 1000),
    "nm": ("short lengths", 1), "micrometer": ("short lengths", 1000), "arcsecond": ("angle", 1), "arcminute": ("angle", 60), "degree": ("angle", 3600),
    "ohm": ("resistance", 1), "kiloohm": ("resistance", 1000), "megaohm": ("resistance", 10**6),
    "gigahertz": ("frequency", 10**9), "pascal": ("pressure", 1), "kilopascal": ("pressure", 1000), "megapascal": ("pressure", 10**6),
    "microgram": ("small masses", 1), "calorie": ("calories", 1), "kilocalorie": ("calories", 1000), "megajoule": ("energy", 10**6),
    "millimole": ("substance", 1), "mole": ("substance", 1000), "millivolt": ("voltage", 1), "volt": ("voltage", 1000), "kilovolt": ("voltage", 10**6),
    "milliampere": ("current", 1), "ampere": ("current", 1000), "newton": ("force", 1), "kilonewton": ("force", 1000),
    "electronvolt": ("electronvolts", 1), "megaelectronvolt": ("electronvolts", 10**6), "gigaelectronvolt": ("electronvolts", 10**9),
    "joule": ("energy", 1), "kilojoule": ("energy", 1000), "watt": ("power", 1), "kilowatt": ("power", 1000),
}  # fmt: skip
_CURRENCY = {"\\$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee"}
_CURRENCY_SIGN = re.compile(r"^\s*(?:\\text\s*\{\s*)?[-+]?\s*(\\\$|[€£¥₹])")
_CIRC = r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|°)"
_DEGREES = re.compile(rf"{_CIRC}\s*(?:\\(?:text|mathrm)\s*\{{)?\s*([CF]?)\s*\}}?\s*\$?$")
_WORDS_OF_UNITS = r"a-zA-Z ./~¢µμωΩ\u4e00-\u9fff⋅·-"
_WRAPPED = re.compile(
    rf"\s*\\(?:text|mbox|textrm|mathrm|textnormal|textbf|textit|mathit|operatorname)\s*\{{"
    rf"((?:[{_WORDS_OF_UNITS}]|\\[,;: ]|\\cdot(?![a-zA-Z])|\^\s*\{{?\s*-?[123]\s*\}}?)*)\}}(\s*\^\s*\{{?-?[123]\}}?)?$"
)
_WRAPPED_SPEED = re.compile(
    r"\s*\\(?:text|mbox|textrm|mathrm)\s*\{\s*([a-zA-Z]+)\s*\}\s*/\s*\\(?:text|mbox|textrm|mathrm)\s*\{\s*([a-zA-Z]+)\s*\}$"
)
_PLAIN = re.compile(
    r"(?<=[\d)}])\s*((?:square |cubic |sq\.? |cu\.? )?[a-zA-ZµμΩ]+(?:(?:/| per )[a-zA-Z]+)?|[\u4e00-\u9fff]+|¢|[ap]\.m\.?)"
    r"(\s*\^\s*\{?[23]\}?|[²³])?$"
)
_SUM = re.compile(
    r"[\da-zA-Z)}\]]\s*[-+]|\\[a-zA-Z]*\{[^{}]*[a-zA-Z]"
)  # "9+4" before t, and what has letters of its own
_A_RATE = re.compile(
    r"(?:\\(?:text|mathrm)\s*\{\s*)?(?:/|(?<![a-zA-Z])per(?![a-zA-Z]))\s*(?:\\(?:text|mathrm)\s*\{)?\s*([a-zA-Z]+)\s*\}?\s*$"
)
_SPACE = r"(?:\s|\\[,;:! ]|~)"
# behind a letter or a sign it may be a product as well: "5\\pi cm", "x m", "\\pi h"
_LOOSE = re.compile(
    rf"(?:\\(?:pi|theta|alpha|beta|phi|lambda|mu|omega){_SPACE}*|(?<![a-zA-Z\\])[a-zA-Z]{_SPACE}+|[\d)}}]{_SPACE}+)"
    r"(?P<unit>(?:square |cubic |sq\.? |cu\.? )?[a-zA-Z]+(?:(?:/| per )[a-zA-Z]+)?)(?P<power>\s*\^\s*\{?[23]\}?|[²³])?$"
)
_SPACE_BEHIND = re.compile(rf"(?:{_SPACE}|\\$)+$")
# what is counted, in the plural: "red balls", "pages per day", "inches tall", "people in total", "of them"
_COUNTED = (
    r"(?:[a-z]{3,20} ){0,3}(?:[a-z]{2,19}s|people|children|men|women|feet|fish|sheep|dice|mice|teeth)"
    r"(?: squared| cubed| per [a-z]{3,20}(?: squared)?)?"
)
_AFTER_IT = r"(?: (?:left|old|tall|long|wide|high|deep|away|apart|each|total|in total|in all|altogether|remaining))?"
_NOUNS = re.compile(rf"([-+]?\d[\d,]{{0,20}}(?:\.\d{{1,20}})?)\s+({_COUNTED}){_AFTER_IT}", re.IGNORECASE)
_COMMENT = re.compile(r"\\text\s*\{\s*(?:\((?!or\b|not\b)[^(){}]*\)|is the answer)\s*\}$")
_ONE_LETTER = re.compile(r"(?<![a-zA-Z])[a-zA-Z]$")  # outside of \\text{} it may as well be a factor
_SAYS_LITTLE = re.compile(r"of them|in (?:total|all)|total|altogether|each|left|an? [a-z]+|term|grade|-?th")
_NAMED = re.compile(_COUNTED + _AFTER_IT)
_NO_NOUN = re.compile(
    r"(?i)\b(?:to|the|of|power|roots?|mod|modulo|modulus|base|choose|over|under|if|when|unless|only|almost|nearly|about|point|plus|divided|multiplied|by|is"
    r"|are|was|through|till|until|versus|oder|und|percents?|this|guess|always|fails|misses|misleads|negatives|inverses|powers"
    r"|dozens?|scores?|gross|sin|cos|tan|log|exp|pi|degrees?)\b"
)
_IRRATIONAL = re.compile(r"\\(?:pi|sqrt)(?![a-zA-Z])")
NO_UNIT = re.compile(
    r"\b(?:or|not|no|than|least|most|and|but|less|more|maybe|neither|wrong|except|other"
    r"|hundred|thousand|mill?i?on\w*|billion|trillion|factorial|half|halves|thirds?|fourths|fifths|tenths|times|negative|minus|plus|between|false|incorrect|yes|never|unknown)\b"
    r"|^\s*(?:squared|cubed)\s*$"
)


def split_unit(text: str) -> tuple[str, str | None]:
    """("15", "cm^2") for "15\\text{ cm}^2" and "15 square centimeters"; the unit is None when none is known.

    Inside \\text{} behind a number, and behind a plain number also outside of it, what is counted is left out too: words in the
    plural ("8 people", "5\\text{ red apples}"). Other words may say another number ("7\\text{ point five}") and stay.
    """
    if match := _WRAPPED_SPEED.search(text):
        return text[: match.start()], _known(f"{match[1]}/{match[2]}", None)
    if match := _WRAPPED.search(text):
        unit = _known(match[1], match[2])
        words = match[1].replace("~", " ").strip(" .,")
        if unit is None and words and not (_SAYS_LITTLE.fullmatch(words) or _are_counted(words.lower())):
            return text, None
        return text[: match.start()], unit
    if (match := _PLAIN.search(text)) and (unit := _known(match[1], match[2])):
        if len(match[1]) > 1 or text[match.start() - 1].isdigit() and not _SUM.search(text[: match.start()]):
            return text[: match.start()], unit
    if (match := _NOUNS.fullmatch(text)) and _are_counted(match[2].lower()):
        return match[1], _known(match[2], None)
    return text, None


def _are_counted(words: str) -> bool:
    return _NAMED.fullmatch(words) is not None and not (
        NO_UNIT.search(words) or _NO_NOUN.search(words) or any(map(is_number_word, words.split()))
    )


def without_rate(amount: str) -> str:
    """ "5" of "5/\\text{hour}" and "5 per hour"."""
    return _A_RATE.sub("", amount)


@lru_cache(maxsize=64)  # a comparison asks more than once
def unit_of(answer: str) -> str | None:
    """The unit that an answer states, by a sign or a word; None when it states none that is known."""
    if sign := _CURRENCY_SIGN.match(answer):
        rate = _A_RATE.search(answer)
        below = _one(rate[1].lower()) if rate else None
        return f"{_CURRENCY[sign[1]]}/{below}" if below else _CURRENCY[sign[1]]
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


def in_one_unit(answer: str, reference: str) -> tuple[str, str]:
    r"""Both without their units, the answer times what its unit is of the other's: "300\pi cm" beside "3\pi m" is 300\pi/100.

    A unit that only one of them states is left out. What is a plain number, and what is not of one kind, stays as it is.
    """
    if not (_IRRATIONAL.search(answer) and _IRRATIONAL.search(reference)):
        return answer, reference
    (mine, unit), (theirs, other) = _apart(answer), _apart(reference)
    if unit and other and unit != other and (factor := conversion(unit, other)):
        return rf"\frac{{{factor.numerator}}}{{{factor.denominator}}} \cdot ({mine})", theirs
    if unit and not other and not _states_a_unit(reference) or other and not unit and not _states_a_unit(answer):
        return mine, theirs
    return answer, reference


def _states_a_unit(text: str) -> bool:
    return _LOOSE.search(text.strip()) is not None or unit_of(text) is not None


def without_unit(text: str) -> str:
    """A text without the unit, the counted things or the comment in brackets behind it."""
    text = _COMMENT.sub("", text.strip())
    return text if _ONE_LETTER.search(text) else _apart(text)[0]


def _apart(text: str) -> tuple[str, str | None]:
    """A text and the unit behind it; of bare letters only those that are no factors."""
    text = text.strip()
    if (loose := _LOOSE.search(text)) and (len(loose["unit"]) > 1 or loose["power"]):
        unit = _known(loose["unit"], loose["power"])
        return (_SPACE_BEHIND.sub("", text[: loose.start("unit")]), unit) if unit else (text, None)
    rest, unit = split_unit(text)
    return _SPACE_BEHIND.sub("", rest), unit


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
        if "" in (above[0], below[0]):
            above[0] = below[0] = ""  # "pages per day" beside "5 per day"
        top, bottom = (conversion(here, there) for here, there in zip(above, below, strict=True))
        return top / bottom if top and bottom else None
    if {unit.partition("/")[0], other.partition("/")[0]} == {"dollar"}:
        return Fraction(1)  # "$5" for "$5 per hour": a missing rate is forgiven
    return None


def count_of(unit: str | None) -> int | None:
    """How many things one of it is: 12 for a dozen; None for other units."""
    return _DOZENS.get(unit or "")


def _with_power(unit: str) -> tuple[str, int]:
    base, _, power = unit.partition("^")
    return base, int(power) if power else 1


def _known(words: str, power: str | None) -> str | None:
    """The name of a unit in one spelling: "m/second" for m/s, m s^{-1} and metres per second; "/day" for "pages per day"."""
    symbol = words.strip(" ~")
    if symbol in _SYMBOLS or len(symbol) == 1 and symbol.isascii() and symbol.isupper() and symbol != "L":
        return _SYMBOLS.get(symbol)
    text = _SEPARATORS.sub(
        " ", words.lower().replace(".", "").replace("per mille", "permille").replace("nautical mile", "nmi")
    )
    text = _LIGHT_YEAR.sub("light-year", _SAID_POWER.sub(_as_power, text)).strip()
    if text in _SPEEDS:
        return _SPEEDS[text]
    sides = [side.strip() for side in re.split(r"/|\bper\b", text)]
    if len(sides) == 2 and (below := _with_exponent(sides[1], None)):
        above = _with_exponent(sides[0], None) or ""
        return f"{above}/{_raised(below, power)}"
    if len(sides) == 1 and (product := _PRODUCT.fullmatch(f"{text}{power or ''}")):  # "m s^{-1}"
        units = _one(product[1]), _one(product[2])
        if all(units):
            exponent = product[3].lstrip("-")
            return f"{units[0]}/{units[1]}" + (f"^{exponent}" if exponent != "1" else "")
    return _with_exponent(text, power) if len(sides) == 1 else None


def _raised(unit: str, power: str | None) -> str:
    exponent = re.search(r"-?[123]|[²³]", power or "")
    return f"{unit}^{ {'²': '2', '³': '3'}.get(exponent[0], exponent[0]) }" if exponent else unit


def _with_exponent(text: str, power: str | None) -> str | None:
    """ "cm^2" for "cm^2", "square cm" and "cm" with the power ^2."""
    inside = _EXPONENT.search(text)
    unit = _one(text[: inside.start()] if inside else text)
    return _raised(unit, inside[0] if inside else power) if unit else None


def _as_power(match: re.Match) -> str:
    return f" {match[1]}^{ {'squared': 2, 'cubed': 3}[match[2]] }"


def _one(words: str) -> str | None:
    parts = words.split()
    powers = [_POWERS[part] for part in parts if part in _POWERS]
    names = [part for part in parts if part not in _POWERS]
    if not names or len(powers) > 1:
        return None
    unit = _UNITS.get(names[-1]) or _UNITS.get(names[-1].removesuffix("s"))
    return f"{unit}^{powers[0]}" if unit and powers else unit
