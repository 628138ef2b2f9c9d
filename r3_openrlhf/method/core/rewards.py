"""The outcome reward of one response (METHOD section 3)."""

from r3_openrlhf.method.core.checks import finite_value, whole_number


def length_reward(num_tokens: int, *, max_tokens: int) -> float:
    """r_len = max(0, 1 - l / L_max): what a correct response of l = num_tokens tokens earns for
    being short.

    ValueError: num_tokens is no whole number from 0, or max_tokens none from 1."""
    length = whole_number("num_tokens", num_tokens, minimum=0)
    limit = whole_number("max_tokens", max_tokens, minimum=1)
    return max(0.0, 1.0 - length / limit)


def outcome_reward(score: float, num_tokens: int, *, max_tokens: int | None) -> float:
    """R of a graded response: 0 when wrong, 1 + r_len when correct (score 1).

    R is 0 or in [1, 2], nothing between: partial credit (0 < score < 1, which some tasks give)
    stays in the score. As a reward it would give groups without any correct answer a spread that
    eq. 3 scales up to full size. A rollout that could not be graded has no score and no reward.

    ValueError: score outside [0, 1] or None."""
    score = finite_value("score", score, min=0, max=1)
    bonus = 0.0 if max_tokens is None else length_reward(num_tokens, max_tokens=max_tokens)
    return 0.0 if score < 1 else 1.0 + bonus
