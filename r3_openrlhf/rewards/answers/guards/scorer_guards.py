"""Guards of reasoning_gym's scorers. A full score counts only where its data set's guard agrees.

Each guard says whether an answer that the scorer may call correct is one at all: the scorers of
0.1.25 take `nan` for a complex number, a tolerance of one in sorting, and what their patterns leave
out. Found by `r3 attack-rewards` on every data set (tests/rewards/test_scorer_guards.py).
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import partial

from r3_openrlhf.rewards.answers.kinds import json_text
from r3_openrlhf.rewards.answers.text.arithmetic import exact_value
from r3_openrlhf.rewards.answers.text.patterns import phrases

_NOT_FINITE = re.compile(r"(?i)(?<![a-z])(?:nan|inf|infinity)(?![a-z])")
_REAL = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,2})?"
_AMOUNT = re.compile(
    r"(?:(?:the )?(?:final )?answer(?: is|:| =)\s*|[a-z]\s*=\s*|=\s*)?(?:\\?\$|[€£¥₹])?\s*"
    r"(?P<number>[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,40})(?:\.\d{1,40})?)\s*"
    r"(?P<unit>(?:\\?%|°|\\text\s*\{[a-zA-Z ./-]{0,40}\}|[a-zA-Z][a-zA-Z ./-]{0,40})?(?:\^?[23²³])?)\s*\.?",
    re.IGNORECASE,
)
_PAIR = re.compile(rf"\(?\s*{_REAL}\s*,\s*{_REAL}\s*\)?")
_ARITHMETIC = re.compile(r"[0-9+\-*/() ]{1,400}")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_TOKEN = re.compile(
    r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?|[^\W\d]+|[^\s\w\[\]{}(),;:.'\"`°]"
)
_CUBE_MOVE = re.compile(r"[A-Za-z]{1,3}['\u2019]?\d?['\u2019]?")
_CLOCK = re.compile(r"(?:-?\d+ days?, )?\d{1,2}:[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?")
_NO_ROOTS = re.compile(r"(?i)\[\]|none|no (?:real )?(?:solutions?|roots?)")
# What an answer consists of, where the scorer passes over anything else in it, or evaluates it.
_FORMS = {
    "bitwise_arithmetic": r"[-+]?(?:0[xX][0-9a-fA-F]{1,200}|0[bB][01]{1,800}|0[oO][0-7]{1,300}|\d{1,300})",
    "complex_arithmetic": rf"\(*\s*{_REAL}\s*[ij]?\s*(?:[-+]\s*(?:\d{{1,40}}(?:\.\d{{0,40}})?)?\s*[ij])?\s*\)*|[-+]?[ij]",
    "fraction_simplification": r"\$?\s*(?:\\d?frac\s*\{\s*\d{1,40}\s*\}\s*\{\s*\d{1,40}\s*\}|\d{1,40}\s*/\s*\d{1,40})\s*\$?",
    "kakurasu": r"[\[\],\s]*[01](?:[\s,\[\]]*[01])*[\[\],\s]*",
    "quantum_lock": r"(?i)\s*[ABC](?:\s*(?:→|->|,|\s)\s*[ABC])*\s*",
    "sokoban": r"[UDLR]*",
    "survo": r"[-\d\s]+",
}
FLOAT_ERROR = Decimal("1e-12")  # relative: of a computation with floating-point numbers


def passes(name: str, answer: str, entry: dict) -> bool:
    """Tell whether `answer` has its data set's form, and no known way around the scorer."""
    own = entry.get("answer")
    if _NOT_FINITE.search(answer) and not (isinstance(own, str) and _NOT_FINITE.search(own)):
        return False
    if name in _FORMS:
        return re.fullmatch(_FORMS[name], answer.strip()) is not None
    guard = _GUARDS.get(name)
    if guard is None:
        return True
    try:
        return guard(answer.strip(), entry)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        InvalidOperation,
        RecursionError,
    ):
        return False  # not of the form


def is_too_long_to_score(name: str, answer: str) -> bool:
    """Tell whether the scorer would expand the answer beyond any bound ("R999999999")."""
    return name == "rubiks_cube" and not all(map(_CUBE_MOVE.fullmatch, answer.split()))


def _one_number(answer: str, entry: dict) -> bool:
    """gsm_symbolic: one number, with only a currency, a unit, a name or "the answer is"."""
    found = _AMOUNT.fullmatch(answer.strip("*` ").removeprefix("$").removesuffix("$").strip())
    if found is None or phrases("units")["no_unit"].search(found["unit"].casefold()):
        return False
    return Decimal(found["number"].replace(",", "")) == Decimal(
        str(entry["answer"]).replace(",", "")
    )


def _same_tokens(answer: str, entry: dict, *, to_last_decimal: bool = False) -> bool:
    """Compare numbers and words in order, of JSON objects by key; numbers are equal, or to the last decimal
    of the own answer."""
    texts = [json_text.KIND.read(text, "") or text for text in (answer, str(entry["answer"]))]
    texts = [text if "[" in text else _THOUSANDS.sub("", text) for text in texts]
    given, wanted = (_TOKEN.findall(text.casefold()) for text in texts)
    return len(given) == len(wanted) and all(
        _same_token(a, b, to_last_decimal) for a, b in zip(given, wanted, strict=True)
    )


def _same_token(token: str, wanted: str, to_last_decimal: bool) -> bool:
    try:
        a, b = (Decimal(text) for text in (token, wanted))
    except InvalidOperation:
        return token == wanted
    places = b.as_tuple().exponent
    unit = (
        Decimal(1).scaleb(places)
        if to_last_decimal and isinstance(places, int) and places < 0
        else 0
    )
    return abs(a - b) <= max(unit, FLOAT_ERROR * abs(b))


def _countdown(answer: str, entry: dict) -> bool:
    """Whole numbers, each as often as given, + - * / and brackets; exactly the target."""
    if not _ARITHMETIC.fullmatch(answer) or "**" in answer or "//" in answer:
        return False
    metadata = entry["metadata"]
    numbers = Counter(map(int, re.findall(r"\d+", answer)))
    return numbers == Counter(metadata["numbers"]) and exact_value(answer) == metadata["target"]


def _roots(answer: str, entry: dict) -> bool:
    """polynomial_equations: its scorer ignores texts, so any solves an equation without roots."""
    if not entry["answer"]:
        return _NO_ROOTS.fullmatch(answer) is not None
    return re.fullmatch(rf"{_REAL}(?:\s*,\s*{_REAL})*", answer) is not None


def _known_words(answer: str, entry: dict) -> bool:
    """knights_knaves: only names and roles, each once: no "not", no second claim, no early sign."""
    if not re.fullmatch(r"[\w\s,.;:'’\n]*", answer):
        return False
    words, own = (
        [
            word
            for word in re.findall(r"\w+", text.casefold())
            if word not in ("a", "an", "and", "is")
        ]
        for text in (answer, entry["answer"])
    )
    return Counter(words) == Counter(own)


def _valid_moves(answer: str, entry: dict) -> bool:
    """boxnet: its scorer passes over impossible moves, so a list of all would solve it."""
    from reasoning_gym.games.boxnet import action_from_response

    state = entry["metadata"]["initial_state"]
    for step in json.loads(answer):
        for agent, action in step.items():
            after = action_from_response(state, [{agent: action}])
            if after == state or not action.startswith("move(box_"):
                return False
            state = after
    return True


_GUARDS: dict[str, Callable[[str, dict], bool]] = {
    **dict.fromkeys(
        [
            "calendar_arithmetic",
            "codeio",
            "game_of_life",
            "letter_jumble",
            "number_format",
            "number_sorting",
            "time_intervals",
            "word_sorting",
        ],
        _same_tokens,
    ),
    **dict.fromkeys(
        ["advanced_geometry", "decimal_arithmetic", "pool_matrix"],
        partial(_same_tokens, to_last_decimal=True),
    ),
    "boxnet": _valid_moves,
    "countdown": _countdown,
    "figlet_font": lambda answer, entry: (
        len({"".join(text.split()).casefold() for text in (answer, entry["answer"])}) == 1
    ),
    "gsm_symbolic": _one_number,
    "knights_knaves": _known_words,
    "polynomial_equations": _roots,
}
GUARDED_DATA_SETS = frozenset({*_GUARDS, *_FORMS, "rubiks_cube", "spell_backward"})
