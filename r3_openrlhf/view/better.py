"""The first sentences of a page of several runs: which arm is better, by how much, at equal tokens."""

from collections.abc import Sequence

from r3_openrlhf.comparison.arms import ArmResult, Comparison
from r3_openrlhf.comparison.intervals import LEAST, SeedEstimate

MEASURE = "accuracy_at_equal_tokens"


def sentences(comparison: Comparison | None, faults: Sequence[str]) -> list[str]:
    """Return a sentence for each arm against the reference, the best first; else why nothing is compared.

    Args:
        faults: sentences about runs that cannot be compared."""
    if comparison is None:
        return [f"Which run is better is not known: {fault}" for fault in faults[:1]]
    reference, *others = comparison.arms
    if not others:
        number = len(reference.runs)
        return [
            f"All {number} runs are of the arm {reference.name}, so there is nothing to compare."
        ]
    ranked = sorted(others, key=_difference, reverse=True)
    found = [_of_arm(arm, reference, comparison) for arm in ranked]
    left_out = [f"Left out: {fault}" for fault in faults]
    return [*found, *left_out]


def _difference(arm: ArmResult) -> float:
    paired = arm.differences.get(MEASURE)
    level = arm.estimates[MEASURE]
    if paired is not None:
        return paired.mean
    return level.mean - 1 if level is not None else -2.0  # after those that are paired


def _of_arm(arm: ArmResult, reference: ArmResult, comparison: Comparison) -> str:
    """Compare one arm with the reference, in points of held-out accuracy."""
    levels = [one.estimates[MEASURE] for one in (arm, reference)]
    shares = " vs. ".join("–" if level is None else f"{level.mean:.3f}" for level in levels)
    at = f"held-out accuracy at {comparison.equal_tokens:,.0f} generated tokens: {shares}"
    difference = arm.differences.get(MEASURE)
    if difference is None:
        return f"{arm.name} and {reference.name} have no seed in common, so nothing is decided ({at})."
    return f"{_verdict(arm.name, reference.name, difference)} ({at})."


def _verdict(name: str, other: str, difference: SeedEstimate) -> str:
    points = 100 * difference.mean
    if difference.low is None or difference.high is None:
        way = "above" if points >= 0 else "below"
        number = len(difference.values)
        each = ", ".join(f"{100 * value:+.1f}" for value in difference.values)
        of_each = f", by seed {each}" if number > 1 else ""
        return (
            f"Not decided: {name} is {abs(points):.1f} points {way} {other}{of_each}; "
            f"{number} pair{'s' if number > 1 else ''} of seeds cannot tell, at least {LEAST} can"
        )
    interval = f"95% interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}, {difference.num} pairs of seeds"
    if difference.low > 0:
        return f"{name} is better than {other} by {points:.1f} points, {interval}"
    if difference.high < 0:
        return f"{name} is worse than {other} by {-points:.1f} points, {interval}"
    return f"Not decided: {name} differs from {other} by {points:+.1f} points, {interval}"
