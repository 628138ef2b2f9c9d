"""The table of tasks: the grader of a response (`data.task`). A user adds one by import path.

    def grade(response, reference):             # in my_module.py; data.task=my_module:grade
        return float(reference in response)     # the score in [0, 1], True or False; None: it cannot be graded

No grader is imported here: entries name functions, which grading processes load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import (
    Name,
    OpenTable,
    check_signature,
    is_import_path,
    named_by,
    tried,
)

_ROOM = "r3_openrlhf.rewards.answers"
# kinds of answers, one file each: every one is a task
KINDS = sorted(
    file.stem
    for file in Path(__file__).parents[1].glob("rewards/answers/kinds/*.py")
    if not file.stem.startswith("_")
)
OPTIONAL = ("problem", "metadata", "truncated")  # what a user's function gets by its parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTask:
    """One way of judging responses.

    Args:
        grade: import path of a function from an Item (rewards/answers/request.py) to a Result; of a
            user's task the import path that he wrote; of a task that runs programs, of a function
            from the settings of reward.code to such a function.
        prepare: import path of a function to load what grading needs, before the first response.
        problems: begin of the only `data.path` that it can judge; None: any with a reference.
        answer_form: how a response says a given answer, for trials and attacks.
        runs_programs: a reference is tests of a program (config/code_tests.py), run in processes.
        of_user: `grade` is a user's own function."""

    grade: Name
    prepare: str | None = None
    problems: str | None = None
    answer_form: str = r"\boxed{%s}"
    runs_programs: bool = False
    of_user: bool = False


def _of_user(path: str, function: Callable[..., object]) -> AnswerTask:
    check_signature(
        "data.task",
        path,
        function,
        "response",
        "reference",
        **named_by(function, dict.fromkeys(OPTIONAL)),
    )
    trial = {"problem": "What is 2 + 2?", "metadata": None, "truncated": False}
    on = "the response '\\boxed{4}' and the reference '4'"
    facts = named_by(function, trial)
    score = tried(
        "data.task",
        path,
        lambda: function(r"2 + 2 = 4, so it is \boxed{4}", "4", **facts),
        on=on,
    )
    if not is_score(score):
        raise ConfigError(
            f"data.task is {quoted(path)}, which returned {quoted(score)}; use a number from 0 to 1, a bool or None"
        )
    return AnswerTask(grade=path if is_import_path(path) else function, of_user=True)


def is_score(value: object) -> bool:
    """Tell whether a user's function may return this: None, a bool, or a number from 0 to 1."""
    if value is None:
        return True
    try:
        return math.isfinite(value) and 0.0 <= float(value) <= 1.0  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


TASKS: OpenTable[AnswerTask] = OpenTable(
    "data.task",
    {
        "math": AnswerTask(
            grade=f"{_ROOM}.mathematics:grade", prepare=f"{_ROOM}.mathematics:warm_up"
        ),
        "exact": AnswerTask(grade=f"{_ROOM}.exact:grade"),
        **{name: AnswerTask(grade=f"{_ROOM}.tasks:of_kind") for name in KINDS},
        "words": AnswerTask(grade=f"{_ROOM}.tasks:words"),
        "number": AnswerTask(grade=f"{_ROOM}.tasks:number"),
        "reasoning_gym": AnswerTask(
            grade=f"{_ROOM}.reasoning_gym_tasks:grade",
            problems="reasoning_gym:",
            answer_form="<answer>%s</answer>",
        ),
        "code": AnswerTask(
            grade="r3_openrlhf.rewards.code.grading:grader",
            answer_form="```python\n%s\n```",
            runs_programs=True,
        ),
    },
    of_user=_of_user,
    unread=lambda path: AnswerTask(grade=path, of_user=True),
)
DEFAULT_TASK = "math"


def task_for(name: str | None, path: str) -> str:
    """Return the task of the problems at `data.path`: `name`, or for None the one of the path.

    Raises:
        ConfigError: there is no such task, it fails its trial, or cannot judge these problems.
    """
    if name is None:
        own = (
            word
            for word, task in TASKS.items()
            if task.problems is not None and path.startswith(task.problems)
        )
        return next(own, DEFAULT_TASK)
    needed = TASKS[name].problems
    if needed is not None and not path.startswith(needed):
        raise ConfigError(
            f"data.task is {name}, which needs problems of its own, but data.path is {path}; "
            f"use data.path={needed}TASK or data.task={DEFAULT_TASK}"
        )
    return name


# data sets of reasoning_gym whose scorers call answers correct which are not
REFUSED_DATA_SETS = {
    "coin_flip": "its scorer pays in full for an answer that is a prefix of the right one",
    "composite": "its entries name the data set that they come from; use that one",
    "game_of_life_halting": "its scorer takes any text that is not empty for True",
    "propositional_logic": "its scorer pays in full for the premises themselves, joined by AND",
    "puzzle24": "its scorer does not check which numbers were used",
}


def check_data_set(name: str) -> None:
    """ConfigError: answers to this reasoning_gym data set are not graded here."""
    if name in REFUSED_DATA_SETS:
        raise ConfigError(
            f"data.path names the reasoning_gym data set {quoted(name)}, which is not graded: {REFUSED_DATA_SETS[name]}"
        )
