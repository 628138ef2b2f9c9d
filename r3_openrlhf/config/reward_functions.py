"""Reward functions of a user: `reward.function=my_rewards.py:is_right`, or several of them in
`reward.functions`.

    def is_right(response, reference, *, problem, row): ...        # ours: any of OFFERED, by name
    def shortest(responses, references): ...                       # ours, of the whole group: a list of values
    def accuracy(prompts, completions, **columns): ...             # TRL's reward_funcs
    def reward_func(queries, prompts, labels): ...                 # OpenRLHF's --reward.remote_url reward_func.py
    def compute_score(data_source, solution_str, ground_truth, extra_info): ...      # verl's custom_reward_function

Which of them a function is, is seen in the names of its parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import load_object

BUILT_IN = "data.task"  # in reward.functions: the score of the grader that data.task names
OFFERED = tuple(
    [
        "response",
        "reference",
        "references",
        "problem",
        "row",
        "prompt",
        "truncated",
        "num_tokens",
        "metadata",
    ]
)
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")  # its compute_score
_OPENRLHF: tuple[str, ...] = ("queries", "prompts", "labels")


class Signature(StrEnum):
    """The project whose parameters a function has."""

    OWN = "own"
    GROUP = "group"
    TRL = "trl"
    OPENRLHF = "openrlhf"


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A user's function. `wants`: what one of ours or verl's takes."""

    path: str
    name: str
    call: Callable[..., Any]
    signature: Signature
    wants: tuple[str, ...] = ()

    @property
    def reads_group(self) -> bool:
        """True if it is called once with all responses of a group."""
        return self.signature in (Signature.TRL, Signature.GROUP)


def placed(path: str) -> str:
    """Make the file of an import path absolute: runs are read from other directories, too."""
    file, colon, name = path.rpartition(":") if not path.endswith(".py") else (path, "", "")
    return (
        f"{Path(file).expanduser().absolute()}{colon}{name}" if file.endswith(".py") else path
    )


def reward_function(
    key: str, path: str, arguments: Mapping[str, Any] | None = None
) -> RewardFunction:
    """Return what an import path names. "file.py" alone is OpenRLHF's form: its `reward_func`.

    Args:
        arguments: further ones (reward.function_args), passed with each call; of a class, once.

    Raises:
        ConfigError: it cannot be imported, is no function, or needs a parameter that nothing is
            passed for."""
    function = load_object(key, f"{path}:reward_func" if path.endswith(".py") else path)
    name, arguments = getattr(function, "__name__", type(function).__name__), arguments or {}
    if inspect.isclass(function) and not arguments:
        raise ConfigError(
            f"{key} is {quoted(path)}, which is a class; give the arguments of an instance in reward.function_args, or make one in its file, "
            f"as in judge = {name}(), and name that"
        )
    if arguments:
        call = functools.partial(function, **arguments)
        try:
            inspect.signature(function).bind_partial(**arguments)
            function = call() if inspect.isclass(function) else call
        except Exception as error:  # a constructor raises anything
            raise ConfigError(
                f"{key} {path} does not take reward.function_args {dict(arguments)}: {error}"
            ) from error
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key} is {quoted(path)}, which is no function: {error}") from error
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {
        one.name
        for one in parameters
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    if "queries" in names:
        signature, offered = Signature.OPENRLHF, _OPENRLHF
    elif "completions" in names:
        # which columns there are is known with the first row; of a batch alone TRL knows more
        signature, offered = Signature.TRL, tuple(names - {"completion_ids", "trainer_state"})
    elif "responses" in names:
        signature, offered = Signature.GROUP, ("responses", *OFFERED[1:])
    else:
        signature, offered = Signature.OWN, VERL if "solution_str" in names else OFFERED
    needed = [
        one
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    lacking = [
        one.name for one in needed if one.kind is one.POSITIONAL_ONLY or one.name not in offered
    ]
    if lacking:
        raise ConfigError(
            f"{key} is {quoted(path)}, whose parameter {quoted(lacking[0])} nothing is passed for; a reward function may take "
            f"{', '.join(OFFERED)}, responses for all of a group, or have the parameters of TRL (completions, and columns), OpenRLHF (queries, prompts, labels) or verl "
            "(data_source, solution_str, ground_truth, extra_info)"
        )
    wants = tuple(
        word for word in offered if (takes_any or word in names) and word not in arguments
    )
    if signature is Signature.OWN and not wants:
        raise ConfigError(
            f"{key} is {quoted(path)}, which takes no parameter; use def {name}(response, reference)"
        )
    return RewardFunction(path, name, function, signature, wants)
