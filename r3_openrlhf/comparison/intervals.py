"""The arithmetic of a comparison: means with intervals, curves between measured points."""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

CONFIDENCE = 0.95
LEAST = 3  # values of an interval
UNBOUNDED = (-math.inf, math.inf)
Key = TypeVar("Key")
RESAMPLES = 2000
MAX_SEEDS_NEEDED = 10_000
ROUNDING = 1e-9  # of an accuracy: a mean of equal ones can exceed each


@dataclass(frozen=True, slots=True)
class SeedEstimate:
    """A mean of `num` values, and the interval that Student's t gives it.

    values: they themselves where they are too few for an interval; deviation: divides by n - 1."""

    mean: float
    low: float | None
    high: float | None
    num: int
    values: tuple[float, ...] = field(default=(), compare=False)
    deviation: float | None = field(default=None, compare=False)


def estimate(
    values: Sequence[float], *, bounds: tuple[float, float] | None = UNBOUNDED
) -> SeedEstimate | None:
    """mean ± t(n - 1) * s / sqrt(n), cut at the bounds. None without a value.

    Below LEAST values there is no interval: of two, Student's t makes one 13 times as wide as they
    lie apart. bounds: between which the quantity is; None: it is counted, not estimated."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if bounds is None or len(values) < LEAST:
        return SeedEstimate(
            mean, None, None, len(values), () if bounds is None else tuple(values)
        )
    deviation = math.sqrt(
        math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    )
    half = t_quantile(len(values) - 1) * deviation / math.sqrt(len(values))
    low, high = max(bounds[0], mean - half), min(bounds[1], mean + half)
    return SeedEstimate(mean, low, high, len(values), deviation=deviation)


def seeds_needed(difference: SeedEstimate | None, *, half_width: float) -> int | None:
    """Count the seeds for an interval of ± half_width, if the standard deviation stays the same.

        the smallest n >= LEAST with t(n - 1) * s / sqrt(n) <= half_width

    None without an interval, and above MAX_SEEDS_NEEDED."""
    if difference is None or difference.deviation is None:
        return None
    normal = 1.96 * difference.deviation / half_width
    if normal**2 > MAX_SEEDS_NEEDED:
        return None
    num = max(LEAST, math.floor(normal**2))  # Student's t asks for more than the normal
    while t_quantile(num - 1) * difference.deviation / math.sqrt(num) > half_width * (
        1 + ROUNDING
    ):
        num += 1
    return num


def paired_difference(
    values: Mapping[Key, float],
    reference: Mapping[Key, float],
    *,
    bounds: tuple[float, float] = (-1.0, 1.0),
) -> SeedEstimate | None:
    """Estimate of value - reference over common seeds, or problems. None without one."""
    return estimate(
        [value - reference[key] for key, value in values.items() if key in reference],
        bounds=bounds,
    )


@functools.cache
def t_quantile(degrees: int) -> float:
    """Return the t with P(|T| <= t) = CONFIDENCE for Student's T with `degrees` degrees of freedom.

    P(|T| > t) is the regularised incomplete beta function I_x(n / 2, 1 / 2) with x = n / (n + t^2).
    """
    import mpmath

    def outside(x: float) -> float:
        return mpmath.betainc(degrees / 2, 0.5, 0, x, regularized=True) - (1 - CONFIDENCE)

    x = float(mpmath.findroot(outside, (0, 1), solver="illinois"))
    return math.sqrt(degrees * (1 - x) / x)


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity (ys) at growing xs, straight between neighbours and unknown outside."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    @property
    def start(self) -> float:
        """Return the smallest x."""
        return self.xs[0]

    @property
    def end(self) -> float:
        """Return the largest x."""
        return self.xs[-1]

    def at(self, x: float) -> float:
        """Interpolate linearly."""
        return float(np.interp(x, self.xs, self.ys))

    def mean_height(self, start: float, end: float) -> float:
        """Compute the area under the curve from start to end, divided by end - start."""
        xs = [start, *(x for x in self.xs if start < x < end), end]
        return float(np.trapezoid([self.at(x) for x in xs], xs)) / (end - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Find the first x of an accuracy on an arm's mean curve, as a share of reference tokens.

    A None `ratio` or bound is beyond `limit`, the curves' end; below LEAST seeds no bounds.
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
) -> Crossing | None:
    """Find where an arm's mean curve reaches a share of the reference's gain, or `level`, over the
    seeds that both have. None without such seeds, and where there is no gain to take a share of.

        tokens = the first x at which mean_s y_s(x) >= level
        ratio  = tokens / (mean_s of the reference's last x)
        level  = a + share * (b - a),  a, b the means of the reference's first, last y; or given

    The interval is a percentile bootstrap over seeds, drawn for both arms together: curve, level
    and denominator are made again each time. A curve that never gets there is beyond every ratio,
    not left out, as it is from a mean over runs."""
    seeds = sorted(curves.keys() & reference.keys())
    if not seeds:
        return None
    start, end = (
        max(curves[seed].start for seed in seeds),
        min(curves[seed].end for seed in seeds),
    )
    xs_X = np.array(sorted({x for seed in seeds for x in curves[seed].xs if start <= x <= end}))
    ys_SX = np.array([np.interp(xs_X, curves[seed].xs, curves[seed].ys) for seed in seeds])
    draws_RS = np.random.default_rng(0).integers(len(seeds), size=(RESAMPLES, len(seeds)))
    counts_RS = (draws_RS[:, :, None] == np.arange(len(seeds))).sum(1)
    # the first row is the seeds themselves
    weights_RS = np.concatenate([np.ones((1, len(seeds))), counts_RS]) / len(seeds)
    ends_S3 = np.array(
        [(reference[seed].ys[0], reference[seed].ys[-1], reference[seed].end) for seed in seeds]
    )
    first_R, last_R, end_R = (weights_RS @ ends_S3).T
    if level is None and last_R[0] <= first_R[0]:
        return None
    level_R = (
        first_R + share * (last_R - first_R) if level is None else np.full(len(first_R), level)
    )
    tokens_R = _first_reach(xs_X, weights_RS @ ys_SX, level_R)
    ratio_R = tokens_R / end_R
    limit = float(xs_X[-1] / end_R[0])
    low = high = None
    if len(seeds) >= LEAST:
        # what a resample reaches later than the curve ends is beyond it, too
        known_R = np.where(ratio_R[1:] <= limit * (1 + ROUNDING), ratio_R[1:], np.inf)
        tail = (1 - CONFIDENCE) / 2
        low = _or_beyond(np.quantile(known_R, tail, method="lower"))
        high = _or_beyond(np.quantile(known_R, 1 - tail, method="higher"))
    return Crossing(
        level=float(level_R[0]),
        tokens=_or_beyond(tokens_R[0]),
        ratio=_or_beyond(ratio_R[0]),
        low=low,
        high=high,
        limit=limit,
        num=len(seeds),
    )


def _first_reach(xs_X: np.ndarray, ys_RX: np.ndarray, level_R: np.ndarray) -> np.ndarray:
    """[R]: the smallest x where each row is at its level or above; infinite where never."""
    reached_RX = ys_RX >= level_R[:, None] - ROUNDING
    at_R = reached_RX.argmax(1)
    before_R = np.maximum(at_R - 1, 0)
    rows = np.arange(len(ys_RX))
    low_R, high_R = ys_RX[rows, before_R], ys_RX[rows, at_R]
    rise_R = np.where(high_R > low_R, high_R - low_R, 1.0)
    share_R = np.clip((level_R - low_R) / rise_R, 0.0, 1.0)
    tokens_R = np.where(
        at_R > 0, xs_X[before_R] + share_R * (xs_X[at_R] - xs_X[before_R]), xs_X[0]
    )
    return np.where(reached_RX.any(1), tokens_R, np.inf)


def _or_beyond(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
