"""Say what looks wrong in the first steps' rollouts, and what goes wrong slowly, in the sentences of
step_warnings.toml."""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from r3_openrlhf.method.types import Rollout, Verdict
from r3_openrlhf.runs.report import mean

SENTENCES: dict[str, str] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
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
MIXED, RECALLED, REHEARSED = (
    "r3/groups/mixed_pass_rate",
    "r3/replay/recalled",
    "r3/replay/rehearsed",
)
TAUGHT, DOUBTED, AT_BOUND = (
    "r3/distill/taught",
    "r3/distill/doubted_share",
    "r3/distill/at_bound_share",
)
MOST_TOKENS = 0.5  # of the taught ones
SHORTER = 0.5  # times as long, where rows are taught
LOWER_RATE = 0.1  # of the fresh rollouts in mixed groups, since stored rows train
KEYS = (
    *("step", LENGTH, CUT, ENTROPY, ASLEEP, MIXED, RECALLED, REHEARSED),
    *(TAUGHT, DOUBTED, AT_BOUND),
)


def early_warnings(rollouts: Sequence[Rollout], *, step: int) -> dict[str, str]:
    """Kind of trouble -> a sentence about it, for the rollouts of one step (`step` is from 1).
    After FIRST_STEPS only what could not be graded is worth one. Nothing stops here: a hard problem
    set looks like a broken grader, and only a person can tell."""
    warnings: dict[str, str] = {}
    total = len(rollouts)
    correct = _rewards(rollouts, Verdict.CORRECT)
    wrong = _rewards(rollouts, Verdict.WRONG)
    num_graded = len(correct) + len(wrong)
    if num_graded < total:
        warnings["ungraded"] = f"step {step}: {ungraded_sentence(rollouts)}"
    if step > FIRST_STEPS or not rollouts:
        return warnings
    truncated = sum(rollout.truncated for rollout in rollouts)
    if truncated >= NEARLY_ALL * total:
        warnings["truncated"] = SENTENCES["truncated"].format(
            step=step, truncated=truncated, total=total
        )
    if num_graded and not correct:
        warnings["none correct"] = SENTENCES["none_correct"].format(
            step=step, graded=num_graded
        )
    if correct and wrong and fmean(correct) <= fmean(wrong):
        warnings["contradiction"] = SENTENCES["contradiction"].format(
            step=step,
            share=len(correct) / num_graded,
            right=fmean(correct),
            wrong=fmean(wrong),
        )
    return warnings


def _rewards(rollouts: Sequence[Rollout], verdict: Verdict) -> list[float]:
    """Return the rewards of the rollouts with this verdict."""
    return [rollout.graded_reward for rollout in rollouts if rollout.verdict is verdict]


def ungraded_sentence(rollouts: Sequence[Rollout]) -> str:
    """Say how many could not be graded, why, and what one reward function or server reported."""
    ungraded = [rollout for rollout in rollouts if rollout.verdict is Verdict.UNGRADED]
    reasons = Counter(rollout.reason for rollout in ungraded)
    why = ", ".join(f"{reason} ({number})" for reason, number in reasons.most_common(4))
    errors = Counter(
        str(rollout.extras["error"]) for rollout in ungraded if "error" in rollout.extras
    )
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
        gib = {"now": memory[-1] / 2**30, "first": memory[0] / 2**30}
        found["memory"] = SENTENCES["memory"].format(step=int(lines[-1]["step"]), **gib)
    if len(lines) < 2 * WINDOW:
        return found
    step = int(lines[-1]["step"])
    now, then = lines[-WINDOW:], lines[:WINDOW]
    length, first_length = mean(now, LENGTH), mean(then, LENGTH)
    cut, first_cut = mean(now, CUT), mean(then, CUT)
    if (
        cut is not None
        and first_cut is not None
        and cut >= TRUNCATED
        and cut - first_cut >= MORE_TRUNCATED
    ):
        found["truncation"] = SENTENCES["truncation"].format(
            step=step, now=cut, first=first_cut
        )
    elif length and first_length and length >= LONGER * first_length:
        found["length"] = SENTENCES["length"].format(step=step, now=length, first=first_length)
    found |= _lower_rate(lines)
    found |= _teacher_warnings(now, then, step=step)
    entropy, first_entropy = mean(now, ENTROPY), mean(then, ENTROPY)
    if (
        entropy is not None
        and first_entropy
        and not LOW_ENTROPY <= entropy / first_entropy <= HIGH_ENTROPY
    ):
        why = SENTENCES["entropy_fell" if entropy < first_entropy else "entropy_rose"]
        if entropy < first_entropy and mean(now, TAUGHT):
            why = SENTENCES["entropy_fell_taught"]
        found["entropy"] = SENTENCES["entropy"].format(
            step=step, now=entropy, first=first_entropy, why=why
        )
    return found


def _teacher_warnings(
    now: Sequence[Mapping[str, float]], then: Sequence[Mapping[str, float]], *, step: int
) -> dict[str, str]:
    """Say where a teacher (method/core/distill.py) doubts most of what it scores, or responses collapse beside it."""
    if not mean(now, TAUGHT):
        return {}
    found = {}
    doubted, at_bound = mean(now, DOUBTED), mean(now, AT_BOUND)
    if doubted is not None and doubted >= MOST_TOKENS:
        found["teacher doubts"] = SENTENCES["teacher_doubts"].format(step=step, share=doubted)
    if at_bound is not None and at_bound >= MOST_TOKENS:
        found["teacher bound"] = SENTENCES["teacher_bound"].format(step=step, share=at_bound)
    length, first_length = mean(now, LENGTH), mean(then, LENGTH)
    if length is not None and first_length and length <= SHORTER * first_length:
        found["teacher length"] = SENTENCES["teacher_length"].format(
            step=step, now=length, first=first_length
        )
    return found


def _lower_rate(lines: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Compare the pass rate of mixed groups (0: a step had none) with the WINDOW steps around the
    first one that trained stored rows."""
    start = next(
        (i for i, line in enumerate(lines) if line.get(RECALLED, 0) + line.get(REHEARSED, 0)),
        len(lines),
    )
    if len(lines) - start < WINDOW:
        return {}
    begin = max(0, start - WINDOW)
    rates = [
        [line for line in part if line.get(MIXED)]
        for part in (lines[begin : begin + WINDOW], lines[-WINDOW:])
    ]
    first, rate = (mean(part, MIXED) for part in rates)
    if first is None or rate is None or rate > first - LOWER_RATE:
        return {}
    return {
        "replay": SENTENCES["replay"].format(step=int(lines[-1]["step"]), now=rate, first=first)
    }
