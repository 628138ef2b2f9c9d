"""The contract of task `code`: one JSON text with the tests of a problem, as rows, `/grade`, files
and functions hold it.

{"inputs": ["1 2\\n"], "outputs": ["3"]}                                  programs: standard input and output
{"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}                    a function, or a method of class Solution
{"asserts": ["assert add(1, 2) == 3"], "setup": "import math"}            lines of Python"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import math
import re
import symtable
import sys
from operator import attrgetter
from typing import Any

import msgspec

from r3_openrlhf.method.errors import DataError

MAX_CHARS = 4_000_000  # of one problem's tests, as a reward server takes them
MAX_TESTS = 1000
# What programs and tests import besides the standard library. Not all that is installed: some packages hold the answers of benchmarks
PACKAGES = tuple(
    "numpy scipy pandas sympy mpmath networkx sortedcontainers dateutil pytz six regex tzdata".split()
)
# rewards/code/pytest_stand_in.txt, which tests import
OF_PYTEST = frozenset({"raises", "approx", "mark", "param"})


class CodeTests(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The tests of one problem."""

    # equally many; with fn_name an input is arguments, an output any JSON value; without it both are texts
    inputs: list[Any] = []
    outputs: list[Any] = []
    fn_name: str | None = None  # the function that is called
    # instead of both: sources, each of which raises nothing where the test holds
    asserts: list[str] = []
    setup: str = ""  # runs before each of asserts, in the same process
    preamble: str = ""  # goes before the program: imports and helpers that the problem promises
    # Python that decides where several outputs are right; run as `checker.py input.txt correct_output.txt
    # solution_output.txt` it prints 1 last
    checker: str | None = None
    language: str = (
        "python"  # or a word of reward.code.languages; never an import path, for safety
    )
    time_limit: float | None = (
        None  # seconds for a test that needs more than reward.code.seconds_per_test
    )
    memory_limit_mb: float | None = None  # the same for reward.code.memory_mb
    boxed_outputs: bool = False  # every output is a list around the value (APPS)
    integer_keys: bool = (
        False  # keys of dictionaries among the arguments are numbers, which JSON cannot say
    )

    @property
    def kind(self) -> str:
        """Name what the tests look at."""
        return "asserts" if self.asserts else "a function" if self.fn_name else "standard input"

    @property
    def number(self) -> int:
        """Count the tests."""
        return len(self.asserts or self.inputs)


def read_tests(text: str) -> CodeTests:
    """Read the tests that a reference holds. DataError: it is not of this contract, or has no tests."""
    if len(text) > MAX_CHARS:
        raise DataError(f"its tests have {len(text):,} characters, more than {MAX_CHARS:,}")
    try:
        tests = msgspec.convert(json.loads(text), CodeTests)  # json keeps integers of any size
    except msgspec.ValidationError as error:
        raise DataError(f"its tests break the contract: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"its tests are not JSON ({type(error).__name__})") from error
    _check(tests)
    return tests


def _check(tests: CodeTests) -> None:
    """DataError: there are no tests, or they cannot be run."""
    texts = [*tests.inputs, *tests.outputs]
    limits = [limit for limit in (tests.time_limit, tests.memory_limit_mb) if limit is not None]
    is_program, number = tests.kind == "standard input", tests.number
    faults = {
        f"its tests name the language {tests.language[:40]!r}, which is no valid word": not re.fullmatch(
            r"[^\W\d][\w+#]*", tests.language
        ),
        "its tests have both asserts and inputs; use one of the two": tests.asserts and texts,
        f"its tests have {len(tests.inputs)} inputs and {len(tests.outputs)} outputs": len(
            tests.inputs
        )
        != len(tests.outputs),
        "it has no tests, so no program can be correct": not number,
        f"it has {number} tests, more than {MAX_TESTS}": number > MAX_TESTS,
        f"its tests have limits of {limits}; use numbers above 0": not all(
            math.isfinite(limit) and limit > 0 for limit in limits
        ),
        "one of its asserts is empty": not all(line.strip() for line in tests.asserts),
        "fn_name is not the name of a function": not (tests.fn_name or "f").isidentifier(),
        "it has an fn_name, but an input is not a list of arguments": tests.fn_name
        and not all(isinstance(arguments, list) for arguments in tests.inputs),
        "it has no fn_name, but an input or output is not a text": is_program
        and not all(isinstance(text, str) for text in texts),
        "its checker is not Python": statements(tests.checker or "") is None,
        "all its expected outputs are empty, so that a program that does nothing would pass": is_program
        and not tests.checker
        and not any(str(text).strip() for text in tests.outputs),
    }
    if fault := next((sentence for sentence, holds in faults.items() if holds), None):
        raise DataError(fault)
    if tests.asserts:
        try:
            setup, sources = shared_lines(tests)
            nodes: list[Any] = [*ast.walk(ast.parse("\n".join([setup, *sources])))]
            imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
            modules = [
                getattr(node, "module", None) or alias.name
                for node in imports
                for alias in node.names
            ]
            roots = {module.partition(".")[0] for module in modules} - {"solution", "pytest"}
            known = (
                roots if tests.language != "python" else {*PACKAGES, *sys.stdlib_module_names}
            )
            lacking = sorted(
                name
                for name in roots
                if name not in known or importlib.util.find_spec(name) is None
            )
            lacking += sorted(
                f"pytest.{name}" for name in _names_of("pytest", nodes) if name not in OF_PYTEST
            )
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise DataError(f"its tests are no Python ({type(error).__name__})") from error
        if lacking:
            raise DataError(f"its tests import {lacking[0]}, which programs cannot import here")
        if not sources:
            raise DataError("its asserts only define something, so that any program would pass")


def write_tests(tests: CodeTests) -> str:
    """Write tests as read_tests reads them. DataError as there."""
    try:
        text = json.dumps(msgspec.to_builtins(tests), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"its tests cannot be written as JSON ({type(error).__name__})"
        ) from error
    read_tests(text)
    return text


def with_number_keys(value: Any) -> Any:
    """Restore the numbers as keys that JSON made texts of; any other value stays as it is."""
    if isinstance(value, dict) and all(re.fullmatch(r"-?[0-9]{1,18}", key) for key in value):
        return {int(key): inner for key, inner in value.items()}
    return value


# Names of tests that are code

# Modules whose names tests use without an import, and two with their usual names
USUAL = "collections itertools functools heapq bisect math typing decimal fractions datetime pathlib io".split()
_OTHERS = {
    "np": "import numpy as np",
    "pd": "import pandas as pd",
    "numpy": "import numpy",
    "pandas": "import pandas",
}
_OTHERS["pytest"] = "import pytest"
_OF_MODULES = {
    "copy": "deepcopy",
    "dataclasses": "asdict astuple dataclass",
    "unittest.mock": "patch Mock MagicMock",
}
_OF_MODULES |= {
    "operator": "itemgetter attrgetter methodcaller",
    "contextlib": "redirect_stdout suppress",
}
_OTHERS |= {
    name: f"from {module} import {name}"
    for module, names in _OF_MODULES.items()
    for name in names.split()
}
DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
)


def statements(source: str) -> list[ast.stmt] | None:
    """Parse a source; None: it is no Python."""
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def first_call(tests: CodeTests) -> tuple[str, int] | None:
    """(name, number of arguments) of the first call of the program in tests that are code: of a
    function, or of a class where there is none."""
    source = "\n".join([tests.setup, *tests.asserts])
    names, _ = split_names(tests)
    calls: list[Any] = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
    ]
    of_program = [
        call for call in calls if isinstance(call.func, ast.Name) and call.func.id in names
    ]
    of_program.sort(key=lambda call: call.func.id[:1].isupper())
    return next(
        ((call.func.id, len(call.args) + len(call.keywords)) for call in of_program), None
    )


def split_names(tests: CodeTests) -> tuple[list[str], list[str]]:
    """Find what tests that are code use and do not define: (names of the program, imports that lack).

    A name of the standard library is the program's only where the tests have no other one for it.
    Raises SyntaxError, ValueError or RecursionError: they are no Python."""
    source = "\n".join([tests.setup, *tests.asserts])
    nodes: list[Any] = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
    nodes.sort(key=attrgetter("lineno", "col_offset"))
    free = free_names(source)
    names = dict.fromkeys(
        node.id for node in nodes if isinstance(node, ast.Name) and node.id in free
    )
    modules = {
        node.value.id
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    imports = {
        name: line
        for name in names
        if (line := standard_import(name, is_module=name in modules))
    }
    asked = [name for name in names if name not in imports] + _names_of("solution", nodes)
    if not asked:
        candidates = {name for name, line in imports.items() if line.startswith("from ")}
        asked = (
            _innermost(nodes, candidates or free_names(source, of_builtins=True))
            or sorted(candidates)[:1]
        )
    return list(dict.fromkeys(asked)), [
        line for name, line in imports.items() if name not in asked
    ]


def _innermost(nodes: list[Any], names: set[str]) -> list[str]:
    """Return the first of the names that is called with no call of another one inside, as a list."""

    def called(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in names
        )

    calls: list[Any] = [node for node in nodes if called(node)]
    return [node.func.id for node in calls if sum(map(called, ast.walk(node))) == 1][:1]


def _names_of(module: str, nodes: list[Any]) -> list[str]:
    """Names that are asked for as those of a module, in its imports and as its attributes."""
    aliases = [
        (getattr(node, "module", ""), alias)
        for node in nodes
        for alias in getattr(node, "names", ())
        if isinstance(alias, ast.alias)
    ]
    called = {alias.asname or alias.name for _, alias in aliases if alias.name == module}
    names = [alias.name for source, alias in aliases if source == module and alias.name != "*"]
    return names + [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in called
    ]


def free_names(source: str, *, of_builtins: bool = False) -> set[str]:
    """Names that the source reads and nothing in it defines; of_builtins: built-in ones too."""
    top = symtable.symtable(source, "tests", "exec")
    defined = {
        symbol.get_name()
        for symbol in top.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    used: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        read = (symbol for symbol in table.get_symbols() if symbol.is_referenced())
        used |= {symbol.get_name() for symbol in read if table is top or symbol.is_global()}
    return used - defined - (set() if of_builtins else set(dir(builtins)) | {"__name__"})


def standard_import(name: str, *, is_module: bool) -> str | None:
    """Return the import that gives a name of the standard library, or np; None: there is none."""
    if name in _OTHERS or is_module and name in sys.stdlib_module_names:
        return _OTHERS.get(name, f"import {name}")
    known = (
        module
        for module in USUAL
        if name[0] != "_" and hasattr(importlib.import_module(module), name)
    )
    return next((f"from {module} import {name}" for module in known), None)


def shared_lines(tests: CodeTests) -> tuple[str, list[str]]:
    """Return (the setup, the tests) of `asserts` in which an entry may use what earlier ones define.

    An entry that only defines something is no test, but part of the setup. Errors as split_names."""
    setup, earlier, sources = tests.setup, "", []
    for source in tests.asserts:
        body = ast.parse(source).body
        definitions = [node for node in body if isinstance(node, DEFINITIONS)]
        if len(definitions) == len(body):
            setup += f"\n{source}"
            continue
        is_needed = free_names(f"{setup}\n{source}") - free_names(f"{setup}\n{earlier}{source}")
        sources.append(f"{earlier}{source}" if is_needed else source)
        earlier += "".join(f"{ast.unparse(node)}\n" for node in definitions)
    return setup, sources
