"""Attacks on the tests of programs: programs that solve nothing, out of programs.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import yaml

from r3_openrlhf.config.code_tests import CodeTests, read_tests
from r3_openrlhf.problems.code_rows import first_call

PROGRAMS = yaml.safe_load(files(__package__).joinpath("programs.yaml").read_text(encoding="utf-8"))


def program_attacks(reference: str) -> Iterator[tuple[str, str]]:
    """(family, program) pairs for the tests of a problem.

    A program that answers every test alike or repeats its input solves nothing either; where one is accepted the tests are too few.
    """
    tests = read_tests(reference)
    name, output = _target(tests)
    kind = "program" if tests.kind == "standard input" else "function"
    for family, texts in PROGRAMS.items():
        for text in texts.get("both", []):
            behind = "" if kind == "program" else f"\ndef {name}(*a, **k): pass\n"
            yield family, f"{text}{behind}"
        for text in texts.get(kind, []):
            if "OUTPUT" not in text or output is not None:
                yield family, re.sub("NAME|OUTPUT", lambda word: name if word[0] == "NAME" else str(output), text)


def _target(tests: CodeTests) -> tuple[str, str | None]:
    """The name of the function, and what the first test expects, as Python writes it; None where asserts say it."""
    if tests.asserts:
        found = first_call("\n".join([tests.setup, *tests.asserts])) or _checked(tests.asserts)
        return found[0] if found else "solution", None
    return tests.fn_name or "", repr(tests.outputs[0])


def _checked(asserts: list[str]) -> tuple[str, int] | None:
    """HumanEval's check(NAME)."""
    found = re.fullmatch(r"check\((\w+)\)", asserts[0])
    return (found[1], 0) if found else None
