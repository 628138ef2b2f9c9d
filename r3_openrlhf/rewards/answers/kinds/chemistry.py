r"""Chemical formulas and reactions: "H_2O", "\ce{H2O}", "SO4^{2-}", "2H2 + O2 -> 2H2O"."""

from __future__ import annotations

import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.patterns import phrases, table
from r3_openrlhf.rewards.answers.plain import plain

_ELEMENTS = frozenset(table("phrases.toml")["words"]["elements"].split())
_TOKEN = re.compile(
    r"(?P<element>[A-Z][a-z]?)|(?P<count>\d+)|(?P<bracket>[()\[\]])|(?P<charge>\^\S+|[-+]\d*$)|(?P<dot>[·.*])"
)
_CHEMISTRY = phrases("chemistry")
_ARROW = re.compile(r"\\(?:long)?rightarrow|\\to|\\rightleftharpoons|-+>|→|⇌|=")
_FONTS = re.compile(r"\\(?:ce|mathrm|mathbf|text|textrm|textbf|rm|operatorname)(?![a-zA-Z])")
Species = tuple[int, tuple[str, ...], str]


def _read(text: str, problem: str) -> list[list[Species]] | None:
    text = re.sub(r"\\(?:cdot|bullet)", "·", plain(_FONTS.sub("", text)))
    sides = [_side(side) for side in _ARROW.split(text.replace("{", "").replace("}", ""))]
    return None if len(text) > 200 or None in sides else [side for side in sides if side is not None]


def _side(text: str) -> list[Species] | None:
    species = [_species(part) for part in re.split(r"\s\+\s|(?<=[a-z\d)])\+(?=\d*[A-Z])", text.strip())]
    return None if None in species else sorted(one for one in species if one is not None)


def _species(text: str) -> Species | None:
    text = re.sub(r"\((?:s|l|g|aq)\)$", "", text.replace(" ", "").replace("_", ""))
    number = re.match(r"\d*", text)[0]  # type: ignore[index]
    tokens, charge, position = [], "", len(number)
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return None
        if token["element"] and token["element"] not in _ELEMENTS:
            if token["element"][0] not in _ELEMENTS:
                return None
            tokens.append(token["element"][0])
            position += 1
            continue
        if token["charge"]:
            signs = token["charge"].strip("^")
            charge = f"{re.sub('[^0-9]', '', signs) or max(1, len(re.findall('[-+]', signs)))}{'-' if '-' in signs else '+'}"
            if not re.fullmatch(r"\d*[-+]+\d*", signs):
                return None
        elif token["count"] != "1":
            tokens.append(token[0])
        position = token.end()
    return (
        (int(number or 1), tuple(tokens), charge) if tokens and tokens[0][0].isalpha() | (tokens[0] in "([") else None
    )


def _recognise(reference: str, problem: str) -> bool:
    text = plain(reference)
    if r"\ce" in reference:
        return True
    return (
        _CHEMISTRY["asked"].search(problem) is not None
        and re.search(r"[A-Z]", text) is not None
        and not re.fullmatch(r"[A-E]", text)
    )


KIND = Kind(
    name="chemical formula",
    rank=20,
    recognise=_recognise,
    read=_read,
    find=lambda sentence, problem: [
        word for word in plain(sentence).split() if re.search(r"[A-Z]", word) and _species(word)
    ][-1:],
)
