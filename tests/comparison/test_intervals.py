"""Intervals and curves: by hand, by law, and against tables and libraries that compute them in another way."""

import itertools
import math
import statistics

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.comparison.intervals import (
    Crossing,
    Curve,
    SeedEstimate,
    crossing_of_mean,
    estimate,
    paired_difference,
    seeds_needed,
    t_quantile,
)

# Two-sided 95% quantiles as every printed table has them.
TABLE = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    9: 2.262,
    10: 2.228,
    29: 2.045,
    30: 2.042,
    120: 1.980,
}
numbers = st.floats(-1e3, 1e3)


@pytest.mark.parametrize(("degrees", "quantile"), TABLE.items())
def test_t_quantiles_are_those_of_the_table(degrees, quantile):
    assert t_quantile(degrees) == approx(quantile, abs=5e-4)


def test_an_interval_by_hand():
    """Mean 0.4, deviations -0.2, 0, 0.2: s = 0.2, and 4.303 * 0.2 / sqrt(3) = 0.4968."""
    found = estimate([0.2, 0.4, 0.6])
    assert found.num == 3 and found.mean == approx(0.4)
    assert (found.low, found.high) == (
        approx(0.4 - 0.4968, abs=1e-4),
        approx(0.4 + 0.4968, abs=1e-4),
    )
    assert estimate([0.7]) == SeedEstimate(0.7, None, None, 1) and estimate([]) is None
    assert estimate([0.2, 0.4]).values == (0.2, 0.4) and estimate([0.2, 0.4]).low is None
    assert estimate([3.0, 4.0, 8.0], bounds=None) == SeedEstimate(5.0, None, None, 3)  # counted


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.sampled_from([(0.0, 1.0), (0.0, math.inf), (-1.0, 1.0)]),
)
def test_no_interval_is_where_no_value_can_be(values, bounds):
    found = estimate(values, bounds=bounds)
    if len(values) < 3:
        assert (found.low, found.high, found.values) == (None, None, tuple(values))
    else:
        wide = estimate(values)
        assert (found.low, found.high) == (max(bounds[0], wide.low), min(bounds[1], wide.high))
        assert (
            bounds[0] <= found.low <= found.mean + 1e-12
            and found.mean - 1e-12 <= found.high <= bounds[1]
        )


def test_a_paired_difference_takes_the_seeds_that_both_have():
    """Seeds 1, 2 and 5: differences 0.1, 0.3 and 0.2, mean 0.2; s = 0.1, 4.303 * 0.1 / sqrt(3) = 0.2484."""
    found = paired_difference(
        {1: 0.4, 2: 0.7, 3: 0.9, 5: 0.2}, {1: 0.3, 2: 0.4, 4: 0.0, 5: 0.0}
    )
    assert found.num == 3 and found.mean == approx(0.2)
    assert found.high - found.mean == approx(0.2484, abs=1e-4)
    assert paired_difference({1: 0.4}, {2: 0.4}) is None


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1), min_size=3), st.floats(-0.5, 0.5))
def test_what_all_seeds_share_cancels(values, shift):
    """A difference that is the same in every seed has an interval of no width, however far the seeds lie apart."""
    found = paired_difference({seed: value + shift for seed, value in values.items()}, values)
    assert found.mean == approx(shift, abs=1e-9) and found.high - found.low == approx(
        0.0, abs=1e-9
    )


# ── curves ──


@st.composite
def curves(draw, min_size=2):
    xs = sorted(draw(st.sets(st.integers(0, 10_000), min_size=min_size, max_size=8)))
    return Curve(tuple(xs), tuple(draw(st.floats(0, 1)) for _ in xs))


@given(curves(), st.floats(0.01, 0.99))
def test_mean_heights_add_up_and_agree_with_a_slow_sum(curve, share):
    middle = curve.start + share * (curve.end - curve.start)
    width = curve.end - curve.start
    whole = curve.mean_height(curve.start, curve.end)
    ends = ((curve.start, middle), (middle, curve.end))
    parts = [curve.mean_height(begin, end) * (end - begin) for begin, end in ends]
    assert whole == approx(sum(parts) / width, abs=1e-9)
    grid = numpy.union1d(numpy.linspace(curve.start, curve.end, 50), curve.xs)
    assert whole == approx(
        numpy.trapezoid(numpy.interp(grid, curve.xs, curve.ys), grid) / width, abs=1e-9
    )


# ── how many seeds ──


@given(st.lists(st.floats(0, 1), min_size=3, max_size=12), st.floats(0.05, 1))
def test_the_seeds_are_the_fewest_that_do(values, half_width):
    found, deviation = estimate(values), numpy.std(values, ddof=1)
    num = seeds_needed(found, half_width=half_width)
    widths = {n: t_quantile(n - 1) * deviation / math.sqrt(n) for n in {max(3, num - 1), num}}
    assert widths[num] <= half_width * (1 + 1e-6)
    assert num == 3 or widths[num - 1] > half_width * (1 - 1e-6)


# ── the crossing of a mean curve ──


def curve(*points):
    return Curve(*zip(*points, strict=True))


def test_a_curve_that_is_never_there_is_beyond_its_end():
    reference = {seed: curve((0, 0.0), (100, 0.5)) for seed in (1, 2, 3)}
    arm = {
        1: curve((0, 0.0), (80, 0.6)),
        2: curve((0, 0.0), (80, 0.2)),
        3: curve((0, 0.0), (80, 0.2)),
    }
    found = crossing_of_mean(arm, reference)
    assert (found.tokens, found.ratio, found.high, found.limit) == (
        None,
        None,
        None,
        approx(0.8),
    )
    # the resample that is seed 1 alone gets there
    assert found.low == approx(80 * 0.5 / 0.6 / 100)


def test_one_seed_has_a_ratio_and_no_bounds_and_none_has_nothing():
    reference = {1: curve((0, 0.0), (100, 0.5))}
    expected = Crossing(level=0.5, tokens=50, ratio=0.5, low=None, high=None, limit=0.5, num=1)
    assert crossing_of_mean({1: curve((0, 0.0), (50, 0.5))}, reference) == expected
    assert crossing_of_mean({2: curve((0, 0.0), (50, 0.5))}, reference) is None


def test_there_is_no_share_of_a_gain_that_is_none():
    reference = {1: curve((0, 0.3), (100, 0.2)), 2: curve((0, 0.1), (100, 0.2))}
    assert crossing_of_mean(reference, reference) is None
    assert crossing_of_mean(reference, reference, level=0.2).ratio == 0.0


CURVES = st.lists(st.lists(st.integers(0, 10), min_size=3, max_size=3), min_size=2, max_size=4)


@given(CURVES, st.integers(0, 10))
def test_the_crossing_agrees_with_the_mean_of_curves_and_their_first_reach(heights, level):
    """Independent: the mean of the curves, one stretch after the other, and every resample of few seeds enumerated."""
    curves = {
        i: curve((0, ys[0] / 10), (50 + i, ys[1] / 10), (100, ys[2] / 10))
        for i, ys in enumerate(heights)
    }
    reference = {i: curve((0, 0.0), (200, 1.0)) for i in curves}

    def ratio(seeds):
        some = [curves[seed] for seed in seeds]
        start, end = max(one.start for one in some), min(one.end for one in some)
        xs = sorted({x for one in some for x in one.xs if start <= x <= end})
        points = [(x, statistics.fmean(one.at(x) for one in some)) for x in xs]
        wanted, (x, y) = level / 10 - 1e-9, points[0]
        for after, higher in points[1:]:
            if y >= wanted:
                break
            if higher >= wanted:
                return (x + (wanted - y) / (higher - y) * (after - x)) / 200
            x, y = after, higher
        return x / 200 if y >= wanted else math.inf

    found = crossing_of_mean(curves, reference, level=level / 10)
    expected = ratio(sorted(curves))
    assert (found.ratio is None) == math.isinf(expected)
    assert found.ratio is None or found.ratio == approx(expected, abs=1e-6)
    low, high = (math.inf if bound is None else bound for bound in (found.low, found.high))
    assert low <= high and all(
        bound <= found.limit + 1e-9 or bound == math.inf for bound in (low, high)
    )
    # each resample of one seed alone is one of 27: both bounds are the extremes
    if len(curves) == 3:
        among = sorted(map(ratio, itertools.combinations_with_replacement(curves, 3)))
        assert (low, high) == (approx(among[0], abs=1e-6), approx(among[-1], abs=1e-6))
