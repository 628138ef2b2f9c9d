"""A user's reward functions: called in killable processes, their values checked and added.

These processes are not confined: the function is the user's own, and a judge needs the network.
"""

import asyncio
import inspect
import math
import numbers
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from r3_openrlhf.config.reward_functions import (
    BUILT_IN,
    RewardFunction,
    Signature,
    reward_function,
)
from r3_openrlhf.method.errors import quoted
from r3_openrlhf.rewards.answers.request import Extras, GradeRequest, Outcome, Word

MAX_EXTRAS = 20
MAX_EXTRA_CHARS = 200
MAX_TRACEBACK_CHARS = 4000
_NEARLY = 1e-9  # sums of weights: 0.8 + 0.1 + 0.1 is a little less than 1


Finish = Callable[[Coroutine[Any, Any, Any]], Any]


class Part(msgspec.Struct, array_like=True, frozen=True):
    """The values of one function. `trouble` is why it says nothing, in a word or two; `detail` is
    the traceback.

    `absent`: None of a TRL function, which is "not mine" where there are several."""

    name: str
    reward: float | None = None
    score: float | None = None  # what decides whether the response is correct
    extras: Extras = {}
    trouble: str = ""
    error: str = ""
    detail: str = ""
    absent: bool = False


def make_worker(
    functions: Sequence[tuple[str, dict[str, Any]]],
) -> Callable[[GradeRequest], list[Part]]:
    """Make the handler of a pool's workers. It returns the parts of functions of one response; of a group
    those of functions of groups, for each function those of all its responses.

    functions: import path, further arguments. ConfigError: one that cannot be loaded."""
    known = [
        reward_function("reward.function", path, arguments) for path, arguments in functions
    ]
    loops: list[asyncio.AbstractEventLoop] = []

    def finish(work: Coroutine[Any, Any, Any]) -> object:
        if not loops:  # one for all items keeps connections; after the fork
            loops.append(asyncio.new_event_loop())
        return loops[0].run_until_complete(work)

    def handle(item: GradeRequest) -> list[Part]:
        called = [function for function in known if function.reads_group == bool(item.group)]
        return [part for function in called for part in _parts(function, item, finish)]

    return handle


def _parts(function: RewardFunction, item: GradeRequest, finish: Finish) -> list[Part]:
    try:
        values = zip(*_values(function, item, finish), strict=True)
        return [
            _best([checked_part(function.name, value) for value in each], function)
            for each in values
        ]
    except MemoryError:
        raise  # nothing in this process can be relied on any more
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_EXTRA_CHARS]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        part = Part(
            function.name,
            trouble=f"raised {type(error).__name__}",
            error=f"{function.name}: {text} ({Path(frame.filename).name}, line {frame.lineno})",
            detail=traceback.format_exc()[-MAX_TRACEBACK_CHARS:],
        )
        return [part] * max(1, len(item.group))


def _best(parts: Sequence[Part], function: RewardFunction) -> Part:
    if function.signature is Signature.TRL and parts[0].trouble == "no_score":
        return msgspec.structs.replace(parts[0], absent=True)
    known = [part for part in parts if part.score is not None]
    return max(known, key=lambda part: part.score or 0.0) if known else parts[0]


def _values(
    function: RewardFunction, item: GradeRequest, finish: Finish
) -> list[Sequence[object]]:
    """Return the function's values for the item's responses: of several accepted answers for each, if
    it asks for one."""

    def call(*arguments: object, **keywords: object) -> object:
        value = function.call(*arguments, **keywords)
        return finish(value) if inspect.iscoroutine(value) else value

    if function.signature is Signature.TRL:
        passed, parameters = _trl_arguments(item), inspect.signature(function.call).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            passed = {name: value for name, value in passed.items() if name in parameters}
        return [_values_of_group(call(**passed), item)]
    if function.signature is Signature.OPENRLHF:
        prompt = item.prompt or item.problem
        label = item.references[0] if len(item.references) == 1 else list(item.references)
        return [[openrlhf_value(call([prompt + item.response], [prompt], [label]))]]
    row = _row_of(item)
    offered = msgspec.structs.asdict(item) | {
        "references": list(item.references),
        "solution_str": item.response,
        "row": row,
    }
    offered |= {name: row.get(name) for name in ("data_source", "extra_info")}
    if function.reads_group:
        of_each = zip(*item.group, strict=True)
        offered |= {
            name: list(each)
            for name, each in zip(
                ("responses", "num_tokens", "truncated"), of_each, strict=True
            )
        }
    by_reference = {"reference", "ground_truth"} & set(function.wants)
    values = []
    for reference in (item.references or ("",)) if by_reference else ("",):
        offered |= {"reference": reference, "ground_truth": reference}
        value = call(**{name: offered[name] for name in function.wants})
        values.append(_values_of_group(value, item) if function.reads_group else [value])
    return values


def _values_of_group(value: object, item: GradeRequest) -> Sequence[object]:
    content = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(content, (list, tuple)) or len(content) != len(item.group):
        what = (
            f"{len(content)} values"
            if isinstance(content, (list, tuple))
            else type(content).__name__
        )
        raise ValueError(
            f"it returned {what} for the {len(item.group)} responses of a group; return a list with one for each"
        )
    return content


def _row_of(item: GradeRequest) -> dict[str, Any]:
    return item.row or (item.metadata if isinstance(item.metadata, dict) else {})


def _trl_arguments(item: GradeRequest) -> dict[str, Any]:
    """Return arguments as TRL's GRPOTrainer passes them: columns as lists, messages as such."""
    row = _row_of(item)
    prompt = row.get("prompt")
    talks = isinstance(prompt, list)
    texts = [text for text, *_ in item.group]
    completions = (
        [[{"role": "assistant", "content": text}] for text in texts] if talks else texts
    )
    columns = {
        name: [value] * len(texts)
        for name, value in row.items()
        if name not in ("prompt", "completion")
    }
    prompts = [prompt if talks else item.prompt or item.problem] * len(texts)
    return columns | {"prompts": prompts, "completions": completions}


def _only(value: object) -> object:
    content = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(content, (list, tuple)):
        if len(content) != 1:
            raise ValueError(f"it returned {len(content)} values for one response")
        return content[0]
    return content


def openrlhf_value(answer: object) -> dict[str, Any]:
    """OpenRLHF's {"rewards", "scores", "extra_logs"}, each a number, a tensor or a list of one, as
    a function of ours says it.

    Raises:
        ValueError: it is no such thing."""
    if not isinstance(answer, Mapping) or "rewards" not in answer:
        raise ValueError(f'it returned {type(answer).__name__}, not a dict with "rewards"')
    logs = answer.get("extra_logs") or {}
    score = _only(answer.get("scores"))
    content: dict[str, Any] = {str(name): _only(value) for name, value in logs.items()}
    return (
        content
        | {"reward": _only(answer["rewards"])}
        | ({} if score is None else {"score": score})
    )


def checked_part(name: str, value: object) -> Part:
    """Check a returned part: a bool, a number, None, or a dict with `reward` or `score`."""
    content = dict(value) if isinstance(value, Mapping) else {"reward": value}
    if isinstance(value, Mapping) and not {"reward", "score"} & content.keys():
        return _bad(name, "returned dict", 'a dict without "reward" or "score"')
    reward, score = content.pop("reward", None), content.pop("score", None)
    reward = score if reward is None else reward
    if reward is None:
        return Part(name, trouble="no_score", error=f"{name} returned None")
    numbers_ = {}
    for key, number in (("reward", reward), ("score", reward if score is None else score)):
        checked = _number(number)
        if checked is None:
            many = hasattr(number, "__len__") and not isinstance(number, (str, bytes, dict))
            what = (
                "a value per token or step is not used; return one number"
                if many
                else "which is no number"
            )
            return _bad(
                name,
                f"returned {type(number).__name__}",
                f"{key} {quoted(str(number))}, {what}",
            )
        if not math.isfinite(checked):
            return _bad(name, f"returned {checked}", f"{key} {checked}")
        numbers_[key] = checked
    extras: Extras = {}
    for key, extra in list(content.items())[:MAX_EXTRAS]:
        number_ = _number(extra)
        if number_ is not None and not math.isfinite(number_):
            return _bad(name, f"returned {number_}", f"{key} {number_}")
        extras[str(key)[:MAX_EXTRA_CHARS]] = (
            number_ if number_ is not None else str(extra)[:MAX_EXTRA_CHARS]
        )
    return Part(name, numbers_["reward"], numbers_["score"], extras)


def _bad(name: str, trouble: str, what: str) -> Part:
    return Part(name, trouble=trouble, error=f"{name} returned {what}")


def _number(value: object) -> float | None:
    # numbers of numpy and tensors of one element
    value = (
        value.item()
        if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1
        else value
    )
    return float(value) if isinstance(value, numbers.Real | Decimal) else None


def combined(
    parts: Sequence[Part], weights: Sequence[float], *, correct_from: float
) -> Outcome:
    """Combine the parts of all functions: reward and score are sums by weight; the built-in grader,
    if it is one of them, says what is correct, else a sum from `correct_from` on.

    One function without a value leaves the whole response ungraded. Only a TRL function's None is
    "not mine" while another one has a value."""
    present: list[tuple[Part, float]] = []
    for part, weight in zip(parts, weights, strict=True):
        if not part.absent:
            present.append((part, weight))
    ungraded = _first_trouble(parts)
    if ungraded is not None:
        return Outcome(
            "ungraded",
            ungraded.trouble,
            extras={"error": ungraded.error} if ungraded.error else {},
            detail=ungraded.detail,
        )
    reward = math.fsum(weight * (part.reward or 0.0) for part, weight in present)
    score = math.fsum(weight * (part.score or 0.0) for part, weight in present)
    extras: Extras = {}
    for part, _ in present:
        extras |= part.extras if len(parts) == 1 else _named_extras(part)
    verdict = _verdict([part for part, _ in present], score, correct_from=correct_from)
    return Outcome(verdict, verdict, score, reward=reward, extras=extras)


def _first_trouble(parts: Sequence[Part]) -> Part | None:
    """Return the part that leaves the response ungraded: the first one with a trouble among those
    that have something to say, or the first of all where none has. None: it is graded."""
    present = [part for part in parts if not part.absent]
    if not present:
        return next(iter(parts), None)
    return next((part for part in present if part.trouble), None)


def _named_extras(part: Part) -> Extras:
    """Return the reward and the extras of one of several functions, under its name."""
    extras: Extras = {part.name: part.reward or 0.0}
    for key, extra in part.extras.items():
        extras[f"{part.name}.{key}"] = extra
    return extras


def _verdict(parts: Sequence[Part], score: float, *, correct_from: float) -> Word:
    """Decide what is correct: by the built-in grader where it is one of them, else by the sum."""
    built_in = next((part for part in parts if part.name == BUILT_IN), None)
    if built_in is None or built_in.score is None:
        return "correct" if score >= correct_from - _NEARLY else "wrong"
    return "correct" if built_in.score >= 1.0 - _NEARLY else "wrong"


def part_of(outcome: Outcome) -> Part:
    """Return the built-in grader's outcome as one of several functions."""
    if outcome.score is None:
        return Part(BUILT_IN, trouble=outcome.reason)
    return Part(BUILT_IN, outcome.score, outcome.score)
