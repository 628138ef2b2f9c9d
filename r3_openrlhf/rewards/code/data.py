"""Values between processes: JSON in which what JSON lacks is marked, {"tuple": [1, 2]}.

A program's process writes it. Reading it runs nothing and makes nothing but data; the grader does
not even read it, but compares the marks (compare.py). Standard library only: it is loaded where
programs run."""

from __future__ import annotations

import builtins
import collections
import datetime
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_VALUE_BYTES = 2**23
MAX_INPUT_BYTES = 2**28  # of a test's arguments, which come from the data
MAX_DEPTH = 150
_VIEWS: tuple[Any, ...] = (collections.deque, range, type({}.keys()), type({}.values()), type({}.items()), Iterator)


class NotPlain(Exception):
    """A value that is no plain data, or is too large."""


def encode(value: object, *, exact: bool = False, of_object: Any = None, max_bytes: int = MAX_VALUE_BYTES) -> str:
    """The text of a value. Subclasses of built-in types are what they are made of.

    exact: `deque`, `Decimal`, arrays and others keep their type; else they are lists and floats.
    of_object: (object) -> the stand-in for an object that is no data; None: there are none.

    Raises:
        NotPlain: its type, or how large it is."""
    try:
        text = json.dumps(_marked(value, 0, exact, of_object))
    except (RecursionError, RuntimeError) as error:
        raise NotPlain("a value that cannot be read") from error
    if len(text) > max_bytes:
        raise NotPlain("a value that is too large")
    return text


def _marked(value: Any, depth: int, exact: bool, of_object: Any) -> object:
    if type(value) in _PLAIN and (type(value) is not int or -(2**63) < value < 2**63):
        return value
    if depth > MAX_DEPTH:
        raise NotPlain("a value that is nested too deeply")

    def within(part: Any) -> object:
        return _marked(part, depth + 1, exact, of_object)

    if exact and (kind := _exact_kind(value)) is not None:
        return {kind: within(_EXACT[kind][0](value))}
    for scalar, write in _SCALARS.items():
        if isinstance(value, scalar):
            return write(value)
    for sequence in (list, tuple, set, frozenset, *(() if exact else _VIEWS)):
        if isinstance(value, sequence):  # by the type's own method: a subclass may have changed its own
            items = [within(item) for item in (iter(value) if sequence is Iterator else sequence.__iter__(value))]
            return {sequence.__name__: items} if sequence in (tuple, set, frozenset) else items
    if isinstance(value, dict):
        return {"dict": [[within(part) for part in pair] for pair in dict.items(value)]}
    module = type(value).__module__
    if module.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return within(value.tolist())
    if module in ("decimal", "_pydecimal", "fractions"):
        return float(value)
    if of_object is not None:
        return {"object": within(of_object(value))}
    raise NotPlain(f"a value of type {type(value).__name__[:80]}")


def _of_int(value: int) -> object:
    number = int.__index__(value)
    return number if -(2**63) < number < 2**63 else {"int": hex(number)}


_PLAIN = frozenset({type(None), bool, int, float, str})
_SCALARS: dict[Any, Callable[[Any], object]] = {
    str: str.__str__,
    int: _of_int,
    float: float.__float__,
    (bytes, bytearray): lambda value: {"bytes": bytes(value).hex()},
    complex: lambda value: {"complex": [value.real, value.imag]},
}


def _exact_kind(value: Any) -> str | None:
    """The mark of a value that keeps its type; None: it has none."""
    kind = type(value)
    if issubclass(kind, type):
        return "type" if _TYPES.get(value.__name__) is value else None
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "namedtuple"
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return "ndarray" if value.dtype.kind in "biufcSU" else None
    return kind.__name__ if kind in _EXACT_TYPES else None


def _defaultdict(parts: Any) -> Any:
    return collections.defaultdict(parts[0], parts[1])


def _array(parts: Any) -> Any:
    import numpy

    return numpy.array(parts[2], dtype=parts[0]).reshape(parts[1])


_TYPES = {name: value for name, value in vars(builtins).items() if isinstance(value, type)}
# mark -> what a value is made of, and back
_EXACT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Decimal": (str, Decimal),
    "Fraction": (lambda value: (value.numerator, value.denominator), lambda parts: Fraction(*parts)),
    "deque": (list, collections.deque),
    "bytearray": (bytes, bytearray),
    "range": (lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
    "slice": (lambda value: (value.start, value.stop, value.step), lambda parts: slice(*parts)),
    "date": (datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "time": (datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (
        lambda value: (value.days, value.seconds, value.microseconds),
        lambda parts: datetime.timedelta(*parts),
    ),
    "Counter": (dict, collections.Counter),
    "OrderedDict": (dict, collections.OrderedDict),
    "defaultdict": (lambda value: (value.default_factory, dict(value)), _defaultdict),
    "namedtuple": (
        lambda value: (type(value).__name__, list(value._fields), list(value)),
        lambda parts: collections.namedtuple(parts[0], parts[1])(*parts[2]),
    ),
    "ndarray": (lambda value: (value.dtype.str, value.shape, value.ravel().tolist()), _array),
    "type": (lambda value: value.__name__, lambda name: _TYPES[name]),
    "NotImplementedType": (lambda _: None, lambda _: NotImplemented),
    "ellipsis": (lambda _: None, lambda _: ...),
}
_EXACT_TYPES = frozenset(
    {Decimal, Fraction, bytearray, range, slice, datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
    | {collections.deque, collections.Counter, collections.OrderedDict, collections.defaultdict}
    | {type(NotImplemented), type(...)}
)
_READ: dict[str, Callable[[Any], Any]] = {
    **{mark: read for mark, (_, read) in _EXACT.items()},
    **{kind.__name__: kind for kind in (tuple, set, frozenset, dict)},
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
}


def decode(text: str | bytes, *, of_object: Any = None, max_bytes: int = MAX_VALUE_BYTES) -> Any:
    """The value that `encode` wrote. Only a process with limits of its own decodes another's text.

    Raises:
        NotPlain: it is something else.
    """
    if len(text) > max_bytes:
        raise NotPlain("a value that is too large")
    try:
        return _value(json.loads(text), _READ | {"object": of_object})
    except (ValueError, RecursionError, TypeError, KeyError, ArithmeticError, AttributeError) as error:
        raise NotPlain("no plain data") from error


def _value(given: Any, read: dict[str, Any]) -> Any:
    if isinstance(given, list):
        return [item if type(item) in _PLAIN else _value(item, read) for item in given]
    if not isinstance(given, dict):
        return given
    ((kind, content),) = given.items()
    return read[kind](_value(content, read))
