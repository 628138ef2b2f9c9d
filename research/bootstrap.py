"""Percentile bootstrap of a mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlEstimate:
    """A mean over problems and its 95% percentile bootstrap interval; problems are drawn, never single responses."""

    mean: float
    low: float
    high: float
    num_problems: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(values: Sequence[float]) -> ControlEstimate:
    """ValueError: no values."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("an interval needs values")
    draws = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
    low, high = np.percentile(array[draws].mean(axis=1), [2.5, 97.5])
    return ControlEstimate(
        mean=float(array.mean()), low=float(low), high=float(high), num_problems=len(array)
    )
