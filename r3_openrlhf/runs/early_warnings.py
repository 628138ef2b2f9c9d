"""What looks wrong in the rollouts of a run's first steps, in sentences for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from r3_openrlhf.method.types import Rollout, Verdict

FIRST_STEPS = 3
NEARLY_ALL = 0.95


def early_warnings(rollouts: Sequence[Rollout], *, step: int) -> dict[str, str]:
    """Kind of trouble -> a sentence about it, for the rollouts of one step (`step` is from 1). After FIRST_STEPS only what could
    not be graded is worth one. Nothing stops here: a hard problem set looks like a broken grader, and only a person can tell.
    """
    found, total = {}, len(rollouts)
    graded = [rollout for rollout in rollouts if rollout.verdict is not Verdict.UNGRADED]
    correct = [rollout.graded_reward for rollout in graded if rollout.verdict is Verdict.CORRECT]
    wrong = [rollout.graded_reward for rollout in graded if rollout.verdict is Verdict.WRONG]
    truncated = sum(rollout.truncated for rollout in rollouts)
    if len(graded) < total:
        found["ungraded"] = f"step {step}: {ungraded_sentence(rollouts)}"
    if step > FIRST_STEPS or not rollouts:
        return found
    if truncated >= NEARLY_ALL * total:
        found["truncated"] = (
            f"step {step}: {truncated} of {total} responses were cut off at the limit of tokens; raise rollout.max_new_tokens, or "
            "see whether the model's end token is one of the run"
        )
    if graded and not correct:
        found["none correct"] = (
            f"step {step}: none of {len(graded)} graded responses is correct; look at some with "
            f"`r3 show RUN --rollouts --step {step}` before you wait for more"
        )
    if correct and wrong and fmean(correct) <= fmean(wrong):
        found["contradiction"] = (
            f"step {step}: {len(correct) / len(graded):.0%} of the responses count as correct, but their mean reward {fmean(correct):.3g} "
            f"is not above that of the wrong ones, {fmean(wrong):.3g}; see reward.correct_from"
        )
    return found


def ungraded_sentence(rollouts: Sequence[Rollout]) -> str:
    """How many could not be graded, why, and what one reward function or server said."""
    ungraded = [rollout for rollout in rollouts if rollout.verdict is Verdict.UNGRADED]
    reasons = Counter(rollout.reason for rollout in ungraded)
    why = ", ".join(f"{reason} ({number})" for reason, number in reasons.most_common(4))
    errors = Counter(str(rollout.extras["error"]) for rollout in ungraded if "error" in rollout.extras)
    said = f"; {errors.most_common(1)[0][0]}" if errors else ""
    return f"{len(ungraded)} of {len(rollouts)} responses could not be graded: {why}{said}"
