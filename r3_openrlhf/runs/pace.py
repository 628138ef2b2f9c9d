"""How long a run still takes, from its own metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

LAST = 10  # steps whose median says how long one takes
STEP_S = ("timing/step_total", "time/step_s")  # of the stack, of the lab
PHASES = {
    "sampling": "timing/generation",
    "log-probs and rewards": "timing/make_experience",
    "policy update": "timing/ppo_train",
    "weights to the engine": "timing/broadcast",
}


def duration(seconds: float) -> str:
    """ "45 s", "12 min", "3.5 h", "2.1 days"."""
    for limit, unit, text in ((90, 1, "{:.0f} s"), (90 * 60, 60, "{:.0f} min"), (48 * 3600, 3600, "{:.1f} h")):
        if seconds < limit:
            return text.format(seconds / unit)
    return f"{seconds / 86400:.1f} days"


def to_go_s(
    metrics: Sequence[Mapping[str, Any]], *, num_steps: int | None, max_tokens: int | None = None
) -> float | None:
    """Seconds until the last step ends: the steps that are left, each as long as the median of the last LAST.

    Args:
        metrics: lines of metrics.jsonl, of which the last LAST count.
        num_steps: steps of the whole run; None: not known.
        max_tokens: train.max_generated_tokens, which may end the run earlier.

    Returns:
        None where no step has a time, or neither limit is known.
    """
    seconds = [value for line in metrics[-LAST:] if (value := _step_s(line)) is not None]
    left = [] if num_steps is None else [float(num_steps - metrics[-1]["step"])] if metrics else []
    if metrics and max_tokens is not None:
        tokens = [line["generated_tokens"] for line in metrics[-LAST:] if line.get("generated_tokens")]
        total = metrics[-1].get("generated_tokens_total")
        if tokens and total is not None:
            left.append((max_tokens - total) / median(tokens))
    return max(0.0, min(left)) * median(seconds) if left and seconds else None


def _step_s(line: Mapping[str, Any]) -> float | None:
    return next((line[key] for key in STEP_S if line.get(key) is not None), None)
