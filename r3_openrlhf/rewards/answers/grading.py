"""`r3_openrlhf.grade`: the grader alone, in the caller's process, without the training stack."""

import importlib
from dataclasses import asdict

from r3_openrlhf.config import CodeConfig
from r3_openrlhf.config.answer_tasks import DEFAULT_TASK, TASKS
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.rewards.answers.reading.scanner import OPEN_THINKING
from r3_openrlhf.rewards.answers.request import Item, Outcome


def grade(
    response: str,
    references: str | tuple[str, ...] | list[str],
    *,
    problem: str = "",
    task: str = DEFAULT_TASK,
    truncated: bool = False,
    thinking_open: bool = False,
    metadata: dict | None = None,
) -> Outcome:
    r"""Grade a response: correct if it gives one of the references as its answer.

        grade(r"So it is \boxed{\frac12}.", "0.5").verdict == "correct"

    There is no deadline: a computer algebra system may be busy for minutes. Training grades in
    processes killed after `reward.timeout_s`; `r3_openrlhf.rewards.client.make_grader` has them.

    Args:
        response: What the model wrote, without the prompt. Hostile text: nothing of it is run.
        references: Accepted answers; any of them counts.
        problem: The text of the problem, if known: a formula copied from it is no answer.
        task: "math", "exact", "reasoning_gym" or "code", whose reference is tests (docs/rewards.md).
        truncated: The response ended at the token limit: only a marked answer counts.
        thinking_open: The prompt ends with an open <think>: what comes before its end is no answer.
        metadata: reasoning_gym only: the entry of the data set.

    Returns:
        `verdict` ("correct", "wrong" or "ungraded"), `reason`, `score` (0 to 1; None: ungraded) and
        `extracted`, the answer of the response.

    Raises:
        ImportError: the library that this task needs is not installed.
        ConfigError: no task of ours has this name.
    """
    entry = TASKS[task]
    if entry.of_user:
        raise ConfigError(
            f"task is {quoted(task)}, a function of your own; call it itself, or use math or exact"
        )
    accepted = (references,) if isinstance(references, str) else tuple(references)
    text = OPEN_THINKING + response if thinking_open else response
    module, _, function = str(entry.grade).partition(":")
    try:
        judge = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        extra = "eval" if task == "reasoning_gym" else "grading"
        raise ImportError(
            f"task {task!r} needs {error.name}, which is not installed: pip install 'r3_openrlhf[{extra}]'"
        ) from error
    if entry.runs_programs:
        judge = judge(asdict(CodeConfig()))
    return Outcome(*judge(Item(task, text, accepted, truncated, metadata, problem)))
