"""Say what looks wrong in the first steps' rollouts, and what goes wrong slowly, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from r3_openrlhf.method.types import Rollout, Verdict

FIRST_STEPS = 3
NEARLY_ALL = 0.95

WINDOW = 10  # steps, at the beginning and now
LONGER = 1.5  # times as long
TRUNCATED = 0.25  # of the responses, and so much more than at the beginning
MORE_TRUNCATED = 0.15
LOW_ENTROPY, HIGH_ENTROPY = 0.3, 3.0  # of the entropy at the beginning
MORE_BYTES = 2**30  # that stay on a GPU while the engine sleeps

LENGTH, CUT, ENTROPY = "fresh/response_length", "fresh/truncated", "fresh/entropy"
ASLEEP = "r3/memory/beside_policy_bytes"
KEYS = ("step", LENGTH, CUT, ENTROPY, ASLEEP)


def early_warnings(rollouts: Sequence[Rollout], *, step: int) -> dict[str, str]:
    """Kind of trouble -> a sentence about it, for the rollouts of one step (`step` is from 1).
    After FIRST_STEPS only what could not be graded is worth one. Nothing stops here: a hard problem
    set looks like a broken grader, and only a person can tell."""
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
    """Say how many could not be graded, why, and what one reward function or server reported."""
    ungraded = [rollout for rollout in rollouts if rollout.verdict is Verdict.UNGRADED]
    reasons = Counter(rollout.reason for rollout in ungraded)
    why = ", ".join(f"{reason} ({number})" for reason, number in reasons.most_common(4))
    errors = Counter(str(rollout.extras["error"]) for rollout in ungraded if "error" in rollout.extras)
    said = f"; {errors.most_common(1)[0][0]}" if errors else ""
    return f"{len(ungraded)} of {len(rollouts)} responses could not be graded: {why}{said}"


def kept(line: Mapping[str, float]) -> dict[str, float]:
    """Keep what `trend_warnings` reads of a line of metrics.jsonl."""
    return {key: line[key] for key in KEYS if key in line}


def trend_warnings(lines: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Kind of trouble -> a sentence, for a run with these lines. But for memory, only after 2 x
    WINDOW steps. None of it stops a run: longer responses may be what is learned."""
    found = {}
    memory = [line[ASLEEP] for line in lines if ASLEEP in line]
    if len(memory) > 1 and memory[-1] - memory[0] > MORE_BYTES:
        found["memory"] = (
            f"step {int(lines[-1]['step'])}: while the engine sleeps, {memory[-1] / 2**30:.1f} GiB of the GPU are not the policy's, "
            f"{memory[0] / 2**30:.1f} at the beginning; if this continues, the run will run out of memory; starting it again (it resumes) "
            "frees it"
        )
    if len(lines) < 2 * WINDOW:
        return found
    step = int(lines[-1]["step"])
    now, then = lines[-WINDOW:], lines[:WINDOW]
    length, first_length = _mean(now, LENGTH), _mean(then, LENGTH)
    cut, first_cut = _mean(now, CUT), _mean(then, CUT)
    if cut is not None and first_cut is not None and cut >= TRUNCATED and cut - first_cut >= MORE_TRUNCATED:
        found["truncation"] = (
            f"step {step}: {cut:.0%} of the responses are cut off at the limit of tokens, {first_cut:.0%} at the beginning; most of "
            "what is cut off is wrong, so accuracy falls next: raise rollout.max_new_tokens, or let length cost something "
            "(reward.length_reward_max_tokens)"
        )
    elif length and first_length and length >= LONGER * first_length:
        found["length"] = (
            f"step {step}: responses have {length:,.0f} tokens, {first_length:,.0f} at the beginning, and a step takes longer "
            f"accordingly; see `r3 plan ... mean_tokens={length:.0f}`"
        )
    entropy, first_entropy = _mean(now, ENTROPY), _mean(then, ENTROPY)
    if entropy is not None and first_entropy and not LOW_ENTROPY <= entropy / first_entropy <= HIGH_ENTROPY:
        fell = entropy < first_entropy
        found["entropy"] = (
            f"step {step}: the entropy of a token is {entropy:.3g} nats, {first_entropy:.3g} at the beginning; "
            + (
                "the rollouts of a group become alike and nothing is left to compare: train.eps_clip_high above eps_clip_low, or a "
                "lower train.learning_rate"
                if fell
                else "the policy dissolves: a lower train.learning_rate, or train.kl_coef above 0"
            )
        )
    return found


def _mean(lines: Iterable[Mapping[str, float]], key: str) -> float | None:
    """Over the lines that have it; None where none has."""
    values = [line[key] for line in lines if line.get(key) is not None]
    return fmean(values) if values else None
