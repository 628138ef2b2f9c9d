"""Values of plain arithmetic, exactly."""

from fractions import Fraction

import pytest

from r3_openrlhf.rewards.answers.arithmetic import exact_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.5", Fraction(2469, 2)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"6\div 4", Fraction(3, 2)),
        ("6÷4", Fraction(3, 2)),
        (r"12 \times 3", 36),
        (r"2 \cdot 5", 10),
        (r"\sqrt{49}", 7),
        (r"1.6\times10^{3}", 1600),
        (r"\divergence 4", None),
        ("x + 1", None),
        ("__import__('os')", None),
    ],
)
def test_by_hand(text, value):
    assert exact_value(text) == value
