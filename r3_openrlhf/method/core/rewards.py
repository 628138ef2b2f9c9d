"""The outcome reward of one response (METHOD section 3), and DAPO's penalty on long ones."""

from __future__ import annotations

from r3_openrlhf.method.core.checks import finite_value, whole_number

DAPO_OVERLONG_SHARE = 0.2  # arXiv 2503.14476, section 3.4: a buffer of 4,096 of 20,480 tokens
# Its penalty goes down to -1 beside verdicts of +1 and -1; ours are 1 and 0, half as far apart, and group_norm makes
# everything but this proportion the same.
DAPO_OVERLONG_FACTOR = 0.5


def length_reward(num_tokens: int, *, max_tokens: int) -> float:
    """r_len = max(0, 1 - l / L_max): what a correct response of l = num_tokens tokens earns for being short.

    ValueError: num_tokens below 0, max_tokens below 1.
    """
    num_tokens = whole_number("num_tokens", num_tokens, minimum=0)
    max_tokens = whole_number("max_tokens", max_tokens, minimum=1)
    return max(0.0, 1.0 - num_tokens / max_tokens)


def outcome_reward(score: float, num_tokens: int, *, max_tokens: int | None) -> float:
    """R of a graded response: 0 when wrong, 1 + r_len when correct (score 1).

    R is 0 or in [1, 2], nothing between: partial credit (0 < score < 1, which some tasks give) stays in the score. As
    a reward it would give groups without any correct answer a spread that eq. 3 scales up to full size.
    A rollout that could not be graded has no score and no reward.

    ValueError: score outside [0, 1] or None, num_tokens below 0, max_tokens below 1.
    """
    score = finite_value("score", score)
    if not 0 <= score <= 1:
        raise ValueError(f"score is {score}; it must be between 0 (wrong) and 1 (correct)")
    bonus = 0.0 if max_tokens is None else length_reward(num_tokens, max_tokens=max_tokens)
    return 0.0 if score < 1 else 1.0 + bonus


def overlong_penalty(num_tokens: int, *, max_tokens: int) -> float:
    """What DAPO takes from the reward of a response of l tokens, at most DAPO_OVERLONG_FACTOR (its section 3.4).

        F * min(l - (L - B), B) / B   above L - B tokens, else 0;   L = max_tokens, B = int(DAPO_OVERLONG_SHARE * L)

    As trainer/ppo_utils/length_penalty.py:41-55 of OpenRLHF computes it. A limit too small for a buffer takes nothing.

    ValueError: num_tokens below 0, max_tokens below 1.
    """
    num_tokens = whole_number("num_tokens", num_tokens, minimum=0)
    max_tokens = whole_number("max_tokens", max_tokens, minimum=1)
    buffer = int(DAPO_OVERLONG_SHARE * max_tokens)
    exceeding = min(num_tokens - (max_tokens - buffer), buffer)
    return DAPO_OVERLONG_FACTOR * exceeding / buffer if exceeding > 0 else 0.0
