"""Amounts of data.task=number: the units of mathematics, and those of physics that are letters there."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf import grade
from r3_openrlhf.rewards.answers.amounts import units
from r3_openrlhf.rewards.answers.physical_amounts import amount, amounts_agree, last_amount

PREFIXES = {"n": -9, "µ": -6, "m": -3, "c": -2, "k": 3, "M": 6, "G": 9, "p": -12, "T": 12}
SYMBOLS = [row[1] for row in units._PREFIXED.values()]
NUMBERS = st.integers(1, 9999).map(str) | st.decimals(
    "0.01", "99", places=2, allow_nan=False
).map(str)
FRAMES = [
    r"So \boxed{{{}}}.",
    "The answer is {}.",
    "<answer>{}</answer>",
    "We divide and get\n{}",
    "It follows that the final value is **{}**",
]
# of one physical quantity in several spellings, worked by hand
EQUAL = [
    ("3 kN", "3000 N"),
    (r"3\,\text{kN}", "3"),
    ("25 °C", "25 C"),
    (r"25^\circ\text{C}", "298.15 K"),
    ("77 °F", "25 degrees Celsius"),
    ("5 N m", "5 J"),
    (r"5\ \text{N}\cdot\text{m}", "500 N·cm"),
    ("5 V/m", "5 N/C"),
    ("2 T", "2 Wb/m^2"),
    (r"4\ \mu\text{F}", "4e-6 F"),
    (r"1.5 \times 10^{-3}\ \text{H}", "1.5 mH"),
    ("5 J/(kg K)", r"5\ \mathrm{J\,kg^{-1}\,K^{-1}}"),
    ("5 J kg⁻¹ °C⁻¹", "5 J/(kg K)"),
    ("1.2 g/cm³", "1200 kg/m^3"),
    ("72 km/h", "20 m/s"),
    ("1 atm", "101.325 kPa"),
    ("1 kWh", "3.6 MJ"),
    ("2 Å", "0.2 nm"),
    ("0.5 M", "0.5 mol/L"),
    ("5 Ω", r"5\,\Omega"),
    ("50 pF", "0.05 nF"),
    ("1 mPa", "0.001 Pa"),
    ("1 mHz", "0.001 Hz"),
    (r"\frac{1}{2} m", "50 cm"),
    ("28%", "0.28"),
    ("2 hours 30 minutes", "150 min"),
]
DIFFERENT = [
    ("3 N", "3 kN"),
    ("3 m", "3 s"),
    ("1 mPa", "1 MPa"),
    ("5 C", "5 K"),
    ("5 K", "5 °C"),
    ("5 N m", "5 N/m"),
    ("5 J/kg K", "5 J"),
    ("5 kg", "5 lb"),
    ("3 x", "3"),
    ("3 kN of force and more", "3000 N"),
    ("", "3 N"),
]


@pytest.mark.parametrize(("answer", "reference"), EQUAL)
@pytest.mark.parametrize("frame", FRAMES)
def test_one_amount_in_two_spellings(answer, reference, frame):
    for said, wanted in ((answer, reference), (reference, answer)):
        outcome = grade(frame.format(said), wanted, task="number")
        assert outcome.verdict == "correct", (said, wanted, outcome)


@pytest.mark.parametrize(("answer", "reference"), DIFFERENT)
@pytest.mark.parametrize("frame", FRAMES)
def test_two_amounts(answer, reference, frame):
    assert grade(frame.format(answer), reference, task="number").verdict == "wrong"


@given(NUMBERS, st.sampled_from(SYMBOLS), st.sampled_from(sorted(PREFIXES)))
def test_a_prefix_scales_every_unit(number, symbol, prefix):
    scaled = Fraction(number) * Fraction(10) ** PREFIXES[prefix]
    said, wanted = amount(f"{number} {prefix}{symbol}"), amount(f"{number} {symbol}")
    assert said is not None and wanted is not None and wanted.value == Fraction(number)
    one = type(said)(scaled, wanted.units)
    assert amounts_agree(said, one, tolerance=Fraction(0))
    assert not amounts_agree(said, wanted, tolerance=Fraction(1, 10))


@given(
    NUMBERS,
    st.lists(
        st.tuples(st.sampled_from(SYMBOLS), st.integers(-3, 3).filter(bool)),
        min_size=2,
        max_size=3,
    ),
    st.data(),
)
def test_a_product_is_read_in_each_spelling(number, factors, data):
    """Signs of a product, of powers and of division mean the same, in any order."""
    sign = data.draw(st.sampled_from([" ", "·", r"\cdot ", r"\,", "*"]))
    plain = " ".join(f"{symbol}^{{{power}}}" for symbol, power in factors)
    written = sign.join(
        rf"\text{{{symbol}}}^{{{power}}}"
        for symbol, power in data.draw(st.permutations(factors))
    )
    said, wanted = amount(f"{number} {written}"), amount(f"{number} {plain}")
    assert said is not None and wanted is not None
    assert amounts_agree(said, wanted, tolerance=Fraction(0))
    above = [f"{symbol}^{power}" for symbol, power in factors if power > 0]
    below = [f"{symbol}^{-power}" for symbol, power in factors if power < 0]
    if above and below:
        ratio = amount(f"{number} {' '.join(above)}/({' '.join(below)})")
        assert ratio is not None and amounts_agree(ratio, wanted, tolerance=Fraction(0))


@pytest.mark.parametrize("unit", sorted(units._PREFIXED))
def test_what_mathematics_converts_numbers_convert(unit):
    """The prefixes of a unit's row, in \\text{}, in both tasks."""
    size, symbol, prefixes, _ = units._PREFIXED[unit]
    for prefix in prefixes.split():
        factor = Fraction(units._PREFIXES[prefix][0])
        said = rf"So \boxed{{3\text{{ {prefix}{symbol}}}}}."
        reference = rf"{3 * factor.numerator}/{factor.denominator}\text{{ {symbol}}}"
        for task in ("math", "number"):
            if task == "math" and units.unit_of(f"3\\text{{ {symbol}}}") is None:
                continue  # C, T, F, H and S are letters there
            assert grade(said, reference, task=task).verdict == "correct", (
                task,
                said,
                reference,
            )


@given(st.text(max_size=60), st.text(alphabet="0123456789^{}()/\\.kNm °", max_size=60))
def test_any_text_is_read(text, signs):
    for one in (text, signs, f"5 {signs}"):
        amount(one)
        last_amount(one)


def test_the_last_amount_ends_the_text():
    assert last_amount("at t = 3 s the speed is 5 cm^3/s.") == amount("5 cm^3/s")
    assert last_amount("the speed is $5\\,\\text{m/s}$") == amount("5 m/s")
    assert last_amount("5 m/s, as we have seen") is None
    assert last_amount("") is None
