"""Work of the grading processes: grade one response by its task. Nothing of an item stays."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from r3_openrlhf.config.answer_tasks import OPTIONAL, TASKS, is_score
from r3_openrlhf.machine.processes.sandbox import take_violations
from r3_openrlhf.method.open_table import load_object, loaded, named_by
from r3_openrlhf.rewards.answers.exact import short_answer
from r3_openrlhf.rewards.answers.request import Item, Outcome, Result

MAX_PROBLEM_CHARS = 20_000


def make_worker(task: str, code: dict[str, Any] | None = None) -> Callable[[Item], Outcome]:
    """Make the handler of a pool's workers: it loads what this task needs and nothing else.

    Args:
        code: Settings of reward.code, for a task that runs programs.

    Raises:
        ConfigError: no such task, or a user's function that cannot be loaded or fails its trial.
    """
    entry = TASKS[task]
    judge = loaded("data.task", entry.grade)
    if entry.runs_programs:
        judge = judge(code)
    if entry.of_user:
        judge = _judge_of_user(judge)
    if entry.prepare is not None:
        load_object("data.task", entry.prepare)()

    def handle(item: Item) -> Outcome:
        return _grade(
            judge, msgspec.structs.replace(item, problem=item.problem[:MAX_PROBLEM_CHARS])
        )

    return handle


def _grade(judge: Callable[[Item], Result], item: Item) -> Outcome:
    started = time.perf_counter()
    try:
        result = judge(item)
    except MemoryError:
        raise  # nothing in this process can be relied on any more
    except Exception:  # a grader's own mistake: it must not look like the item's
        result = "ungraded", "grader_error", None, None
    if take_violations():
        result = "wrong", "blocked", 0.0, None
        if not _is_harmless(
            judge, msgspec.structs.replace(item, response=r"\boxed{0}", truncated=False)
        ):
            result = "ungraded", "blocked", None, None  # the reference's doing
    return Outcome(*result, seconds=round(time.perf_counter() - started, 6))


def _is_harmless(judge: Callable[[Item], Result], item: Item) -> bool:
    """Return whether grading it does not try to run code from a string."""
    try:
        judge(item)
    except MemoryError:
        raise
    except Exception:  # what becomes of the answer does not matter here, only what was tried
        pass
    return not take_violations()


def _judge_of_user(function: Callable[..., object]) -> Callable[[Item], Result]:
    """Make a grader of a user's function: the best score over the accepted answers; 1 is correct."""

    def judge(item: Item) -> Result:
        metadata = (
            msgspec.json.decode(item.metadata)
            if isinstance(item.metadata, bytes)
            else item.metadata
        )
        more = dict(zip(OPTIONAL, (item.problem, metadata, item.truncated), strict=True))
        scores = [
            function(item.response, reference, **named_by(function, more))
            for reference in item.references
        ]
        if not all(map(is_score, scores)):
            return "ungraded", "bad_score", None, None
        known = [float(score) for score in scores if score is not None]  # type: ignore[arg-type]
        if not known:
            return "ungraded", "no_score", None, None
        extracted = (short_answer(item.response) or "")[:1000] or None
        if max(known) == 1.0:
            return "correct", "correct", 1.0, extracted
        return "wrong", "wrong", max(known), extracted

    return judge
