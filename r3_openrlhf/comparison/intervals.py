"""The arithmetic of a comparison, on plain numbers: means with intervals, and curves between measured points."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class SeedEstimate:
    """A mean and the interval that Student's t gives it; no interval below two values."""

    mean: float
    low: float | None
    high: float | None
    num: int


def estimate(values: Sequence[float]) -> SeedEstimate | None:
    """mean ± t(n - 1) * s / sqrt(n), where s divides by n - 1. None without a value."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) < 2:
        return SeedEstimate(mean, None, None, 1)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return SeedEstimate(mean, mean - half, mean + half, len(values))


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> SeedEstimate | None:
    """Estimate of value - reference over the seeds that both have. None without one."""
    return estimate([values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())])


def paired_ratio(values: Mapping[int, float], reference: Mapping[int, float]) -> SeedEstimate | None:
    """Geometric mean of value / reference over the seeds in which both are above 0, with the interval of its logarithm."""
    seeds = [seed for seed in sorted(values.keys() & reference.keys()) if values[seed] > 0 and reference[seed] > 0]
    found = estimate([math.log(values[seed] / reference[seed]) for seed in seeds])
    if found is None:
        return None
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return SeedEstimate(math.exp(found.mean), low, high, found.num)


def t_quantile(degrees: int, *, confidence: float = CONFIDENCE) -> float:
    """The t with P(|T| <= t) = confidence for Student's T with `degrees` degrees of freedom, by bisection."""
    if degrees < 1 or not 0.0 < confidence < 1.0:
        raise ValueError(f"{degrees} degrees of freedom at confidence {confidence}: there is no such quantile")
    low, high = 0.0, 1.0
    while _t_probability(high, degrees) < confidence:
        low, high = high, high * 2
    while low < (middle := (low + high) / 2) < high:
        if _t_probability(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return high


def _t_probability(t: float, degrees: int) -> float:
    """P(|T| <= t), the finite sums of Abramowitz and Stegun 26.7.3 (odd) and 26.7.4 (even degrees)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2:
        term, terms = cosine, []
        for k in range(3, degrees + 1, 2):
            terms.append(term)
            term *= cosine**2 * (k - 1) / k
        return 2 / math.pi * (angle + sine * math.fsum(terms))
    term, terms = 1.0, []
    for k in range(2, degrees + 1, 2):
        terms.append(term)
        term *= cosine**2 * (k - 1) / k
    return sine * math.fsum(terms)


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity (ys) measured at growing xs, taken to be straight between two neighbours and unknown outside."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.xs or len(self.xs) != len(self.ys):
            raise ValueError(f"a curve needs as many xs as ys and at least one, got {len(self.xs)} and {len(self.ys)}")
        if any(left >= right for left, right in zip(self.xs, self.xs[1:], strict=False)):
            raise ValueError("the xs of a curve must grow")

    @property
    def start(self) -> float:
        """The smallest x."""
        return self.xs[0]

    @property
    def end(self) -> float:
        """The largest x."""
        return self.xs[-1]

    def at(self, x: float) -> float:
        """Linear interpolation. ValueError outside [start, end]."""
        if not self.start <= x <= self.end:
            raise ValueError(f"{x} lies outside the curve, which goes from {self.start} to {self.end}")
        right = bisect.bisect_left(self.xs, x)
        if self.xs[right] == x:
            return self.ys[right]
        share = (x - self.xs[right - 1]) / (self.xs[right] - self.xs[right - 1])
        return self.ys[right - 1] * (1 - share) + self.ys[right] * share

    def mean_height(self, start: float, end: float) -> float:
        """The area under the curve from start to end, divided by end - start."""
        if not start < end:
            raise ValueError(f"there is no area between {start} and {end}")
        xs = [start, *(x for x in self.xs if start < x < end), end]
        ys = [self.at(x) for x in xs]
        areas = [(xs[i + 1] - xs[i]) * (ys[i] + ys[i + 1]) / 2 for i in range(len(xs) - 1)]
        return math.fsum(areas) / (end - start)

    def first_reach(self, level: float) -> float | None:
        """The smallest x at which the curve is at `level` or above; None when it never is."""
        for i, y in enumerate(self.ys):
            if y < level:
                continue
            if i == 0:
                return self.start
            share = (level - self.ys[i - 1]) / (y - self.ys[i - 1])  # the point before is below: no division by zero
            return self.xs[i - 1] + share * (self.xs[i] - self.xs[i - 1])
        return None


def mean_curve(curves: Sequence[Curve]) -> list[tuple[float, SeedEstimate]]:
    """(x, estimate over the curves) at every measured x that all of them cover."""
    start, end = max(curve.start for curve in curves), min(curve.end for curve in curves)
    xs = sorted({x for curve in curves for x in curve.xs if start <= x <= end})
    return [(x, found) for x in xs if (found := estimate([curve.at(x) for curve in curves])) is not None]


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Each value's mean with the window - 1 values before it; fewer at the beginning."""
    return [statistics.fmean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
