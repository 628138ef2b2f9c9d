"""Read the values that a loop hands over, by the type of the field that they are for.

A value is taken where its field's type holds it exactly: a list of whole numbers for token ids, 1.0
for 1, text for a Word. Floats are rounded to the precision of their array. Everything else is one
InvalidValue, which names the field, the value, and what to use instead."""

import contextlib
import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from r3_openrlhf.method.errors import InvalidValue, quoted
from r3_openrlhf.method.types import ArrayOf, Context, Rollout, Verdict, Word

MAX_COUNT = 2**53  # a JSON number and SQLite's REAL lose digits beyond it
MAX_NUMBER = 1e300  # within the columns of the history
MAX_REWARD = 1e6  # rewards are 2 at most; sums of larger ones lose digits
Reader = Callable[[str, Any], Any]  # (name of the field, value) -> the value as its type has it


def read(name: str, hint: object, value: object) -> Any:
    """`value` as the type `hint` has it. InvalidValue: the type cannot hold it; `name`: its field."""
    return _reader(hint)(name, value)


def read_rollouts(rollouts: Iterable[Rollout], *, step: int | None = None) -> list[Rollout]:
    """Check the rollouts of a step, each field converted to its type in place.

    step: optimizer steps done so far: no rollout was sampled by later weights. None: not known.
    InvalidValue: the first field that cannot be trained on or stored."""
    if not isinstance(rollouts, Iterable):
        raise refusal("rollouts", rollouts, "a list of Rollout")
    checked = list(rollouts)
    for i, rollout in enumerate(checked):
        if not isinstance(rollout, Rollout):
            raise refusal(f"rollouts[{i}]", rollout, "r3_openrlhf.Rollout")
        try:
            for name, reader in _readers(Rollout):
                setattr(rollout, name, reader(name, getattr(rollout, name)))
            for name, instead in _contradictions(rollout, step=step):
                raise refusal(name, getattr(rollout, name), instead)
        except InvalidValue as error:
            raise InvalidValue(
                f"rollouts[{i}] of problem {quoted(rollout.uid)}: {error}"
            ) from None
    return checked


def refusal(name: str, value: object, instead: str) -> InvalidValue:
    """Make the error for a value: its name, itself, and what to use instead."""
    return InvalidValue(f"{name} is {quoted(value)}; use {instead}")


def _contradictions(rollout: Rollout, *, step: int | None) -> Iterator[tuple[str, str]]:
    """Yield each field that others contradict, and what to use instead."""
    if _has_surrogates(rollout.uid):
        yield "uid", "valid Unicode"
    yield from _wrong_steps(rollout, step=step)
    yield from _wrong_lengths(rollout)
    reward = _reward_allowed(rollout)
    if reward is not None:
        yield "reward", f"{reward}, because the verdict is {rollout.verdict}"
    yield from _wrong_parts(rollout)


def _wrong_steps(rollout: Rollout, *, step: int | None) -> Iterator[tuple[str, str]]:
    """Yield the fields that say under which weights the rollout was sampled, if they cannot be true."""
    if rollout.pieces and not _are_pieces(rollout):
        length = rollout.num_tokens
        yield (
            "pieces",
            f"(tokens, policy step) of the {length} response tokens, steps rising from policy_step",
        )
    if step is None:
        return
    last_step = int(rollout.policy_steps.max(initial=rollout.policy_step))
    if last_step > step:
        yield "policy_step", f"at most {step}, the optimizer steps done so far"


def _wrong_lengths(rollout: Rollout) -> Iterator[tuple[str, str]]:
    """Yield the token ids that a verdict needs, and log-probs that are not one for each token."""
    length = rollout.num_tokens
    if rollout.verdict is not Verdict.UNGRADED and not length:
        yield "response_ids", "at least one token, the end mark, or the verdict ungraded"
    if rollout.experts is not None:
        tokens = len(rollout.prompt_ids) + length - 1
        if len(rollout.experts) != tokens or not rollout.experts.size:
            instead = (
                f"those of {tokens} tokens, all of prompt and response but the last, or None"
            )
            yield "experts", instead
    if rollout.has_logprobs:
        return
    num_logprobs = len(rollout.response_logprobs)
    has_none = rollout.context is Context.IMPORTED and not num_logprobs
    if not has_none:
        instead = f"{length} values, one for each of the response_ids, not {num_logprobs}"
        yield "response_logprobs", instead


def _wrong_parts(rollout: Rollout) -> Iterator[tuple[str, str]]:
    """Yield the fields that divide the response, or say where it is from, if they do not fit it."""
    length = rollout.num_tokens
    is_imported = rollout.context is Context.IMPORTED
    if not _turns_add_up(rollout):
        yield "turns", f"turns whose num_tokens add up to the {length} response tokens"
    if is_imported != bool(rollout.origin):
        yield "origin", "where an imported rollout is from, and no text for any other"
    if not _are_runs(rollout.given, length=length):
        yield "given", f"runs (begin, end) of the {length} response tokens, in order and apart"
    cuts = () if rollout.state is None else rollout.state.cuts
    if not all(0 < cut < length for cut, _ in cuts):
        yield "state", f"one after at least 1 and less than {length} tokens"


def _has_surrogates(text: str) -> bool:
    """Tell whether a text has half of a surrogate pair, which UTF-8 cannot hold."""
    if text.isascii():
        return False
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _reward_allowed(rollout: Rollout) -> str | None:
    """Say which reward the verdict allows; None: the rollout has such a one."""
    if rollout.verdict is Verdict.UNGRADED:
        return None if rollout.reward is None else "None"
    if rollout.reward is None or abs(rollout.reward) > MAX_REWARD:
        return "a number up to 1e6"
    return None


def _turns_add_up(rollout: Rollout) -> bool:
    """Tell whether the turns of a trajectory, if it is one, have as many tokens as the response."""
    if rollout.turns is None:
        return True
    num_tokens = sum(turn.num_tokens for turn in rollout.turns)
    return num_tokens == max(1, rollout.num_tokens)


def _are_pieces(rollout: Rollout) -> bool:
    """Tell whether the pieces of a paused response are its tokens, each of later weights."""
    if any(len(piece) != 2 for piece in rollout.pieces):
        return False
    lengths = [tokens for tokens, _ in rollout.pieces]
    steps = [step for _, step in rollout.pieces]
    are_rising = steps == sorted(set(steps)) and steps[0] == rollout.policy_step
    return are_rising and sum(lengths) == rollout.num_tokens


def _are_runs(runs: Sequence[tuple[int, ...]], *, length: int) -> bool:
    """Tell whether these are runs (begin, end) within `length` tokens, in order and apart."""
    if any(len(run) != 2 for run in runs):
        return False
    bounds = [bound for run in runs for bound in run]
    are_rising = bounds == sorted(set(bounds))
    return are_rising and max(bounds, default=0) <= length


# ── a reader for each type of a field ──


@functools.cache
def _readers(record: type) -> list[tuple[str, Reader]]:
    hints = typing.get_type_hints(record, include_extras=True)
    return [(field.name, _reader(hints[field.name])) for field in fields(record)]


@functools.cache
def _reader(hint: Any) -> Reader:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return functools.partial(_array, parts[1])
    if origin in (typing.Union, types.UnionType):
        readers = [_reader(part) for part in parts if part is not types.NoneType]
        return functools.partial(_union, readers, len(readers) < len(parts))
    if origin is tuple:
        return functools.partial(_tuple, _reader(parts[0]))
    if origin is dict:
        return functools.partial(_dict, _reader(parts[1]))
    if is_dataclass(hint):
        return functools.partial(_record, hint)
    return (
        hint.checked
        if issubclass(hint, Word)
        else functools.partial(_plain, hint, *_PLAIN[hint])
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= MAX_NUMBER  # NaN is not


_PLAIN: dict[type, tuple[str, Callable[[Any], bool]]] = {
    str: ("text", lambda value: isinstance(value, str)),
    bool: ("True or False", lambda value: _is_number(value) and value in (0, 1)),
    int: (
        "a whole number from 0 to 2**53",
        lambda value: _is_number(value) and 0 <= value <= MAX_COUNT and value % 1 == 0,
    ),
    float: ("a finite number up to 1e300", _is_number),
}


def _plain(
    kind: type, what: str, holds: Callable[[Any], bool], name: str, value: Any
) -> object:
    scalar = value.item() if getattr(value, "ndim", None) == 0 else value  # of numpy or torch
    if not holds(scalar):
        raise refusal(name, value, what)
    return kind(scalar)


def _array(spec: ArrayOf, name: str, value: object) -> np.ndarray:
    try:
        given = np.asarray(value)
    except Exception:  # torch: a tensor on a GPU or with a gradient; lists of different lengths
        raise refusal(
            name, value, f"{spec.shape} array of {spec.what}, on the CPU and detached"
        ) from None
    if given.ndim != spec.ndim or given.dtype.kind not in "iuf":
        raise refusal(name, value, f"{spec.shape} array of {spec.what}")
    if given.dtype in (spec.dtype, spec.narrow or spec.dtype) and (
        not given.size or spec.low <= given.min() and given.max() <= spec.high
    ):
        return np.ascontiguousarray(given)
    if given.dtype.kind == "f" and given.dtype.itemsize < 8:
        given = given.astype(np.float64)  # a bound of int32 is infinite in float16
    allowed = (given >= spec.low) & (given <= spec.high)  # NaN is not
    if np.dtype(spec.dtype).kind in "iu":
        allowed &= given == np.floor(given)
    if not allowed.all():
        wrong = int(np.argmin(allowed))
        raise refusal(f"{name}[{wrong}]", given.flat[wrong].item(), spec.what)
    return given.astype(spec.dtype)


def _union(readers: list[Reader], may_be_none: bool, name: str, value: object) -> object:
    if value is None and may_be_none:
        return None
    for reader in readers[:-1]:
        with contextlib.suppress(InvalidValue):
            return reader(name, value)
    return readers[-1](name, value)


def _tuple(reader: Reader, name: str, value: object) -> tuple[Any, ...]:
    if isinstance(value, tuple | list):
        return tuple(reader(f"{name}[{i}]", one) for i, one in enumerate(value))
    raise refusal(name, value, "a tuple")


def _dict(reader: Reader, name: str, value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return {
            read(f"a key of {name}", str, key): reader(f"{name}[{key!r}]", one)
            for key, one in value.items()
        }
    raise refusal(name, value, "a dict")


def _record(record: Any, name: str, value: Any) -> object:
    if not isinstance(value, record):
        raise refusal(name, value, f"r3_openrlhf.method.types.{record.__name__}")
    return replace(
        value,
        **{
            part: reader(f"{name}.{part}", getattr(value, part))
            for part, reader in _readers(record)
        },
    )
