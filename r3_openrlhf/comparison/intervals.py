"""The arithmetic of a comparison, on plain numbers: means with intervals, and curves between measured points."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

CONFIDENCE = 0.95
Key = TypeVar("Key")
RESAMPLES = 2000
MAX_SEEDS_NEEDED = 10_000
ROUNDING = 1e-9  # of an accuracy: the mean of equal final accuracies can come out above each of them


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


def seeds_needed(difference: SeedEstimate | None, *, half_width: float) -> int | None:
    """How many seeds give the estimate an interval of ± half_width, if its standard deviation stays what it is.

        the smallest n >= 2 with t(n - 1) * s / sqrt(n) <= half_width

    None without an interval, and above MAX_SEEDS_NEEDED. ValueError: half_width not above 0.
    """
    if half_width <= 0:
        raise ValueError(f"half_width is {half_width}; it must be above 0")
    if difference is None or difference.low is None:
        return None
    deviation = (difference.mean - difference.low) * math.sqrt(difference.num) / t_quantile(difference.num - 1)
    normal = 1.96 * deviation / half_width
    if normal**2 > MAX_SEEDS_NEEDED:
        return None
    num = max(2, math.floor(normal**2))  # Student's t asks for more than the normal distribution does
    while t_quantile(num - 1) * deviation / math.sqrt(num) > half_width * (1 + ROUNDING):
        num += 1
    return num


def paired_difference(values: Mapping[Key, float], reference: Mapping[Key, float]) -> SeedEstimate | None:
    """Estimate of value - reference over the seeds, or the problems, that both have. None without one."""
    return estimate([value - reference[key] for key, value in values.items() if key in reference])


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
            raise ValueError(f"{x} is outside the curve, which goes from {self.start} to {self.end}")
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


def mean_curve(curves: Sequence[Curve]) -> list[tuple[float, SeedEstimate]]:
    """(x, estimate over the curves) at every measured x that all of them cover."""
    start, end = max(curve.start for curve in curves), min(curve.end for curve in curves)
    xs = sorted({x for curve in curves for x in curve.xs if start <= x <= end})
    return [(x, found) for x in xs if (found := estimate([curve.at(x) for curve in curves])) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where an arm's mean curve first has an accuracy, as a share of the tokens of the reference's whole runs.

    A `ratio` or bound that is None is beyond `limit`, where the arm's curves end. Below two seeds there are no bounds.
    """

    level: float
    tokens: float | None
    ratio: float | None
    low: float | None
    high: float | None
    limit: float
    num: int  # seeds that both arms have


def crossing_of_mean(
    curves: Mapping[int, Curve],
    reference: Mapping[int, Curve],
    *,
    share: float = 1.0,
    level: float | None = None,
    resamples: int = RESAMPLES,
) -> Crossing | None:
    """The mean curve of an arm against the reference, over the seeds that both have; None without one, and where the
    reference has gained nothing of which there could be a share.

        tokens = the first x at which mean_s y_s(x) >= level
        ratio  = tokens / (mean_s of the reference's last x)
        level  = a + share * (b - a),  a and b the means of the reference's first and last y; or as given

    The interval is a percentile bootstrap over seeds, drawn for both arms together: curve, level and denominator are made
    anew each time. A curve that never gets there is beyond every ratio, not left out, as it is from a mean over runs.
    """
    seeds = sorted(curves.keys() & reference.keys())
    if not seeds:
        return None
    mine, theirs = [curves[seed] for seed in seeds], [reference[seed] for seed in seeds]
    start, end = max(curve.start for curve in mine), min(curve.end for curve in mine)
    xs_X = np.array(sorted({x for curve in mine for x in curve.xs if start <= x <= end}))
    ys_SX = np.array([[curve.at(x) for x in xs_X.tolist()] for curve in mine])
    draws_RS = np.random.default_rng(0).integers(len(seeds), size=(resamples, len(seeds)))
    counts_RS = (draws_RS[:, :, None] == np.arange(len(seeds))).sum(1)
    weights_RS = np.concatenate([np.ones((1, len(seeds))), counts_RS]) / len(
        seeds
    )  # the first row is the seeds themselves
    first_R, last_R, end_R = (
        weights_RS @ np.array(values)
        for values in zip(*((curve.ys[0], curve.ys[-1], curve.end) for curve in theirs), strict=True)
    )
    if level is None and last_R[0] <= first_R[0]:
        return None
    level_R = first_R + share * (last_R - first_R) if level is None else np.full(len(first_R), level)
    tokens_R = _first_reach(xs_X, weights_RS @ ys_SX, level_R)
    ratio_R = tokens_R / end_R
    tail = (1 - CONFIDENCE) / 2
    low = high = None
    if len(seeds) > 1:
        low = _or_beyond(np.quantile(ratio_R[1:], tail, method="lower"))
        high = _or_beyond(np.quantile(ratio_R[1:], 1 - tail, method="higher"))
    return Crossing(
        level=float(level_R[0]),
        tokens=_or_beyond(tokens_R[0]),
        ratio=_or_beyond(ratio_R[0]),
        low=low,
        high=high,
        limit=float(end / end_R[0]),
        num=len(seeds),
    )


def _first_reach(xs_X: np.ndarray, ys_RX: np.ndarray, level_R: np.ndarray) -> np.ndarray:
    """[R]: the smallest x at which each row is at its level or above; infinite where it never is."""
    reached_RX = ys_RX >= level_R[:, None] - ROUNDING
    at_R = reached_RX.argmax(1)
    before_R = np.maximum(at_R - 1, 0)
    rows = np.arange(len(ys_RX))
    low_R, high_R = ys_RX[rows, before_R], ys_RX[rows, at_R]
    rise_R = np.where(high_R > low_R, high_R - low_R, 1.0)
    share_R = np.clip((level_R - low_R) / rise_R, 0.0, 1.0)
    tokens_R = np.where(at_R > 0, xs_X[before_R] + share_R * (xs_X[at_R] - xs_X[before_R]), xs_X[0])
    return np.where(reached_RX.any(1), tokens_R, np.inf)


def _or_beyond(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Each value's mean with the window - 1 values before it; fewer at the beginning."""
    return [statistics.fmean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
