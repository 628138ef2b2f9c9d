"""Texts without the commands of LaTeX and marks of type around them, for kinds that are no mathematics."""

import re
import unicodedata
from functools import lru_cache

from r3_openrlhf.rewards.answers.text.number_words import with_scales_computed
from r3_openrlhf.rewards.answers.text.patterns import phrases

TEXT_COMMAND = re.compile(
    r"\\(?:text|mbox|textbf|textit|textrm|textnormal|mathrm|mathbf)\s*\{([^{}]*)\}"
)
_LETTERS_ALIKE = (
    "АВЕКМНОРСТХУасеорхуіѕјΑΒΕΖΗΙΚΜΝΟΡΤΥΧ٫٬",
    "ABEKMHOPCTXYaceopxyisjABEZHIKMNOPTYX.,",
)
_SIGNS = str.maketrans(*_LETTERS_ALIKE)
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻–—−‑’∶", "01234567890123456789+-----':")
_RAISED = re.compile("(?<=[₀-₉])[⁰¹²³⁴-⁹]|[²³⁴-⁹](?=[⁺⁻])")  # the charge of SO₄²⁻
_SPACES = re.compile(r"(?:\s|\\[,;:! ]|~|\\q?quad(?![a-zA-Z]))+")
_MARKS = re.compile(r"\\left|\\right|\\displaystyle|\\!|\*\*|__|[`\"“”]|(?<!\\)\$|\\[()\[\]]")
_OTHER_TEXT = re.compile(
    r"\\(?:operatorname|emph|mathtt|mathsf|mathit|boldsymbol|underline|textsc|textsf|texttt|bf|rm)\*?\s*\{([^{}]*)\}"
)


def in_ascii_signs(text: str) -> str:
    """Digits of any script as 0 to 9, and Greek and Cyrillic letters that look like Latin ones."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(sign, sign)) for sign in text).translate(_SIGNS)


_OPERAND = r"(?=\s*[-+−\d\\($\[{a-zA-Z])"
_CONNECTIVES = [
    (re.compile(rf"(?<=\S)\s*{words}{_OPERAND}"), sign)
    for words, sign in (
        ("、", ", "),
        ("[和与及且]", " and "),
        (r"(?<![\u4e00-\u9fff])或者?", " or "),
    )
]
# after an operand: what is before it introduces it
_CHINESE_TEXT = re.compile(
    r"(?<=[\w)}$])\s*\\(?:text|mathrm|mbox)\s*\{([^{}]*[\u4e00-\u9fff][^{}]*)\}"
)


CHINESE = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]+")  # and Japanese


def in_english(text: str) -> str:
    """Write amounts and connectives of Chinese as in English: "3, 4" of 3、4, "32000元" of 3.2万元."""
    if text.isascii() or CHINESE.search(text) is None:
        return text
    text = with_scales_computed(_CHINESE_TEXT.sub(r"\1", text))
    for pattern, sign in _CONNECTIVES:
        text = pattern.sub(sign, text)
    return text.replace("。", ". ")


@lru_cache(maxsize=256)  # each kind asks for it
def plain(text: str) -> str:
    r"""Remove \text{}, dollar signs, bold type and the full stop from a text; make spaces one space."""
    text = text if text.isascii() else _RAISED.sub(r"^\g<0>", text)
    text = in_ascii_signs(text).translate(_SUBSCRIPTS).replace("{,}", ",").replace("{:}", ":")
    for _ in range(2):
        text = _OTHER_TEXT.sub(r"\1", TEXT_COMMAND.sub(r"\1", text))
    return _SPACES.sub(" ", _MARKS.sub("", text)).strip(" .,;:!")


_ASIDE = re.compile(r"\s*\((?!or\b|not\b)[^()]*\)$")
_SAYS = phrases("plain")


def normal_words(text: str) -> str:
    """Words for comparison: "due east" and "The wind is to the east." are "east"."""
    words = unicodedata.normalize("NFKD", plain(text)).casefold()
    words = _ASIDE.sub(
        "", "".join(letter for letter in words if not unicodedata.combining(letter))
    )
    if (said := _SAYS["predicate"].match(words)) and not _SAYS["hedge"].search(said["subject"]):
        words = words[said.end() :]
    words = _SAYS["lead"].sub("", words) or words
    return re.sub(r"[\s\-_,;:.!?'\"]+", "", words)
