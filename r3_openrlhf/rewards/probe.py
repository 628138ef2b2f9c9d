"""A run's rewards on a right, a wrong and an empty response, for its first page."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.config.reward_functions import BUILT_IN
from r3_openrlhf.method.errors import quoted, without_secrets
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader
from r3_openrlhf.rewards.exchange import Grade, in_group

# no data set has them as answers; one that lacks the reference's digits is taken
WRONG = ("-987654321.5", "-7770", "-4466", "-2233")
# the forms that format rewards want, all at once
DRESSED = "<think>\nI guess.\n</think>\n\n<answer>\n%s\n</answer>"
NUM_TOKENS = 16  # as if the response had so many
MAX_WAIT_S = 10.0  # for a server; a run itself waits longer
# may be otherwise when the run starts
_LATER = frozenset({"unreachable", "unavailable", "closed"})


@dataclass(frozen=True, slots=True)
class Probe:
    """A line about each reward, "right: correct, reward 1.75; wrong: ...", and what is wrong with them."""

    rewards: list[str]
    findings: list[Finding]


def probe_rewards(config: RewardConfig, label: Any, prompt: str = "") -> Probe:
    """Ask the functions or each server of `config` about the problem of a `problems.Label`.

    The right response is the reference in its task's form or, if not correct, alone; empty for
    tests. A function or server may want another form: that is a warning. Starts and ends grading
    processes."""
    task = TASKS[label.task]
    form, answers = task.answer_form, () if task.runs_programs else tuple(label.references)
    wrong = next(
        (one for one in WRONG if not any(answer in one for answer in answers)), WRONG[0]
    )
    responses = {
        "right": form % answers[0] if answers else "",
        "wrong": form % wrong,
        "empty": "",
    }
    if answers:
        responses["alone"] = answers[0]
        responses["dressed"] = DRESSED % form % wrong
    requests = [
        GradeRequest.about(label, text, num_tokens=NUM_TOKENS, prompt=prompt)
        for text in responses.values()
    ]
    rewards, findings = [], []
    wait, key = (
        min(config.deadline_s, MAX_WAIT_S),
        "reward.function" if config.function else "reward.functions",
    )
    whole = ", called with the whole group" if config.reads_groups else ""
    asked = {
        f"reward server {without_secrets(url)}": replace(config, urls=[url], deadline_s=wait)
        for url in config.urls
    } or {f"{key} {', '.join(config.all_functions)}{whole}": config}
    for who, one in asked.items():
        grades = dict(zip(responses, grades_of(one, in_group(requests)), strict=True))
        alone = grades.pop("alone", grades["right"])
        if alone.verdict is Verdict.CORRECT and grades["right"].verdict is not Verdict.CORRECT:
            grades["right"] = alone
        shown = {name: grade for name, grade in grades.items() if name != "dressed"}
        rewards.append(
            f"{who}: " + "; ".join(f"{name}: {_words(grade)}" for name, grade in shown.items())
        )
        if finding := _by_form(who, one, grades) or _finding(who, grades, references=answers):
            findings.append(finding)
    return Probe(rewards, findings)


def grades_of(config: RewardConfig, requests: Sequence[GradeRequest]) -> list[Grade]:
    """Return the grade of each request, by graders that are started and ended here."""

    async def grade() -> list[Grade]:
        grader = make_grader(config)
        try:
            first = [await grader.grade(one) for one in requests[:1]]
            # what does not answer once is not waited for again
            if first and first[0].reason == "timeout":
                return first * len(requests)
            return [*first, *await asyncio.gather(*map(grader.grade, requests[1:]))]
        finally:
            grader.close()
            await asyncio.sleep(0)

    return asyncio.run(grade())


def _words(grade: Grade) -> str:
    if grade.reward is None:
        return f"ungraded ({grade.reason})"
    reason = "" if grade.reason in ("correct", "wrong") else f" ({grade.reason})"
    return f"{grade.verdict}{reason}, reward {grade.reward:g}"


def _finding(
    who: str, grades: dict[str, Grade], *, references: tuple[str, ...]
) -> Finding | None:
    right, wrong, empty = grades["right"], grades["wrong"], grades["empty"]
    if all(grade.verdict is Verdict.UNGRADED for grade in grades.values()):
        why = (
            f"{right.reason}, {right.extras['error']}"
            if "error" in right.extras
            else right.reason
        )
        if right.reason in _LATER:
            return Finding(f"{who} gives no answer now ({why}); start it before the run")
        return Finding(
            f"{who} grades nothing ({why[:200]}); repair it before the run", refuses=True
        )
    for name, grade in (("a wrong answer", wrong), ("an empty response", empty)):
        if grade.verdict is Verdict.CORRECT:
            return Finding(f"{who} calls {name} correct; look at it before the run")
        if (
            references
            and right.reward is not None
            and grade.reward is None
            and grade.reason not in _LATER
        ):
            return Finding(
                f"{who} says nothing to {name} ({grade.reason}), which is then ungraded and leaves its group; let it return 0"
            )
    if "dressed" in grades and grades["dressed"].verdict is Verdict.CORRECT:
        what = f"a wrong answer in the form of a right one correct, like {quoted(DRESSED)}"
        return Finding(f"{who} calls {what}; look at it before the run")
    if references and right.verdict is not Verdict.CORRECT:
        shown = references[0][:80]
        return Finding(
            f"{who} does not call the reference {quoted(shown)} correct, alone or in a box, but {_words(right)}; is it meant?"
        )
    return None


def _by_form(who: str, config: RewardConfig, grades: dict[str, Grade]) -> Finding | None:
    right, wrong = (grades[name].extras for name in ("right", "wrong"))
    weights = dict(
        zip((one.name for one in config.loaded_functions), config.all_weights, strict=False)
    )
    same = [name for name in weights if right.get(name) == wrong.get(name, "")]
    if BUILT_IN in config.all_functions or not 0 < len(same) < len(weights):
        return None
    if sum(max(weights[name], 0.0) for name in same) < config.correct_from:
        return None
    return Finding(
        f"{who}: {' and '.join(same)} say the same to a right and a wrong answer, and alone can reach reward.correct_from, so that "
        f"errors count as correct; put {BUILT_IN} among the functions, or raise reward.correct_from",
        refuses=True,
    )
