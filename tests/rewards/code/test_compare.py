"""Outputs and values beside what is expected, and where the program of a response stands."""

import pytest

from r3_openrlhf.rewards.code.compare import same_text, same_value
from r3_openrlhf.rewards.code.extraction import last_program

SAME_TEXTS = [
    ("3\n", "3"), ("1 2 \n3\n", "  1 2\n3\n\n"), ("1 2", "1   2"), ("a\r\nb\r\n", "a\nb"),
    ("6", "6.0"), ("6", "+6"), ("100000000000000000000", "1e20"), ("0.333333", "0.3333333333333333"),
    ("0.001235", "0.00123456"), ("3.0", "3"), ("0.0", "1e-17"), ("1.5 x 2.5", "1.50 x 2.4999999999"), ("nan", "nan"),
]  # fmt: skip
OTHER_TEXTS = [
    ("3", ""), ("", "3"), ("1\n2", "1 2"), ("1 2", "1\n2"), ("1\n2", "1"), ("1\n2", "1\n2\n3"), ("1\n\n2", "1\n2"),
    ("YES", "yes"), ("6", "5.9999999"), ("10000000000000000000001", "1e22"), ("0.5", "0.54"), ("0.001", "0"),
    ("123456.789", "123457.5"), ("0.5", "nan"), ("1000", "1_000"), ("7", "٧"), ("7", "７"), ("inf", "1e9999"),
    ("1.0", "inf"), ("0.5", "1/2"), ("0.1", "0x0.1"), ("1.0", "1e99999"), ("0011", "11"), ("007", "7.0"),
]  # fmt: skip
SAME_VALUES = [
    ([1, 2], (1, 2)), ([[1, 2], [3]], [(1, 2), (3,)]), (0.3, 0.1 + 0.2), (1.0, 1), (3, 3.0), (True, 1),
    ({"1": [2]}, {1: (2,)}), ({"true": 0}, {True: 0}), (None, None), (10**400, 10**400), (float("nan"), float("nan")),
]  # fmt: skip
OTHER_VALUES = [
    ([1, 2], [1, 2, 3]), ([1, 2], {1, 2}), ([1, 2], "12"), ("1", 1), (1, "1"), (1.0, True), (1.0, "1.0"),
    (1.5, 10**400), (None, 0), (0, None), (False, None), ({"a": 1}, {"a": 1, "b": 2}),
    ({"1": 5, "2": 6}, {1: 5, "1": 5}), (3, 3.0000001), ("a", b"a"), (1, 1 + 0j), ({"1": 2}, {10**5000: 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("same", "pairs", "expected"),
    [
        (same_text, SAME_TEXTS, True),
        (same_text, OTHER_TEXTS, False),
        (same_value, SAME_VALUES, True),
        (same_value, OTHER_VALUES, False),
    ],
)
def test_what_is_the_same(same, pairs, expected):
    assert [pair for pair in pairs if same(*pair) is not expected] == []


def test_a_list_around_the_value_counts_where_the_data_set_has_them():
    assert same_value([5], 5, boxed=True) and same_value([5], [5], boxed=True)
    assert not same_value([5], 5)
    assert not same_value([5, 6], 5, boxed=True)


PROGRAMS = {
    "one": ("Here:\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
    "the last": ("```python\nprint(1)\n```\n```python\nprint(2)\n```", "print(2)\n"),
    "what it prints": ("```python\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)\n"),
    "another language": ("```py\nprint(1)\n```\n```cpp\nint main;\n```", "print(1)\n"),
    "no name": ("```\nprint(1)\n```", "print(1)\n"),
    "in a list": ("1. So\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
    "four": ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
    "tildes": ("~~~python\nprint(1)\n~~~", "print(1)\n"),
    "lines of another system": ("```python\r\nprint(1)\r\n```", "print(1)\n"),
    "behind the thinking": ("<think>```python\nprint(1)\n```</think>```python\nprint(2)\n```", "print(2)\n"),
    "an open one before": ("```python\nprint(1)\n\n```python\nprint(2)\n```", "print(2)\n"),
    "attributes": ("```python title=a\nprint(1)\n```", "print(1)\n"),
    "none": ("print(1)", None),
    "open": ("```python\nprint(1)", None),
    "in thinking alone": ("<think>```python\nprint(1)\n```", None),
    "empty": ("```python\n\n```", None),
    "in a line": ("Use ```print(1)``` here", None),
}


@pytest.mark.parametrize(("response", "program"), PROGRAMS.values(), ids=PROGRAMS)
def test_where_the_program_is(response, program):
    assert last_program(response) == program


def test_hostile_texts():
    """Quadratic work would take hours."""
    for text in ("```" * 300_000, "```python\n" * 100_000, " " * 1_000_000, "`" * 1_000_000, "```\n" * 200_000):
        last_program(text)
        assert not same_text(text + "\n2", text + "\n1")
    assert same_text("1 " * 500_000, "1.0 " * 500_000)
    assert not same_text("9" * 1_000_000, "1e999")
