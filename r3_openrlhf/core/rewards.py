"""The outcome reward of one response (METHOD section 3)."""

from __future__ import annotations

from r3_openrlhf.core.checks import finite_value, whole_number


def length_reward(num_tokens: int, *, max_tokens: int) -> float:
    """r_len = max(0, 1 - l / L_max): what a correct response of l = num_tokens tokens earns for being short.

    ValueError: num_tokens below 0, max_tokens below 1.
    """
    num_tokens = whole_number("num_tokens", num_tokens, minimum=0)
    max_tokens = whole_number("max_tokens", max_tokens, minimum=1)
    return max(0.0, 1.0 - num_tokens / max_tokens)


def outcome_reward(score: float, num_tokens: int, *, max_tokens: int, length_bonus: bool = True) -> float:
    """R of a graded response: 0 when wrong (score 0), 1 + r_len when correct (score 1).

    Partial credit, 0 < score < 1, is paid as it is: only a correct answer earns the length reward, so a short answer
    that is half right never overtakes a right one. A rollout that could not be graded has no score and no reward.

    ValueError: score outside [0, 1] or None, num_tokens below 0, max_tokens below 1.
    """
    score = finite_value("score", score)
    if not 0 <= score <= 1:
        raise ValueError(f"score is {score}; it must be between 0 (wrong) and 1 (correct)")
    bonus = length_reward(num_tokens, max_tokens=max_tokens)
    return score + bonus if score == 1 and length_bonus else score
