"""Outputs and values beside what is expected, and where the program of a response stands."""

import pytest

from r3_openrlhf.rewards.code.compare import same_text, same_value
from r3_openrlhf.rewards.code.data import encode
from r3_openrlhf.rewards.code.extraction import last_program
from tests.tables import tables_beside

TABLES = tables_beside(__file__)
SAME_VALUES = [
    ([1, 2], (1, 2)),
    ([[1, 2], [3]], [(1, 2), (3,)]),
    (0.3, 0.1 + 0.2),
    (1.0, 1),
    (3, 3.0),
    (True, 1),
    ({"1": [2]}, {1: (2,)}),
    ({"true": 0}, {True: 0}),
    (None, None),
    (10**400, 10**400),
    (float("nan"), float("nan")),
]
OTHER_VALUES = [
    ([1, 2], [1, 2, 3]),
    ([1, 2], {1, 2}),
    ([1, 2], "12"),
    ("1", 1),
    (1, "1"),
    (1.0, True),
    (1.0, "1.0"),
    (1.5, 10**400),
    (None, 0),
    (0, None),
    (False, None),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({"1": 5, "2": 6}, {1: 5, "1": 5}),
    (3, 3.0000001),
    ("a", b"a"),
    (1, 1 + 0j),
    ({"1": 2}, {10**5000: 2}),
]


def same_returned(expected, returned, **more):
    return same_value(expected, encode(returned), **more)


@pytest.mark.parametrize(
    ("same", "pairs", "expected"),
    [
        (same_text, TABLES["same"], True),
        (same_text, TABLES["other"], False),
        (same_returned, SAME_VALUES, True),
        (same_returned, OTHER_VALUES, False),
    ],
)
def test_what_is_the_same(same, pairs, expected):
    assert [pair for pair in pairs if same(*pair) is not expected] == []


def test_a_list_around_the_value_counts_where_the_data_set_has_them():
    assert same_returned([5], 5, boxed=True) and same_returned([5], [5], boxed=True)
    assert not same_returned([5], 5)
    assert not same_returned([5, 6], 5, boxed=True)


@pytest.mark.parametrize(
    ("response", "program"), TABLES["programs"].values(), ids=TABLES["programs"]
)
def test_where_the_program_is(response, program):
    assert last_program(response) == program


@pytest.mark.parametrize("response", TABLES["no_program"].values(), ids=TABLES["no_program"])
def test_where_there_is_no_program(response):
    assert last_program(response) is None


def test_hostile_texts():
    """Quadratic work would take hours."""
    for text in (
        "```" * 300_000,
        "```python\n" * 100_000,
        " " * 1_000_000,
        "`" * 1_000_000,
        "```\n" * 200_000,
    ):
        last_program(text)
        assert not same_text(text + "\n2", text + "\n1")
    assert same_text("1 " * 500_000, "1.0 " * 500_000)
    assert not same_text("9" * 1_000_000, "1e999")
