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
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from r3_openrlhf.method.errors import DataError

MAX_CHARS = 4_000_000  # of one problem's tests, as a reward server takes them
MAX_TESTS = 1000
# What programs and tests import besides the standard library. Not all that is installed: some packages hold the answers of benchmarks
PACKAGES = (
    "numpy",
    "scipy",
    "pandas",
    "sympy",
    "mpmath",
    "networkx",
    "sortedcontainers",
    "dateutil",
    "pytz",
    "six",
    "regex",
    "tzdata",
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
    # or a word of reward.code.languages; never an import path, for safety
    language: str = "python"
    # seconds for a test that needs more than reward.code.seconds_per_test
    time_limit: float | None = None
    memory_limit_mb: float | None = None  # the same for reward.code.memory_mb
    boxed_outputs: bool = False  # every output is a list around the value (APPS)
    # keys of dictionaries among the arguments are numbers, which JSON cannot say
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
    _check_shape(tests)
    _check_types(tests)
    _check_use(tests)
    if tests.asserts:
        _check_asserts(tests)


def _check_shape(tests: CodeTests) -> None:
    """DataError: the language, number or limits of the tests, whatever their kind is."""
    if not re.fullmatch(r"[^\W\d][\w+#]*", tests.language):
        language = tests.language[:40]
        raise DataError(f"its tests name the language {language!r}, which is no valid word")
    if tests.asserts and (tests.inputs or tests.outputs):
        raise DataError("its tests have both asserts and inputs; use one of the two")
    num_inputs, num_outputs = len(tests.inputs), len(tests.outputs)
    if num_inputs != num_outputs:
        raise DataError(f"its tests have {num_inputs} inputs and {num_outputs} outputs")
    if not tests.number:
        raise DataError("it has no tests, so no program can be correct")
    if tests.number > MAX_TESTS:
        raise DataError(f"it has {tests.number} tests, more than {MAX_TESTS}")
    limits = [limit for limit in (tests.time_limit, tests.memory_limit_mb) if limit is not None]
    if not all(math.isfinite(limit) and limit > 0 for limit in limits):
        raise DataError(f"its tests have limits of {limits}; use numbers above 0")


def _check_types(tests: CodeTests) -> None:
    """DataError: an assert, a function's name, an input or an output is not what its kind needs."""
    if not all(source.strip() for source in tests.asserts):
        raise DataError("one of its asserts is empty")
    if tests.fn_name and not tests.fn_name.isidentifier():
        raise DataError("fn_name is not the name of a function")
    if tests.fn_name and not _are_all(list, tests.inputs):
        raise DataError("it has an fn_name, but an input is not a list of arguments")
    is_program = tests.kind == "standard input"
    if is_program and not _are_all(str, [*tests.inputs, *tests.outputs]):
        raise DataError("it has no fn_name, but an input or output is not a text")


def _are_all(kind: type, values: list[Any]) -> bool:
    """Tell whether each value is of this type."""
    return all(isinstance(value, kind) for value in values)


def _check_use(tests: CodeTests) -> None:
    """DataError: no checker can run, or a program that does nothing would pass."""
    if tests.checker and statements(tests.checker) is None:
        raise DataError("its checker is not Python")
    if tests.kind != "standard input" or tests.checker:
        return
    if not any(str(text).strip() for text in tests.outputs):
        raise DataError(
            "all its expected outputs are empty, so that a program that does nothing would pass"
        )


def _check_asserts(tests: CodeTests) -> None:
    """DataError: tests that are code are no Python, import what they cannot, or test nothing."""
    try:
        setup, sources = shared_lines(tests)
        nodes = list(ast.walk(ast.parse("\n".join([setup, *sources]))))
        missing = _missing_modules(nodes, tests.language)
        missing += sorted(
            f"pytest.{name}" for name in _names_of("pytest", nodes) if name not in OF_PYTEST
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"its tests are no Python ({type(error).__name__})") from error
    if missing:
        raise DataError(f"its tests import {missing[0]}, which programs cannot import here")
    if not sources:
        raise DataError("its asserts only define something, so that any program would pass")


def _missing_modules(nodes: list[ast.AST], language: str) -> list[str]:
    """List the imported packages that programs cannot import, sorted.

    Python's are the standard library and PACKAGES, and must be installed; those of another word of
    reward.code.languages must be installed."""
    roots: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            # `from . import name` names no module
            modules = [node.module or alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        roots.update(module.partition(".")[0] for module in modules)
    roots -= {"solution", "pytest"}
    if language == "python":
        known = {*PACKAGES, *sys.stdlib_module_names}
    else:
        known = roots
    return sorted(
        root for root in roots if root not in known or importlib.util.find_spec(root) is None
    )


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


def with_number_keys(value: object) -> object:
    """Restore the numbers as keys that JSON made texts of; any other value stays as it is."""
    if isinstance(value, dict) and all(re.fullmatch(r"-?[0-9]{1,18}", key) for key in value):
        return {int(key): inner for key, inner in value.items()}
    return value


# Names of tests that are code

# Modules whose names tests use without an import, and two with their usual names
USUAL = [
    "collections",
    "itertools",
    "functools",
    "heapq",
    "bisect",
    "math",
    "typing",
    "decimal",
    "fractions",
    "datetime",
    "pathlib",
    "io",
]
_OF_MODULES = {
    "copy": ["deepcopy"],
    "dataclasses": ["asdict", "astuple", "dataclass"],
    "unittest.mock": ["patch", "Mock", "MagicMock"],
    "operator": ["itemgetter", "attrgetter", "methodcaller"],
    "contextlib": ["redirect_stdout", "suppress"],
}
_OTHERS = {
    "np": "import numpy as np",
    "pd": "import pandas as pd",
    "numpy": "import numpy",
    "pandas": "import pandas",
    "pytest": "import pytest",
}
for _module, _names in _OF_MODULES.items():
    _OTHERS |= {_name: f"from {_module} import {_name}" for _name in _names}
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
    """Return (name, number of arguments) of the first call of the program in tests that are code: of a
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
    used = [node.id for node in nodes if isinstance(node, ast.Name) and node.id in free]
    names = list(dict.fromkeys(used))
    imports = _standard_imports(names, nodes)
    of_program = [name for name in names if name not in imports]
    of_program += _names_of("solution", nodes)
    if not of_program:
        of_program = _tested_name(source, nodes, imports)
    lacking = [line for name, line in imports.items() if name not in of_program]
    return list(dict.fromkeys(of_program)), lacking


def _standard_imports(names: list[str], nodes: list[Any]) -> dict[str, str]:
    """Map the names of the standard library among these to the line that imports them."""
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            modules.add(node.value.id)
    imports = {}
    for name in names:
        line = standard_import(name, is_module=name in modules)
        if line:
            imports[name] = line
    return imports


def _tested_name(source: str, nodes: list[Any], imports: dict[str, str]) -> list[str]:
    """Find the program's name where it is one of the standard library, or built in; [] of none."""
    candidates = {name for name, line in imports.items() if line.startswith("from ")}
    names = candidates or free_names(source, of_builtins=True)
    return _innermost(nodes, names) or sorted(candidates)[:1]


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


def _names_of(module: str, nodes: Sequence[ast.AST]) -> list[str]:
    """Return the names that are imported from a module or read as its attributes."""
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
