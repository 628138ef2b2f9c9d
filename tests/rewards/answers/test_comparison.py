"""Cheap comparisons: text, exact numbers, lists of numbers; undecided (None) wherever they could be wrong."""

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from r3_openrlhf.rewards.answers.amounts.comparison import compare_cheaply, normalise
from r3_openrlhf.rewards.answers.amounts.units import split_unit
from r3_openrlhf.rewards.answers.text.arithmetic import exact_value, rough_value
from tests.tables import tables_beside

TABLES = tables_beside(__file__)


@pytest.mark.parametrize(("answer", "reference"), TABLES["undecided"])
def test_left_to_the_symbolic_comparison(answer, reference):
    assert compare_cheaply(answer, reference) is None


def test_a_decimal_comma_in_the_reference_needs_two_decimals():
    assert compare_cheaply("1.22", "1,22") is True
    assert compare_cheaply("3.5", "3,5") is None  # the reference lists 3 and 5


numbers = st.fractions(max_denominator=10**6)


def spelled(value, style):
    top, bottom = value.numerator, value.denominator
    return {
        "slash": f"{top}/{bottom}",
        "frac": rf"\frac{{{top}}}{{{bottom}}}",
        "product": rf"{top} \cdot (1/{bottom})",
    }[style]


@given(numbers, numbers, *[st.sampled_from(["slash", "frac", "product"])] * 2)
def test_fractions_are_equal_when_their_values_are(a, b, style_a, style_b):
    assert compare_cheaply(spelled(a, style_a), spelled(b, style_b)) is (a == b)
    assert compare_cheaply(spelled(a, style_a), spelled(a, style_b)) is True


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers_agree_only_when_they_are_the_same(a, b):
    assert compare_cheaply(f"{a:,}", str(b)) is (a == b)


@given(numbers, st.integers(0, 8))
def test_a_decimal_stands_for_what_rounds_to_it_and_for_nothing_else(value, decimals):
    assume(abs(value) >= 1)
    text = f"{float(round(value, decimals)):.{decimals}f}"
    assume(Fraction(text) == round(value, decimals))
    agrees = compare_cheaply(text, f"{value.numerator}/{value.denominator}")
    digits = len(text.replace("-", "").replace(".", "").lstrip("0"))
    assert agrees is (Fraction(text) == value or decimals > 0 and digits >= 4)


@given(st.text(max_size=60))
def test_every_text_equals_itself_and_nothing_raises(text):
    assert compare_cheaply(text, text) in ((True,) if normalise(text) else (None, True))


@given(st.text(alphabet="0123456789.,+-*/^(){} \\fracsqtimed", max_size=40))
def test_arithmetic_agrees_with_python_where_both_read_the_text(text):
    value = exact_value(text)
    if (
        value is None
        or any(mark in text for mark in ("\\", ",", "{", " ", "^"))
        or ")(" in text
    ):
        return
    try:
        expected = eval(text, {"__builtins__": {}})  # digits and + - * / ( ) only
    except (SyntaxError, TypeError, ZeroDivisionError):
        return
    if abs(value) < 10**300:  # beyond that a float is infinite
        assert float(value) == pytest.approx(expected)


@pytest.mark.parametrize("text", [*TABLES["no_value"], "(" * 101 + "1" + ")" * 101, "1" * 300])
def test_arithmetic_refuses_what_is_too_large_or_no_number(text):
    assert exact_value(text) is None


@pytest.mark.parametrize(("text", "number", "unit"), TABLES["units"])
def test_a_unit(text, number, unit):
    assert split_unit(text) == (number, unit)


@pytest.mark.parametrize(("text", "number"), TABLES["counted"])
def test_what_is_counted_is_no_unit(text, number):
    assert split_unit(text) == (number, None)


@pytest.mark.parametrize("text", TABLES["not_counted"])
def test_what_is_behind_a_number_and_not_counted(text):
    assert split_unit(text) == (text, None)


@given(numbers, st.sampled_from(["slash", "frac", "product"]))
def test_a_rough_value_is_near_the_exact_one(value, style):
    text = spelled(value, style)
    assert math.isclose(rough_value(text), exact_value(text))


@pytest.mark.parametrize(("text", "value"), TABLES["rough"])
def test_a_rough_value_knows_roots_and_pi_and_nothing_else(text, value):
    rough = rough_value(text)
    assert rough is None if value == "none" else math.isclose(rough, value)


@given(st.integers(2, 400), st.integers(0, 40), st.sampled_from(TABLES["with_roots"]))
def test_numbers_with_roots_are_told_apart_without_a_parser(a, more, form):
    """Never where a rounding or a percent sign could make them equal: these are left to the symbolic comparison."""
    b = a + more
    verdict = compare_cheaply(form % a, form % b)
    x, y = rough_value(form % a), rough_value(form % b)
    if verdict is False:
        assert not any(math.isclose(x * factor, y, rel_tol=0.015) for factor in (1, 100, 0.01))
    else:
        assert any(
            math.isclose(x * factor, y, rel_tol=0.03, abs_tol=0.03) for factor in (1, 100, 0.01)
        )


@pytest.mark.parametrize(("answer", "reference", "verdict"), TABLES["letters_for_a_number"])
def test_a_formula_with_letters_is_no_number(answer, reference, verdict):
    assert compare_cheaply(answer, reference) is (False if verdict == "wrong" else None)
