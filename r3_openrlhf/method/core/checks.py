"""Refusals shared by the core functions: each names the argument and the wrong value."""

import math
from collections.abc import Iterable
from typing import Any

from r3_openrlhf.method.checks import MAX_VALUE, Bounds
from r3_openrlhf.method.errors import quoted


def finite_values(name: str, values: Iterable[Any]) -> list[float]:
    """`values` as Python floats. ValueError: there are none, or one is not finite."""
    numbers = [finite_value(f"{name}[{i}]", value) for i, value in enumerate(values)]
    if not numbers:
        raise ValueError(f"{name} is empty; give at least one value")
    return numbers


def finite_value(name: str, value: Any, **bounds: Any) -> float:
    """`value` as a Python float. ValueError: no finite number, or outside of Bounds(**bounds)."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {quoted(value)}; it must be a finite number") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}; it must be a finite number")
    if bounds and not Bounds(**bounds).allow(max(-MAX_VALUE, min(number, MAX_VALUE))):
        raise ValueError(f"{name} is {number}; {Bounds(**bounds)}")
    return number


def same_length(**lists: list[Any]) -> None:
    """ValueError when the named lists differ in length."""
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "lengths differ: "
            + ", ".join(f"{name} has {length}" for name, length in lengths.items())
            + " values"
        )


def whole_number(name: str, value: object, *, minimum: int) -> int:
    """`value` as an int. ValueError when it is not a whole number, or is below `minimum`."""
    number = finite_value(name, value, min=minimum)
    if number != int(number):
        raise ValueError(f"{name} is {value}; it must be a whole number")
    return int(number)
