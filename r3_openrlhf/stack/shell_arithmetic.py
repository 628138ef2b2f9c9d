"""Whole numbers in a script of bash: `$((2 * A))`, and what decides how often a loop runs."""

import ast
import contextlib
import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase

Known = dict[str, list[str]]  # variable -> its words; one, if it is no array
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_SIGN_OF_TEST = {"-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">=", "-eq": "==", "-ne": "!="}
_COMPARISON = re.compile(r"([^<>=!]+)(<=|>=|==|!=|<|>)([^<>=!]+)")
_STEP = re.compile(
    r"\s*(?:(?P<name>[a-zA-Z_]\w*)\s*(?P<sign>[-+*/%]?)=(?P<value>[^=].*)"
    r"|(?P<counted>[a-zA-Z_]\w*)(?P<after>\+\+|--)|(?P<before>\+\+|--)(?P<other>[a-zA-Z_]\w*))\s*",
    re.S,
)
_DOUBLE_PARENTHESES = re.compile(
    r"\b(for|while|until)(\s*)(\(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\))"
)
_BACKSLASHED = r"\\\1"
_SPECIAL = re.compile(r"([\s;&|<>()'\"])")


def as_one_word(text: str) -> str:
    """Return a script in which the `((...))` of each loop is one word, by backslashes."""

    def escaped(found: re.Match[str]) -> str:
        return f"{found[1]} {_SPECIAL.sub(_BACKSLASHED, found[3])}"

    return _DOUBLE_PARENTHESES.sub(escaped, text)


def sum_of(text: str, known: Known) -> str | None:
    """Compute what is between `$((` and `))`; None: it is more than whole numbers and + - * / %."""
    text = re.sub(r"[a-zA-Z_]\w*", lambda name: " ".join(known.get(name[0], ["?"])), text)
    if not re.fullmatch(r"[\d\s()+*/%-]+", text) or "**" in text:
        return None
    text = re.sub(r"\b0(?=\d)", "0o", text)  # bash reads 010 as 8
    with contextlib.suppress(SyntaxError, ZeroDivisionError, ValueError):
        tree = ast.parse(text.replace("/", "//").lstrip(" \t"), mode="eval")
        return str(_value(tree.body))
    return None


def _value(node: ast.expr) -> int:
    """Compute an expression of whole numbers. ValueError: something else is in it."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left), _value(right))
    raise ValueError(f"{ast.unparse(node)} is no sum of whole numbers")


def is_true(text: str, known: Known) -> bool | None:
    """Decide what is between `((` and `))`, one comparison of sums, or a sum; None: it is more."""
    found = _COMPARISON.fullmatch(text)
    if found is None:
        value = sum_of(text, known)
        return None if value is None else value != "0"
    left, right = sum_of(found[1], known), sum_of(found[3], known)
    if left is None or right is None:
        return None
    return _COMPARISONS[found[2]](int(left), int(right))


def take_step(text: str, known: Known) -> bool:
    """Do `A=1`, `A+=2`, `A++` or `--A`; returns False for anything else, and changes nothing."""
    found = _STEP.fullmatch(text)
    if found is None:
        return not text.strip()
    name = found["name"] or found["counted"] or found["other"]
    value = found["value"]
    if value is None:
        value = f"{name} {(found['after'] or found['before'])[0]} 1"
    elif found["sign"]:
        value = f"{name} {found['sign']} ({value})"
    result = sum_of(value, known)
    if result is None:
        return False
    known[name] = [result]
    return True


def is_test_true(words: list[str]) -> bool | None:
    """Decide the test `[ A -lt B ]`, of filled words; None: it is of another kind, or of a word that is not known."""
    match words:
        case [("[" | "[["), *inside, ("]" | "]]")] | ["test", *inside]:
            pass
        case _:
            return None
    if any("$" in word or "`" in word for word in inside):
        return None
    match inside:
        case ["!", *rest]:
            opposite = is_test_true(["test", *rest])
            return None if opposite is None else not opposite
        case ["-n", text] | [text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [left, ("=" | "=="), right]:
            return fnmatchcase(left, right) if words[0] == "[[" else left == right
        case [left, "!=", right]:
            return not fnmatchcase(left, right) if words[0] == "[[" else left != right
        case [left, sign, right] if sign in _SIGN_OF_TEST:
            return is_true(f"{left}{_SIGN_OF_TEST[sign]}{right}", {})
    return None
