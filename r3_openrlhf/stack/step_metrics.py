"""Metrics of a step from its fresh rollouts, as engine and reward functions gave them."""

from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np

from r3_openrlhf.method.types import Rollout

# of a step's responses
TOOL_COUNTS = (
    "r3/tools/calls",
    "r3/tools/failed",
    "r3/tools/given_tokens",
)
GIVEN_UP = "r3/engine/given_up"
REPETITION = "r3/engine/repetition"


def ages(rollouts: Iterable[Rollout | None], *, step: int) -> dict[str, float]:
    """Age of the sampled tokens of this step's fresh rollouts, in optimizer steps (rollout.partial).

    step: optimizer steps done so far."""
    found = [
        step - one.policy_steps[one.sampled]
        for one in rollouts
        if one is not None and one.num_sampled_tokens
    ]
    if not found:
        return {}
    ages_T = np.concatenate(found)
    return {
        "partial/mean_age": float(ages_T.mean()),
        "partial/max_age": float(ages_T.max()),
        "partial/old_tokens": float((ages_T > 0).mean()),
    }


def entropy_metrics(rollouts: list[Rollout]) -> dict[str, float]:
    """Entropy of this step's fresh rollouts, nats per token.

    Bounds come from top-k log-probs, peak and global from exact statistics if the ranking needed
    them."""
    metrics: dict[str, float] = {}
    bounds = [r.entropy_bounds for r in rollouts if r.entropy_bounds is not None]
    if bounds:
        lower, upper = (
            fmean(b.global_lower for b in bounds),
            fmean(b.global_upper for b in bounds),
        )
        metrics |= {
            "r3/entropy/global_lower": lower,
            "r3/entropy/global_upper": upper,
            "r3/entropy/bound_width": upper - lower,
            "r3/entropy/peak_lower": fmean(b.peak_lower for b in bounds),
        }
    exact = [
        r.entropy for r in rollouts if r.entropy is not None and r.entropy.source == "exact"
    ]
    if exact:
        metrics["r3/entropy/ranked_peak"] = fmean(e.peak for e in exact)
        metrics["r3/entropy/ranked_global"] = fmean(e.global_ for e in exact)
    return metrics


def extra_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """r3/reward/NAME: the mean of each number that a reward function returned with its reward, over
    the rollouts that have it; texts are in rollouts/ alone."""
    values: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in rollout.extras.items():
            if isinstance(value, float):
                values.setdefault(name, []).append(value)
    return {f"r3/reward/{name}": fmean(found) for name, found in sorted(values.items())}
