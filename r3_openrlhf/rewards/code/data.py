"""Values between a program and who runs it: JSON in which what JSON lacks is marked, {"tuple": [1,
2]}.

A program's process writes it, so reading it runs nothing, makes nothing but built-in types, and is
bounded. Standard library only: it is loaded where programs run."""

from __future__ import annotations

import datetime
import json
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_VALUE_BYTES = 2**23
MAX_INPUT_BYTES = 2**28  # of a test's arguments, which come from the data
MAX_DEPTH = 150
MAX_KEYS = 20_000  # of sets and dictionaries: chosen numbers can all collide
_VIEWS: tuple[Any, ...] = (deque, range, type({}.keys()), type({}.values()), type({}.items()))


class NotPlain(Exception):
    """A value that is no plain data, or is too large."""


def encode(value: object, *, of_object: Any = None, max_bytes: int = MAX_VALUE_BYTES) -> str:
    """The text of a value. Subclasses of built-in types and numpy's scalars and arrays are what
    they are made of.

    of_object: (object) -> the stand-in for an object that is no data; None: there are none.

    Raises:
        NotPlain: its type, or how large it is."""
    try:
        text = json.dumps(_marked(value, 0, of_object))
    except (RecursionError, RuntimeError) as error:
        raise NotPlain("a value that cannot be read") from error
    if len(text) > max_bytes:
        raise NotPlain("a value that is too large")
    return text


def _marked(value: Any, depth: int, of_object: Any) -> object:
    if type(value) in _PLAIN and (type(value) is not int or -(2**63) < value < 2**63):
        return value
    if depth > MAX_DEPTH:
        raise NotPlain("a value that is nested too deeply")
    if of_object is not None and type(value) in _EXACT:
        return {type(value).__name__: _marked(_EXACT[type(value)][0](value), depth + 1, of_object)}
    kind: Any
    for kind, write in _SCALARS.items():
        if isinstance(value, kind):
            return write(value)
    for kind in (list, tuple, set, frozenset, *_VIEWS):
        if isinstance(value, kind):  # by the type's own method: a subclass may have changed its own
            items = [_marked(item, depth + 1, of_object) for item in kind.__iter__(value)]
            return {kind.__name__: items} if kind in (tuple, set, frozenset) else items
    if isinstance(value, dict):
        return {"dict": [[_marked(part, depth + 1, of_object) for part in pair] for pair in dict.items(value)]}
    module = type(value).__module__
    if module.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return _marked(value.tolist(), depth + 1, of_object)
    if module in ("decimal", "_pydecimal", "fractions"):
        return float(value)
    if of_object is not None:
        return {"object": of_object(value)}
    raise NotPlain(f"a value of type {type(value).__name__[:80]}")


def _of_int(value: int) -> object:
    number = int.__index__(value)
    return number if -(2**63) < number < 2**63 else {"int": hex(number)}


_PLAIN = frozenset({type(None), bool, int, float, str})
# Between the two processes of a test these keep their type: what each is made of, and back
_EXACT: dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    Decimal: (str, Decimal),
    Fraction: (lambda value: (value.numerator, value.denominator), lambda parts: Fraction(*parts)),
    deque: (list, deque),
    range: (lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.time: (datetime.time.isoformat, datetime.time.fromisoformat),
    datetime.timedelta: (
        lambda value: (value.days, value.seconds, value.microseconds),
        lambda parts: datetime.timedelta(*parts),
    ),
}
_READ_EXACT = {kind.__name__: read for kind, (_, read) in _EXACT.items()}
_SCALARS: dict[Any, Callable[[Any], object]] = {
    str: str.__str__,
    int: _of_int,
    float: float.__float__,
    (bytes, bytearray): lambda value: {"bytes": bytes(value).hex()},
    complex: lambda value: {"complex": [value.real, value.imag]},
}


def decode(text: str | bytes, *, of_object: Any = None, max_bytes: int = MAX_VALUE_BYTES) -> Any:
    """The value that `encode` wrote, from a process that may write anything.

    Raises:
        NotPlain: it is something else.
    """
    if len(text) > max_bytes:
        raise NotPlain("a value that is too large")
    try:
        return _value(json.loads(text, parse_int=_short_int), of_object)
    except (ValueError, RecursionError, TypeError, KeyError, ArithmeticError) as error:
        raise NotPlain("no plain data") from error


def _short_int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("a number that is not written as one")
    return int(digits)


def _value(given: Any, of_object: Any) -> Any:
    if isinstance(given, list):
        return [item if type(item) in _PLAIN else _value(item, of_object) for item in given]
    if not isinstance(given, dict):
        return given
    ((kind, content),) = given.items()
    if kind == "object" and of_object is not None:
        return of_object(content)
    if of_object is not None and kind in _READ_EXACT:
        return _READ_EXACT[kind](_value(content, of_object))
    if kind == "int":
        return int(content, 16)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "complex":
        real, imaginary = content
        return complex(real, imaginary)
    if kind == "dict":
        pairs = [(_value(key, of_object), _value(item, of_object)) for key, item in content]
        if of_object is None:  # a test's own process has a limit of time
            _check_keys([key for key, _ in pairs])
        return dict(pairs)
    items = [_value(item, of_object) for item in content]
    if kind != "tuple" and of_object is None:
        _check_keys(items)
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)


def _check_keys(keys: list[Any]) -> None:
    if sum(not isinstance(key, str) for key in keys) > MAX_KEYS:
        raise ValueError("too many keys")
