"""What is said of a response that the rollout engine spoiled: it is ungraded, and the engine is named.

A fault is a reason that begins with ENGINE; "" is none."""

import os

from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.runs.endings import Ending, ending_of

ENGINE = "engine: "


def fault_of(finish_reason: str, *, num_tokens: int) -> str:
    """Return why a response cannot be graded, "" if it can. num_tokens: of what the engine sampled last."""
    if ending_of(finish_reason, num_tokens=num_tokens) is not Ending.UNGRADED:
        return ""
    if ending_of(finish_reason) is not Ending.UNGRADED:
        return f"{ENGINE}no tokens"
    return ENGINE + finish_reason


def is_fault(reason: str) -> bool:
    """Tell whether the engine is why something is ungraded."""
    return reason.startswith(ENGINE)


def grade_of_fault(fault: str) -> Grade:
    """Return the absence of a grade. The engine's process is this one."""
    what = fault.removeprefix(ENGINE)
    said = f"the rollout engine in process {os.getpid()} on {os.uname().nodename} gave up a response ({what})"
    return Grade(
        verdict=Verdict.UNGRADED, reason=fault, score=None, reward=None, extras={"error": said}
    )
