"""The section `reward`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from r3_openrlhf.config.reward_functions import (
    BUILT_IN,
    RewardFunction,
    placed,
    reward_function,
)
from r3_openrlhf.method.checks import check_fields, number, word
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import is_import_path, is_looking


@dataclass
class CodeConfig:
    """Limits of programs (data.task=code). A problem may ask for more time or memory for a test."""

    # processor seconds of one test
    seconds_per_test: float = number(6.0, above=0)
    # seconds of all tests of a response; unfinished ones fail
    seconds: float = number(60.0, above=0)
    # memory of one test
    memory_mb: int = number(1024, min=64)
    # address of a server with SandboxFusion's /run_code, or several with commas between them; null: processes of
    # this machine
    url: str | None = None
    # score of a program: all or threshold (1 or 0; tests end with the verdict), share (of the tests passed); null:
    # share if reward.functions has data.task
    credit: str | None = word(None, ("all", "share", "threshold"))
    # credit=threshold: share of the tests that is enough
    threshold: float | None = number(None, above=0, max=1)
    # further languages: the word in a problem's tests -> the import path of its Language (docs/rewards.md)
    languages: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "reward.code.")
        if (self.credit == "threshold") != (self.threshold is not None):
            raise ConfigError(
                f"reward.code.credit is {quoted(self.credit)} and reward.code.threshold {quoted(self.threshold)}; set both or none: "
                "reward.code.credit=threshold reward.code.threshold=0.8"
            )
        for language, path in self.languages.items():
            if not isinstance(path, str) or not is_import_path(path):
                raise ConfigError(
                    f"reward.code.languages.{language} is {quoted(path)}; use package.module:name or file.py:name"
                )
        if self.url is not None and not all(
            _is_address(url.strip()) for url in self.url.split(",")
        ):
            raise ConfigError(
                f"reward.code.url is {quoted(self.url)}; an address starts with http:// or https://"
            )


@dataclass
class RewardConfig:
    """Grading and reward. R = 0 for a wrong answer, 1 + r_len for a right one [P], or your own."""

    # your function, my_rewards.py:is_right or package.module:function (docs/rewards.md); null: the grader of
    # data.task
    function: str | None = None
    # further arguments of reward.function; with reward.functions {name: {...}}
    function_args: dict[str, Any] = field(default_factory=dict)
    # several reward functions; data.task is the built-in grader's score
    functions: list[str] = field(default_factory=list)
    # weight of each of reward.functions in the sum; empty: 1 each
    weights: list[float] = field(default_factory=list)
    # lowest score that counts as correct
    correct_from: float = 1.0
    # L_max of the length reward, in tokens [P]; null: no length reward
    length_reward_max_tokens: int | None = number(32768, min=1)
    # reward servers, or OpenRLHF's, whose addresses end in /get_reward; empty: local processes
    urls: list[str] = field(default_factory=list)
    # seconds for grading one response, without waiting for a processor
    timeout_s: float = number(10.0, above=0)
    # grading processes of each rollout engine, if there are no urls
    num_workers: int = number(2, min=1)
    # limits of data.task=code, which timeout_s does not concern
    code: CodeConfig = field(default_factory=CodeConfig)
    # with urls: seconds until an unanswered response is ungraded
    deadline_s: float = number(300.0, above=0)
    # share of a step's rollouts without a verdict above which the run stops
    max_ungraded_rate: float = number(0.1, min=0, max=1)

    def __post_init__(self) -> None:
        check_fields(self, "reward.")
        self.function = None if self.function is None else placed(self.function)
        self.functions = [placed(path) for path in self.functions]
        self._check_functions()
        if self.code.credit is None and BUILT_IN in self.functions:
            self.code.credit = "share"
        if self.urls and len({url.endswith("/get_reward") for url in self.urls}) > 1:
            raise ConfigError(
                "reward.urls has servers of ours and of OpenRLHF (/get_reward); use one kind"
            )
        if self.urls and self.code.credit:
            raise ConfigError(
                f"reward.code.credit is {self.code.credit}, but the servers of reward.urls decide it; leave it out, and "
                f"give it to them: r3 serve-rewards --code-credit {self.code.credit}"
            )
        for url in self.urls:
            if not _is_address(url):
                raise ConfigError(
                    f"reward.urls holds {quoted(url)}; a reward server's address starts with http:// or https://"
                )

    def _check_functions(self) -> None:
        """ConfigError: settings of the user's functions exclude each other or do not fit them."""
        if self.function is not None and self.functions:
            raise ConfigError(
                "reward.function and reward.functions are set; write all of them into reward.functions"
            )
        if self.function is None:
            self._check_arguments()
        if self.all_functions and self.urls:
            raise ConfigError("reward.function and reward.urls are set; use one of the two")
        self._check_numbers()
        if not is_looking():
            self._check_names()

    def _check_arguments(self) -> None:
        """ConfigError: reward.function_args has a name that is none of reward.functions."""
        known = {path.rpartition(":")[2] for path in self.functions}
        unknown = set(self.function_args) - known
        if unknown:
            raise ConfigError(
                f"reward.function_args has {min(unknown)}, which is none of reward.functions; use reward.function, or "
                "{name: {...}} for each name in reward.functions"
            )

    def _check_numbers(self) -> None:
        """ConfigError: not one weight for each function, or a number is not finite."""
        if self.weights and len(self.weights) != len(self.functions):
            raise ConfigError(
                f"reward.weights has {len(self.weights)} numbers, but reward.functions has {len(self.functions)} functions; give one weight per function"
            )
        for value in (*self.weights, self.correct_from):
            if not math.isfinite(value):
                raise ConfigError(
                    f"reward.weights or reward.correct_from holds {value}; use finite numbers"
                )

    def _check_names(self) -> None:
        """ConfigError: two functions have one name, or one cannot be loaded."""
        names = [function.name for function in self.loaded_functions]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"reward.functions has functions with one name: {', '.join(names)}; rename one, because metrics use the names"
            )

    @property
    def loaded_functions(self) -> list[RewardFunction]:
        """The user's functions. ConfigError: one cannot be loaded."""
        paths = [path for path in self.all_functions if path != BUILT_IN]
        return [
            reward_function(
                "reward.function" if self.function else "reward.functions",
                path,
                self.arguments_of(path),
            )
            for path in paths
        ]

    def arguments_of(self, path: str) -> dict[str, Any]:
        """Return the part of function_args for one of all_functions."""
        if self.function:
            return self.function_args
        return self.function_args.get(path.rpartition(":")[2], {})

    @property
    def reads_groups(self) -> bool:
        """True if a function is called with all responses of a group."""
        return any(function.reads_group for function in self.loaded_functions)

    @property
    def reads_rows(self) -> bool:
        """True if a function may read the whole row of a problem."""
        return bool(self.all_functions)

    @property
    def all_functions(self) -> list[str]:
        """reward.function or reward.functions; empty: the grader of data.task alone."""
        return [self.function] if self.function is not None else self.functions

    @property
    def all_weights(self) -> list[float]:
        """Return a weight for each of all_functions."""
        return self.weights or [1.0] * len(self.all_functions)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = re.fullmatch(r"[\w.:%-]+", parts.hostname or "")
        return (
            parts.scheme in ("http", "https")
            and host is not None
            and (parts.port or 1) > 0
            and len(url.split()) == 1
        )
    except ValueError:  # a port that is none
        return False
