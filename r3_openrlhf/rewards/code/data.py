"""Values between processes: JSON in which what JSON lacks is marked, {"tuple": [1, 2]}.

A program's process writes it. Reading it runs nothing and makes nothing but data; the grader does
not even read it, but compares the marks (compare.py). Standard library only: it is loaded where
programs run."""

import builtins
import collections
import datetime
import inspect
import json
import math
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_VALUE_BYTES = 2**23
MAX_INPUT_BYTES = 2**28  # of a test's arguments, which come from the data
MAX_DEPTH = 150
# of a program's process: its first descriptor, and the next for the result and a link
JOB, STACK_BYTES = (
    40,
    2**29,
)
# What is read as NaN is what was written last: in a list the same one is equal to itself
_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MARKED: tuple[Any, ...] = (tuple, set, frozenset)
_SEQUENCES: tuple[Any, ...] = (list, *_MARKED)
_VIEWS: tuple[Any, ...] = (
    collections.deque,
    range,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
    Iterator,
)


class NotPlain(Exception):
    """A value that is no plain data, or is too large."""


def encode(
    value: object,
    *,
    exact: bool = False,
    of_object: Callable[[object], object] | None = None,
    max_bytes: int = MAX_VALUE_BYTES,
) -> str:
    """Encode a value as text. Subclasses of built-in types are what they are made of.

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


def _marked(
    value: object, depth: int, exact: bool, of_object: Callable[[object], object] | None
) -> object:
    """Mark what JSON lacks. NotPlain: a value too deep, or of a type that has no mark."""
    if _is_json(value):
        return value
    if depth > MAX_DEPTH:
        raise NotPlain("a value that is nested too deeply")

    def within(part: object) -> object:
        return _marked(part, depth + 1, exact, of_object)

    parts = _parts(value) if exact else None
    if parts is not None:
        mark, content = parts
        return {mark: within(content)}
    for scalar, write in _SCALARS.items():
        if isinstance(value, scalar):
            return write(value)
    sequence = _sequence_of(value, _SEQUENCES if exact else (*_SEQUENCES, *_VIEWS))
    if sequence is not None:
        items = [within(item) for item in _items(value, sequence)]
        return {sequence.__name__: items} if sequence in _MARKED else items
    if isinstance(value, dict):
        return {"dict": [[within(key), within(item)] for key, item in dict.items(value)]}
    number = _as_plain(value)
    if number is not None:
        return within(number)
    if of_object is not None:
        return {"object": within(of_object(value))}
    raise NotPlain(f"a value of type {type(value).__name__[:80]}")


def _is_json(value: Any) -> bool:
    """Tell whether JSON holds the value exactly: None, a bool, a text, a number of 64 bits."""
    if type(value) not in _PLAIN:
        return False
    return type(value) not in (int, float) or -(2**63) < value < 2**63


def _sequence_of(value: object, sequences: tuple[type, ...]) -> type | None:
    """Return the first of these types that the value is one of; None: it is no sequence."""
    return next((sequence for sequence in sequences if isinstance(value, sequence)), None)


def _items(value: Any, sequence: Any) -> Iterator[Any]:
    """Iterate by the built-in type's own method: a subclass may have changed its own."""
    if sequence is Iterator:
        return iter(value)
    items: Iterator[Any] = sequence.__iter__(value)
    return items


def _as_plain(value: Any) -> object:
    """Numbers and arrays of other types as built-in ones; None: it is neither."""
    module = type(value).__module__
    if module.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return float(value) if module in ("decimal", "_pydecimal", "fractions") else None


def _of_int(value: int) -> object:
    number = int.__index__(value)
    return number if -(2**63) < number < 2**63 else {"int": hex(number)}


def _of_float(value: float) -> float:
    if math.isnan(number := float.__float__(value)):
        _CONSTANTS["NaN"] = value
    return number


_PLAIN = frozenset({type(None), bool, int, float, str})
_SCALARS: dict[Any, Callable[[Any], object]] = {
    str: str.__str__,
    int: _of_int,
    float: _of_float,
    (bytes, bytearray): lambda value: {"bytes": bytes(value).hex()},
    complex: lambda value: {"complex": [value.real, value.imag]},
}


def _parts(value: Any) -> tuple[str, Any] | None:
    """(mark, what the value is made of) of one that keeps its type; None: it has no mark."""
    kind: Any = type(value)
    if issubclass(kind, type):
        return _type_parts(value)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "namedtuple", [kind.__name__, [*value._fields], [*value]]
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        if value.dtype.kind in "biufcSU":
            return "ndarray", [value.dtype.str, value.shape, value.ravel().tolist()]
    if kind is types.MappingProxyType:
        return "dict", [list(pair) for pair in value.items()]
    if value is NotImplemented or value is ...:
        return "constant", repr(value)
    if _MADE.get(kind.__name__) is kind:
        return "made", _reduced(value)
    return None


def _type_parts(value: type) -> tuple[str, str] | None:
    """Return the mark and the name of a type that `_type` finds again; None: it finds another."""
    name = value.__name__
    if name not in _TYPES and issubclass(value, Exception):
        name = f"{value.__module__}:{name}"
    return ("type", name) if _type(name) is value else None


def _reduced(value: object) -> list[Any]:
    """Return what `_made` makes a value from: its type's name, arguments, items and pairs."""
    # a pickle leaves out what is None at the end
    _, arguments, _, items, pairs = (*value.__reduce_ex__(4), None, None, None)[:5]
    if type(value) is bytearray:
        arguments = [bytes(value)]
    return [type(value).__name__, [*arguments], [*(items or ())], [*(pairs or ())]]


def _made(parts: Sequence[Any]) -> object:
    name, arguments, items, pairs = parts
    value = _MADE[name](*arguments)
    if items:
        value.extend(items)
    if pairs:
        value.update(pairs)
    return value


def _array(parts: Sequence[Any]) -> object:
    import numpy

    return numpy.array(parts[2], dtype=parts[0]).reshape(parts[1])


def _type(name: str) -> object:
    """Return a built-in type, or an exception of a module of the standard library that is loaded."""
    module, _, own = name.rpartition(":")
    if module.partition(".")[0] in sys.stdlib_module_names and module in sys.modules:
        kind = getattr(sys.modules[module], own, None)
        return kind if isinstance(kind, type) and issubclass(kind, Exception) else None
    return _TYPES.get(name)


_TYPES = {name: value for name, value in vars(builtins).items() if isinstance(value, type)}
_TYPES["_empty"] = inspect.Parameter.empty
# made again from what a pickle would have of them
_KINDS: tuple[Any, ...] = (
    *(Decimal, Fraction, bytearray, range, slice),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(collections.deque, collections.Counter, collections.OrderedDict, collections.defaultdict),
)
_MADE: dict[str, Any] = {kind.__name__: kind for kind in _KINDS}
_READ: dict[str, Callable[[Any], Any]] = {
    **{kind.__name__: kind for kind in (tuple, set, frozenset, dict)},
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
    "type": _type,
    "constant": {"NotImplemented": NotImplemented, "Ellipsis": ...}.__getitem__,
    "namedtuple": lambda parts: collections.namedtuple(parts[0], parts[1])(*parts[2]),
    "ndarray": _array,
    "made": _made,
}


def decode(
    text: str | bytes, *, of_object: object = None, max_bytes: int = MAX_VALUE_BYTES
) -> Any:
    """Decode what `encode` wrote. Only a process with limits of its own decodes another's text.

    Raises:
        NotPlain: it is something else.
    """
    if len(text) > max_bytes:
        raise NotPlain("a value that is too large")
    try:
        return _value(
            json.loads(text, parse_constant=_CONSTANTS.__getitem__),
            _READ | {"object": of_object},
        )
    except (
        ValueError,
        RecursionError,
        TypeError,
        KeyError,
        ArithmeticError,
        AttributeError,
    ) as error:
        raise NotPlain("no plain data") from error


def _value(given: object, read: dict[str, Any]) -> object:
    if isinstance(given, list):
        return [item if type(item) in _PLAIN else _value(item, read) for item in given]
    if not isinstance(given, dict):
        return given
    ((kind, content),) = given.items()
    return read[kind](_value(content, read))
