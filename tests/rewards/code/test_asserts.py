"""Tests that are code: what they see of a program, and what a program does not see of them."""

import tomllib
from pathlib import Path

import pytest

from r3_openrlhf.config.code_tests import _OF_MODULES, CodeTests, split_names
from r3_openrlhf.rewards.code.run import Call, Limits
from tests.rewards.code.test_run import runner  # noqa: F401  a fixture


def verdict(runner, program, test, setup="", **limits):  # noqa: F811
    names, imports = split_names(CodeTests(asserts=[test], setup=setup))
    call = Call(test=test, setup="\n".join([*imports, setup]), names=tuple(names))
    (outcome,) = runner.run_program(program, [call], limits=Limits(**limits))
    return outcome.value == "true" if outcome.status == "finished" else outcome.status


_TABLE = tomllib.loads(Path(__file__).with_name("asserts.toml").read_text("utf-8"))


def _cases(kind: str, third: str) -> list[tuple]:
    """Read the cases of asserts.toml, where a program or setup may be the name of a text."""
    texts = _TABLE["texts"]
    rows = [tuple(case.get(key, "") for key in ("program", "test", third)) for case in _TABLE[kind]]
    return [tuple(texts.get(value, value) for value in row) for row in rows]


@pytest.mark.parametrize(("program", "test", "setup"), _cases("holds", "setup"))
def test_it_holds(runner, program, test, setup):  # noqa: F811
    assert verdict(runner, program, test, setup) is True


@pytest.mark.parametrize(("program", "test", "expected"), _cases("fails", "expected"))
def test_it_does_not_hold(runner, program, test, expected):  # noqa: F811
    assert verdict(runner, program, test, seconds_per_test=1.0) == expected


@pytest.mark.parametrize("name", " ".join(["Counter isclose reduce Fraction", *_OF_MODULES.values()]).split())
def test_a_standard_name_is_never_the_programs_where_the_tests_ask_for_another_one(name):
    names, imports = split_names(CodeTests(asserts=[f"assert {name}(f(1)) == 2"]))
    assert names == ["f"] and [line.split()[-1] for line in imports] == [name]
    assert split_names(CodeTests(asserts=[f"assert {name}(1) == 2"])) == ([name], [])
