"""Tests that are code: what they see of a program, and what a program does not see of them."""

import itertools
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from r3_openrlhf.config.code_tests import _OF_MODULES, CodeTests, split_names
from r3_openrlhf.rewards.code.run import Call, Limits


def verdict(runner, program, test, setup="", **limits):
    names, imports = split_names(CodeTests(asserts=[test], setup=setup))
    call = Call(test=test, setup="\n".join([*imports, setup]), names=tuple(names))
    (outcome,) = runner.run_program(program, [call], limits=Limits(**limits))
    return outcome.value == "true" if outcome.status == "finished" else outcome.status


_TABLE = tomllib.loads(Path(__file__).with_name("asserts.toml").read_text("utf-8"))


def _cases(kind: str, third: str) -> list[tuple]:
    """Read the cases of asserts.toml, where a program or setup may be the name of a text."""
    texts = _TABLE["texts"]
    rows = [
        tuple(case.get(key, "") for key in ("program", "test", third)) for case in _TABLE[kind]
    ]
    return [tuple(texts.get(value, value) for value in row) for row in rows]


@pytest.mark.parametrize(("program", "test", "setup"), _cases("holds", "setup"))
def test_it_holds(runner, program, test, setup):
    assert verdict(runner, program, test, setup) is True


@pytest.mark.parametrize(("program", "test", "expected"), _cases("fails", "expected"))
def test_it_does_not_hold(runner, program, test, expected):
    assert verdict(runner, program, test, seconds_per_test=1.0) == expected


@pytest.mark.parametrize(
    "name",
    ["Counter", "isclose", "reduce", "Fraction", *itertools.chain(*_OF_MODULES.values())],
)
def test_a_standard_name_is_never_the_programs_where_the_tests_ask_for_another_one(name):
    names, imports = split_names(CodeTests(asserts=[f"assert {name}(f(1)) == 2"]))
    assert names == ["f"] and [line.split()[-1] for line in imports] == [name]
    assert split_names(CodeTests(asserts=[f"assert {name}(1) == 2"])) == ([name], [])


BOX = """
class Box:
    def __init__(self, items): self.items, self.grid, self.names = items, [[], [0]], {}
    def add(self, n): self.items.append(n); self.names[n] = len(self.items); return self.items
    def total(self): return sum(self.items) + sum(map(sum, self.grid)) + sum(self.names.values())
"""
STEPS = """items.append({n})
items.clear()
box.items.append({n})
box.items[:] = [{n}]
box.items = items = box.items + [{n}]
same = box.add({n}); same.append({n})
box.grid[0].append({n})
box.grid.append([{n}])
box.names[{n}] = {n}
names = box.names; names.update(a={n})
copied = [*box.items]; copied.append({n})
assert box.add(4) is box.items""".splitlines()


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), max_size=8))
def test_data_that_test_and_program_hold_is_as_in_one_process(runner, steps):
    test = ["items = [1]; box = Box(items)", *(step.format(n=n) for step, n in steps)]
    exec(
        "\n".join([BOX, *test, "state = items, box.items, box.grid, box.names, box.total()"]),
        space := {},
    )
    test.append(
        f"assert (items, box.items, box.grid, box.names, box.total()) == {space['state']!r}"
    )
    assert verdict(runner, BOX, "\n".join(test)) is True
