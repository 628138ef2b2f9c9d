"""What is said of a response that the rollout engine spoiled: it is ungraded, and the engine is named.

A fault is a reason that begins with ENGINE; "" is none."""

import os

import numpy as np

from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.runs.endings import Ending, ending_of

ENGINE = "engine: "
# in the place of a finish reason; its meaning is Ending.UNGRADED
NOT_FINITE = "log-probs not finite"


def checked_logprobs(logprobs_TK: np.ndarray, finish_reason: str) -> tuple[np.ndarray, str]:
    """Check an engine's log-probs: float32 [T, 1 + k], of the sampled token and then of the likeliest.

    Returns them, and why the response ended. That is NOT_FINITE where a log-prob is missing, NaN or
    infinite; only one of a token that was not sampled may be -inf. Those numbers are 0 then."""
    good_TK = np.isfinite(logprobs_TK)
    good_TK[:, 1:] |= np.isneginf(logprobs_TK[:, 1:])
    if good_TK.all():
        return logprobs_TK, finish_reason
    return np.where(good_TK, logprobs_TK, np.float32(0)), NOT_FINITE


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
    did = (
        "returned a response whose log-probs are not finite"
        if what == NOT_FINITE
        else f"gave up a response ({what})"
    )
    said = f"the rollout engine in process {os.getpid()} on {os.uname().nodename} {did}"
    return Grade(
        verdict=Verdict.UNGRADED, reason=fault, score=None, reward=None, extras={"error": said}
    )
