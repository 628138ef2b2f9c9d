"""Count what each of `data.sources` had in a step."""

from collections import defaultdict
from collections.abc import Sequence

from r3_openrlhf.method.types import Context, Rollout, Verdict


def source_metrics(
    sources: Sequence[str | None], rollouts: Sequence[Rollout]
) -> dict[str, float]:
    """`r3/source/NAME/problems`, `ungraded`, and `accuracy` where one is graded: of the rollouts
    from the plain prompt.

    Args:
        sources: of each rollout, the name of its source."""
    of: dict[str, list[Rollout]] = defaultdict(list)
    for source, rollout in zip(sources, rollouts, strict=True):
        if source is not None and rollout.context is Context.PLAIN:
            of[source].append(rollout)
    metrics = {}
    for source, found in sorted(of.items()):
        graded = [
            rollout.verdict is Verdict.CORRECT
            for rollout in found
            if rollout.verdict is not Verdict.UNGRADED
        ]
        metrics[f"r3/source/{source}/problems"] = float(len({rollout.uid for rollout in found}))
        metrics[f"r3/source/{source}/ungraded"] = float(len(found) - len(graded))
        if graded:
            metrics[f"r3/source/{source}/accuracy"] = sum(graded) / len(graded)
    return metrics
