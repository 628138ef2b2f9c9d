r"""Chemical formulas and reactions: "H_2O", "\ce{H2O}", "SO4^{2-}", "2H2 + O2 -> 2H2O"."""

import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.text.patterns import phrases, table
from r3_openrlhf.rewards.answers.text.plain import plain

# Co before C and O; the first letters are longer first
_ELEMENT = "|".join(
    sorted(table("phrases.toml")["words"]["elements"].split(), key=len, reverse=True)
)
_TOKEN = re.compile(rf"{_ELEMENT}|\d+|[()\[\]·.*]")
_SPECIES = re.compile(
    rf"(\d*)([(\[]*(?:{_ELEMENT})(?:{_ELEMENT}|[\d()\[\]·.*])*)(\^?\d*[-+]+\d*)?"
)
_CHEMISTRY = phrases("chemistry")
_ARROW = re.compile(r"\\(?:long)?rightarrow|\\to|\\rightleftharpoons|-+>|→|⇌|=")
_FONTS = re.compile(r"\\(?:ce|mathrm|mathbf|text|textrm|textbf|rm|operatorname)(?![a-zA-Z])")
Species = tuple[int, tuple[str, ...], str]


def _read(text: str, problem: str) -> list[list[Species]] | None:
    text = re.sub(r"\\(?:cdot|bullet)", "·", plain(_FONTS.sub("", text)))
    sides = [_side(side) for side in _ARROW.split(text.replace("{", "").replace("}", ""))]
    return (
        None
        if len(text) > 200 or None in sides
        else [side for side in sides if side is not None]
    )


def _side(text: str) -> list[Species] | None:
    species = [
        _species(part) for part in re.split(r"\s\+\s|(?<=[a-z\d)])\+(?=\d*[A-Z])", text.strip())
    ]
    return None if None in species else sorted(one for one in species if one is not None)


def _species(text: str) -> Species | None:
    text = re.sub(r"\((?:s|l|g|aq)\)$", "", text.replace(" ", "").replace("_", ""))
    said = _SPECIES.fullmatch(text)
    if said is None:
        return None
    tokens, signs = (
        tuple(token for token in _TOKEN.findall(said[2]) if token != "1"),
        said[3] or "",
    )
    size = re.sub("[^0-9]", "", signs) or len(re.findall("[-+]", signs))
    return int(said[1] or 1), tokens, f"{size}{'-' if '-' in signs else '+'}" if signs else ""


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
    recognise=_recognise,
    read=_read,
    find=lambda sentence, problem: [
        word
        for word in re.findall(r"[^\s,;]+", plain(sentence))
        if re.search(r"[A-Z]", word) and _species(word)
    ][-1:],
)
