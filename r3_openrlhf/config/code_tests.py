"""The contract of task `code`: one JSON text with the tests of a problem, as rows, `/grade`, files
and functions hold it.

{"inputs": ["1 2\\n"], "outputs": ["3"]}                                  programs: standard input and output
{"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}                    a function, or a method of class Solution
{"asserts": ["assert add(1, 2) == 3"], "setup": "import math"}            lines of Python"""

from __future__ import annotations

import ast
import json
import math
from typing import Any

import msgspec

from r3_openrlhf.method.errors import DataError

MAX_CHARS = 4_000_000  # of one problem's tests, as a reward server takes them
MAX_TESTS = 1000


class CodeTests(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The tests of one problem.

    Args:
        inputs, outputs: Equally many. With `fn_name` an input is arguments, an output any JSON
            value; without it both are texts.
        fn_name: The function that is called.
        asserts: Instead of both: sources, each of which raises nothing where the test holds.
        setup: Runs before each of `asserts`, in the same process.
        preamble: Goes before the program: imports and helpers that the problem promises.
        checker: Python that decides where several outputs are right; run as `checker.py input.txt
            correct_output.txt solution_output.txt` it prints 1 last.
        language: "python", or a word of reward.code.languages; never an import path, for safety.
        time_limit: Seconds for a test that needs more than reward.code.seconds_per_test.
        memory_limit_mb: The same for reward.code.memory_mb.
        boxed_outputs: Every output is a list around the value (APPS).
        integer_keys: Keys of dictionaries among the arguments are numbers, which JSON cannot say.
    """

    inputs: list[Any] = []
    outputs: list[Any] = []
    fn_name: str | None = None
    asserts: list[str] = []
    setup: str = ""
    preamble: str = ""
    checker: str | None = None
    language: str = "python"
    time_limit: float | None = None
    memory_limit_mb: float | None = None
    boxed_outputs: bool = False
    integer_keys: bool = False

    @property
    def kind(self) -> str:
        """Name what the tests look at."""
        return "asserts" if self.asserts else "a function" if self.fn_name else "standard input"

    @property
    def number(self) -> int:
        """Count the tests."""
        return len(self.asserts or self.inputs)


def read_tests(text: str) -> CodeTests:
    """The tests that a reference holds. DataError: it is not of this contract, or has no tests."""
    if len(text) > MAX_CHARS:
        raise DataError(f"its tests have {len(text):,} characters, more than {MAX_CHARS:,}")
    try:
        tests = msgspec.convert(json.loads(text), CodeTests)  # json keeps integers of any size
    except msgspec.ValidationError as error:
        raise DataError(f"its tests break the contract: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"its tests are not JSON ({type(error).__name__})") from error
    check_tests(tests)
    return tests


def check_tests(tests: CodeTests) -> None:
    """DataError: there are no tests, or they cannot be run."""
    if not tests.language.replace("+", "p").replace("#", "s").isidentifier():
        raise DataError(f"its tests name the language {tests.language[:40]!r}, which is not a valid word")
    if tests.asserts and (tests.inputs or tests.outputs):
        raise DataError("its tests have both asserts and inputs; use one of the two")
    if len(tests.inputs) != len(tests.outputs):
        raise DataError(f"its tests have {len(tests.inputs)} inputs and {len(tests.outputs)} outputs")
    if not tests.number:
        raise DataError("it has no tests, so no program can be correct")
    if tests.number > MAX_TESTS:
        raise DataError(f"it has {tests.number} tests, more than {MAX_TESTS}")
    for limit in (tests.time_limit, tests.memory_limit_mb):
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise DataError(f"its tests have a limit of {limit}; use a number above 0")
    _check_kind(tests)


def _check_kind(tests: CodeTests) -> None:
    if tests.asserts:
        if not all(line.strip() for line in tests.asserts):
            raise DataError("one of its asserts is empty")
        return
    if tests.fn_name is not None:
        if not tests.fn_name.isidentifier():
            raise DataError("fn_name is not the name of a function")
        if not all(isinstance(arguments, list) for arguments in tests.inputs):
            raise DataError("it has an fn_name, but an input is not a list of arguments")
    elif not all(isinstance(text, str) for text in (*tests.inputs, *tests.outputs)):
        raise DataError("it has no fn_name, but an input or output is not a text")
    elif tests.checker is not None:
        try:
            ast.parse(tests.checker)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise DataError("its checker is not Python") from error
    elif not any(text.strip() for text in tests.outputs):
        raise DataError("all its expected outputs are empty, so that a program that does nothing would pass")


def write_tests(tests: CodeTests) -> str:
    """The inverse of read_tests. DataError as there."""
    check_tests(tests)
    try:
        text = json.dumps(msgspec.to_builtins(tests), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise DataError(f"its tests cannot be written as JSON ({type(error).__name__})") from error
    if len(text) > MAX_CHARS:
        raise DataError(f"its tests have {len(text):,} characters, more than {MAX_CHARS:,}")
    return text
