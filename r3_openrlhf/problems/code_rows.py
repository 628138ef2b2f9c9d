"""Rows of public sets of programming problems -> the one contract of task `code`
(config/code_tests.py).

A table of shapes, each with one function. Rows of a stranger are read as data: nothing of them runs
here, and of a pickle only a text is read."""

import ast
import base64
import io
import json
import pickle
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from r3_openrlhf.config.code_tests import (
    DEFINITIONS,
    CodeTests,
    first_call,
    read_tests,
    split_names,
    statements,
    with_number_keys,
    write_tests,
)
from r3_openrlhf.method.errors import DataError, quoted
from r3_openrlhf.problems.columns import A_TEXT, chosen_column, root_of, turns_of, value_at
from r3_openrlhf.problems.references import NoAnswer
from r3_openrlhf.problems.table import plain_row

MAX_UNPACKED = 256 * 2**20
_ASKS_FOR_A_FUNCTION = re.compile(
    r"you (?:don'?t|do not) (?:need|have) to (?:read|take|print)|complete the function|your task is to complete",
    re.I,
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns in which one family of data sets keeps its tests."""

    name: str  # as the first page says it
    tests: str  # the column with the tests
    problem: tuple[str, ...]  # columns of which the first that is there holds the problem
    read: Callable[[dict[str, Any]], CodeTests] | None = (
        None  # None: the column has one of the forms of any_tests
    )
    also: tuple[str, ...] = ()  # further columns without which it is another shape


def shape_of(columns: Sequence[str], *, path: str, answer_key: str | None) -> Shape:
    """Return the shape of a file. DataError: none that is known, and the column is not named either."""
    known = known_shape(columns)
    if answer_key is not None:
        chosen_column(columns, key=answer_key, groups=(), option="answer_key", path=path)
        named = (
            shape
            for shape in SHAPES
            if shape.tests == answer_key and {*shape.also} <= {*columns}
        )
        known = next(named, Shape("tests in a column", answer_key, _PROBLEM))
    if known is None:
        raise DataError(
            f"data.path {path} has no column that is known to hold the tests of programs; its columns are {', '.join(columns)}; "
            "name it with data.answer_key=COLUMN (docs/rewards.md says what it may hold)"
        )
    return known


def known_shape(columns: Sequence[str]) -> Shape | None:
    """Return the first shape whose columns are there."""
    return next(
        (one for one in SHAPES if {root_of(one.tests, columns), *one.also} <= {*columns}), None
    )


def problem_column(
    shape: Shape, columns: Sequence[str], *, path: str, problem_key: str | None
) -> str:
    """Return the column of the problem. DataError: there is none, or not the one that was named."""
    groups = [(name,) for name in shape.problem]
    return chosen_column(
        columns, key=problem_key, groups=groups, option="problem_key", path=path
    )


def tests_and_problem(
    shape: Shape, row: dict[str, Any], problem_key: str
) -> tuple[str, Any, str]:
    """(the tests as one JSON text, the cell of the problem with what the tests need to know, their
    form).

    NoAnswer: why the row cannot be trained on."""
    row = plain_row(row)
    try:
        for column, (allowed, sentence) in _SAYS_OF_ROWS.items():
            if row.get(column) is not None and row[column] not in allowed:
                raise DataError(sentence)
        tests = shape.read(row) if shape.read else any_tests(value_at(row, shape.tests), row)
        text = write_tests(tests)
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise DataError("its tests hold half of a surrogate pair, which is no Unicode text")
        cell = value_at(row, problem_key)
        before, turn, form = turns_of(cell, key=problem_key)
        words = "\n".join([*(earlier["content"] for earlier in before), turn])
        if tests.kind == "standard input" and _ASKS_FOR_A_FUNCTION.search(words):
            raise DataError("it asks for a function, and its tests are for a program")
        if more := _needed(tests, row, words):
            cell = (
                f"{turn}{more}"
                if form == A_TEXT
                else [*before, {"role": "user", "content": f"{turn}{more}"}]
            )
    except DataError as error:
        raise NoAnswer(str(error)) from error
    except (
        AttributeError,
        TypeError,
        ValueError,
        LookupError,
        RecursionError,
    ) as error:  # another form inside
        raise NoAnswer(
            f"its tests are of no form that is known ({type(error).__name__})"
        ) from error
    return text, cell, f"{shape.name}, {tests.kind}"


def _needed(tests: CodeTests, row: dict[str, Any], words: str) -> str:
    """Return what the problem must say for its tests: names and first lines, if any.

    DataError: the tests call a function that neither they nor the problem names."""
    if tests.kind == "standard input":
        return "".join(
            f"\n\n{key.replace('_', ' ').capitalize()}: {text.strip()}"
            for key in ("input_format", "output_format")
            if (text := str(row.get(key) or "")).strip() and text.strip() not in words
        )
    info = row.get("test_info")
    info = info[0] if isinstance(info, list) and info else info
    declared = info.get("function_declaration") if isinstance(info, dict) else ""
    starter = str(row.get("starter_code") or declared or "").strip()
    function, classes = _names_to_say(
        tests, " ".join([words, starter, str(row.get("entry_point"))])
    )
    if starter and starter.rstrip(":") not in words:
        function = f"\n\nStart from this code:\n```python\n{starter}\n```"
    return f"{function}{classes}"


def _names_to_say(tests: CodeTests, words: str) -> tuple[str, str]:
    """Sentences about the function that the tests call, and about classes that they use."""
    if tests.fn_name is None:
        called, (asked, _) = first_call(tests), split_names(tests)
    else:
        called, asked = (tests.fn_name, len(tests.inputs[0])), [tests.fn_name]
    unsaid = [name for name in asked if not re.search(rf"\b{re.escape(name)}\b", words)]
    classes = [name for name in unsaid if name[:1].isupper() and called and name != called[0]]
    if others := [
        name for name in unsaid if name not in classes and called and name != called[0]
    ]:
        raise DataError(
            f"its tests use {others[0]}, which neither they nor the problem defines"
        )
    function = ""
    if called and called[0] in unsaid:
        plural = "" if called[1] == 1 else "s"
        function = (
            f"\n\nThe function is called `{called[0]}` and takes {called[1]} argument{plural}."
        )
    return function, "".join(f"\n\nThe tests also use the class `{name}`." for name in classes)


# Values in cells


def parsed(value: Any, *, depth: int = 3) -> Any:
    """Parse a JSON text, and one in it; return others as is. DataError: bad JSON or packing."""
    while isinstance(value, str) and depth:
        text = value.strip()
        if not text:
            return None
        if text[:1] not in ("{", "[", '"'):
            value = unpacked(text)
        else:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DataError("its tests are not JSON") from error
        depth -= 1
    return value


class _OnlyText(pickle.Unpickler):
    """It makes no object: the first class or function that a pickle names is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise DataError(f"its packed tests hold {module}.{name}, and only one text is read")


def unpacked(text: str) -> str:
    """LiveCodeBench's base64(zlib(pickle(JSON text))). DataError: it is nothing of the kind."""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(base64.b64decode(text, validate=True), MAX_UNPACKED)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise DataError(
                f"its packed tests are cut off, or have more than {MAX_UNPACKED // 2**20} MB"
            )
        content = _OnlyText(io.BytesIO(data)).load()
    except (
        zlib.error,
        pickle.UnpicklingError,
        ValueError,
        LookupError,
        EOFError,
        TypeError,
        AttributeError,
    ) as error:
        raise DataError(
            f"its tests are neither JSON nor packed JSON ({type(error).__name__})"
        ) from error
    if not isinstance(content, str):
        raise DataError("its packed tests hold no text")
    return content


def limit_of(value: Any, *, unit: float = 1.0) -> float | None:
    """Read a limit as a number: 2, "2.0 seconds", {"seconds": 2, "nanos": 0}. None: it says none."""
    if isinstance(value, dict):
        value = (value.get("seconds") or 0) + (value.get("nanos") or 0) / 1e9
    if isinstance(value, str):
        found = _NUMBER.search(value)
        value = (
            float(found[0]) * (1e-3 if re.search(r"\bms\b|milli", value, re.I) else 1.0)
            if found
            else None
        )
    return float(value) * unit if isinstance(value, (int, float)) and 0 < value < 1e15 else None


def as_text(value: Any) -> str:
    """Return standard input or output as text: it is one, or a list of its lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, (str, int, float)) for line in value):
        return "\n".join(map(str, value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise DataError("an input or output is neither a text nor a list of lines")


def _lines_of_json(text: str) -> list[Any]:
    """LiveCodeBench's functional input: a line for each argument."""
    try:
        return [json.loads(line) for line in text.strip().split("\n")]
    except (ValueError, RecursionError) as error:
        raise DataError("an input for a function has a line that is no JSON") from error


def _json_or_text(value: Any) -> Any:
    """Read an expected value: of a text what it says as JSON, else the text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _function_tests(
    name: str, inputs: list[Any], outputs: list[Any], *, boxed: bool, **more: Any
) -> CodeTests:
    """Make tests of a function: argument lists, or texts with a line each. boxed: outputs in lists."""
    arguments = [_lines_of_json(one) if isinstance(one, str) else one for one in inputs]
    if not all(isinstance(one, list) for one in arguments):
        raise DataError("an input for a function is no list of arguments")
    return CodeTests(
        inputs=arguments,
        outputs=outputs,
        fn_name=name.rpartition(".")[2].strip(),
        # APPS keeps values in lists of one, and says so nowhere
        boxed_outputs=boxed
        and all(isinstance(value, list) and len(value) == 1 for value in outputs),
        integer_keys=any(
            with_number_keys(value) != value for values in arguments for value in values
        ),
        **more,
    )


def in_and_out(tests: dict[str, Any], *, name: str | None = None, **more: Any) -> CodeTests:
    """Read {inputs, outputs[, fn_name]}, APPS's form, which TACO, PRIME and verl share."""
    name = tests.get("fn_name") or name
    inputs, outputs = tests.get("inputs") or [], tests.get("outputs") or []
    if (
        not isinstance(inputs, list)
        or not isinstance(outputs, list)
        or len(inputs) != len(outputs)
    ):
        raise DataError("its inputs and outputs are not two lists of one length")
    if name:
        values = [
            _json_or_text(out) if isinstance(one, str) else out
            for one, out in zip(inputs, outputs, strict=True)
        ]
        return _function_tests(str(name), inputs, values, boxed=bool(values), **more)
    return CodeTests(inputs=[*map(as_text, inputs)], outputs=[*map(as_text, outputs)], **more)


_IS_FUNCTION = {"functional", "function_call", "function"}
_IS_STDIN = {"stdin", "stdin_stdout", "standard_input", "stdio", None}


def listed(cases: list[Any], *, name: str | None = None, **more: Any) -> CodeTests:
    """[{input, output[, testtype, fn_name, metadata.func_name]}], LiveCodeBench's form."""
    if not all(
        isinstance(case, dict) and "input" in case and "output" in case for case in cases
    ):
        raise DataError("one of its tests has no input and output")
    kinds = {case.get("testtype") or case.get("type") for case in cases}
    if unknown := kinds - _IS_FUNCTION - _IS_STDIN:
        raise DataError(
            f"its tests are of the kind {quoted(str(min(map(str, unknown))))}, which is not known"
        )
    names = {case.get("fn_name") or _metadata(case).get("func_name") for case in cases} - {
        None,
        "",
    }
    name = next(iter(names), None) or name
    if kinds <= _IS_STDIN and not names:
        return in_and_out(
            {
                "inputs": [one["input"] for one in cases],
                "outputs": [one["output"] for one in cases],
            },
            **more,
        )
    if not kinds & _IS_FUNCTION and kinds != {None}:
        raise DataError("its tests name a function, and say that they are for standard input")
    if not name or len(names) > 1 or (kinds & _IS_STDIN and kinds != {None}):
        raise DataError("its tests are for a function, and do not say which one")
    inputs = [
        _json_or_text(one["input"]) if one.get("type") == "function_call" else one["input"]
        for one in cases
    ]
    outputs = [_json_or_text(one["output"]) for one in cases]
    return _function_tests(str(name), inputs, outputs, boxed=kinds == {"function_call"}, **more)


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    found = row.get("metadata")
    if isinstance(found, str) and found.strip().startswith("{"):
        found = parsed(found)
    return found if isinstance(found, dict) else {}


def _limits(row: dict[str, Any]) -> dict[str, Any]:
    memory = limit_of(row.get("memory_limit")) or limit_of(
        row.get("memory_limit_bytes"), unit=2.0**-20
    )
    return {"time_limit": limit_of(row.get("time_limit")), "memory_limit_mb": memory}


def any_tests(value: Any, row: dict[str, Any]) -> CodeTests:
    """Read tests in a cell: the contract, or of APPS, LiveCodeBench, PRIME, rllm and SYNTHETIC."""
    found = parsed(value)
    if not found:
        raise DataError("it has no tests")
    name = _metadata(row).get("func_name") or row.get("fn_name")
    if isinstance(found, dict) and "test_cases" in found:
        language = str(found.get("language") or "python").lower()
        tests = any_tests(found["test_cases"], row | {"fn_name": found.get("fn_name")})
        tests.language = "python" if language == "python3" else language
        return tests
    if isinstance(found, dict) and "assert_case" in found:  # verl with a sandbox
        return CodeTests(asserts=[*map(str, parsed(found["assert_case"]))])
    if isinstance(found, dict) and {"asserts", "checker", "setup", "preamble"} & found.keys():
        return read_tests(json.dumps(found))
    if isinstance(found, dict) and "inputs" in found:
        own = ("language", "time_limit", "memory_limit_mb")
        limits = _limits(row) | {key: found[key] for key in own if found.get(key) is not None}
        return in_and_out(found, name=name, **limits)
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return CodeTests(asserts=found)
    if isinstance(found, list):
        return listed(found, name=name, **_limits(row))
    raise DataError("its tests are of no form that is known")


# One function for each shape


def code_contests(row: dict[str, Any]) -> CodeTests:
    """CodeContests: three groups of tests, {input: [..], output: [..]}."""
    groups = [
        parsed(row.get(name)) or {}
        for name in ("public_tests", "private_tests", "generated_tests")
    ]
    tests = {
        f"{key}s": [text for group in groups for text in group.get(key) or []]
        for key in ("input", "output")
    }
    return in_and_out(tests, **_limits(row))


def livecodebench(row: dict[str, Any]) -> CodeTests:
    """LiveCodeBench: public tests as JSON, private ones packed."""
    cases = [
        *(parsed(row["public_test_cases"]) or []),
        *(parsed(row.get("private_test_cases") or []) or []),
    ]
    return listed(cases, name=_metadata(row).get("func_name"))


def mbpp(row: dict[str, Any]) -> CodeTests:
    """MBPP, its sanitized version and MBPP+: asserts, with what they import."""
    lines = [*(parsed(row["test_list"]) or []), *(parsed(row.get("challenge_test_list")) or [])]
    setup = [*(row.get("test_imports") or []), row.get("test_setup_code") or ""]
    return CodeTests(
        asserts=[*map(str, lines), *filter(str.strip, [str(row.get("test") or "")])],
        setup="\n".join(setup).strip(),
    )


def python_tests(row: dict[str, Any]) -> CodeTests:
    """Read a source of tests: HumanEval's, EvalPlus's and LeetCodeDataset's define `check(candidate)`,
    KodCode's are a module of pytest, whose fixtures and classes are not known here."""
    source = str(row.get("test") or row.get("test_code") or "")
    if (body := statements(source)) is None:
        raise DataError("its tests are no Python")
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    if row.get("entry_point") and any(node.name == "check" for node in functions):
        return _checks(str(row["entry_point"]), source, str(row.get("prompt") or ""))
    tests = [node for node in functions if node.name.startswith("test")]
    for test in tests:
        _check_marks(test)
    of_classes = [
        call for node in body if isinstance(node, ast.ClassDef) for call in _of_class(node)
    ]
    setup = (
        ast.unparse(node)
        for node in body
        if not ast.unparse(node).startswith("if __name__ == '__main__':")
    )
    return CodeTests(
        asserts=[*(f"{test.name}()" for test in tests), *of_classes], setup="\n".join(setup)
    )


def _of_class(node: ast.ClassDef) -> list[str]:
    """Return calls of the tests in a class; none: it is no class of tests. DataError: they need more than a call."""
    is_case = [ast.unparse(base).rpartition(".")[2] for base in node.bases] == ["TestCase"]
    if not is_case and (node.bases or not node.name.startswith("Test")):
        return []
    methods = [
        part for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    tests = [method for method in methods if method.name.startswith("test")]
    others = [
        method
        for method in methods
        if method.decorator_list or method.name.startswith(("setup_", "teardown_"))
    ]
    others += [
        test
        for test in tests
        if len(test.args.args) > 1 or isinstance(test, ast.AsyncFunctionDef)
    ]
    if others or node.decorator_list:
        raise DataError("its tests are in a class with marks, fixtures or coroutines")
    return [
        f"{node.name}({test.name!r}).debug()" if is_case else f"{node.name}().{test.name}()"
        for test in tests
    ]


def _checks(name: str, source: str, prompt: str) -> CodeTests:
    """Make the tests of `check`. Code of the prompt before the function is part of both sides."""
    before, declared, _ = prompt.rpartition(f"def {name}(")
    # none in words, whose reader writes the whole program
    body = statements(before if declared else prompt) or []
    is_code = declared or all(isinstance(node, DEFINITIONS) for node in body)
    given = "\n".join(map(ast.unparse, body)) if is_code else ""
    return CodeTests(
        asserts=[f"check({name})"], setup=f"{given}\n\n{source}".strip(), preamble=given
    )


def _check_marks(test: ast.FunctionDef) -> None:
    """DataError: it has other marks than `parametrize`, or arguments that these do not give."""
    given: set[str] = set()
    for mark in test.decorator_list:
        if ast.unparse(mark).partition("(")[0] != "pytest.mark.parametrize":
            raise DataError(f"its tests have the mark {quoted(ast.unparse(mark)[:40])}")
        names: Any = ast.literal_eval(mark.args[0])  # type: ignore[attr-defined]
        given |= {*re.split(r"[, ]+", names)} if isinstance(names, str) else {*names}
    if {argument.arg for argument in test.args.args} - given:
        raise DataError("its tests have fixtures")


def codeforces(row: dict[str, Any]) -> CodeTests:
    """open-r1/codeforces: official tests, and a checker where several outputs are right."""
    return listed(
        parsed(row["official_tests"]) or [],
        checker=row.get("generated_checker") or None,
        **_limits(row),
    )


# column -> what it may say, and what it says otherwise of a row that cannot be run
_SAYS_OF_ROWS: dict[str, tuple[tuple[Any, ...], str]] = {
    "input_file": (("",), "its programs read or write a file, not standard input and output"),
    "output_file": (("",), "its programs read or write a file, not standard input and output"),
    "input_mode": (("stdio",), "its programs read a file, not standard input"),
    "interaction_format": (("",), "its programs talk to a judge"),
    "ability": (("code", "coding"), "its ability is not code"),
}
_PROBLEM = (
    "problem",
    "question",
    "prompt",
    "question_content",
    "description",
    "text",
    "instruction",
    "messages",
)
SHAPES: tuple[Shape, ...] = (
    Shape("HumanEval", "test", ("query", "prompt"), python_tests, also=("entry_point",)),
    Shape("APPS or TACO", "input_output", _PROBLEM),
    Shape("LiveCodeBench", "public_test_cases", _PROBLEM, livecodebench),
    Shape("CodeContests", "public_tests", ("description", *_PROBLEM), code_contests),
    Shape("codeforces", "official_tests", ("prompt", "description", *_PROBLEM), codeforces),
    Shape("MBPP", "test_list", ("prompt", "text", *_PROBLEM), mbpp),
    Shape("KodCode", "test", ("question", *_PROBLEM), python_tests),
    Shape("KodCode", "test_code", ("question", *_PROBLEM), python_tests),
    Shape("DeepCoder", "tests", _PROBLEM),
    Shape("SYNTHETIC", "verification_info", ("prompt", *_PROBLEM)),
    Shape("PRIME or verl", "reward_model.ground_truth", ("prompt", *_PROBLEM)),
    Shape("rllm", "ground_truth", ("question", *_PROBLEM)),
)
PROBLEM_COLUMNS = tuple(dict.fromkeys(name for shape in SHAPES for name in shape.problem))


def columns_of(keys: Iterable[str | None]) -> set[str]:
    """Every column that some shape reads, and those that the user named."""
    of_shapes = {root_of(shape.tests) for shape in SHAPES} | {
        name for shape in SHAPES for name in shape.also
    }
    beside = """starter_code metadata time_limit memory_limit memory_limit_bytes private_tests generated_tests
        private_test_cases challenge_test_list test_setup_code test_imports test_info generated_checker input_format
        output_format fn_name""".split()
    named = {name for key in keys if key for name in (key, root_of(key))}
    return of_shapes | {*PROBLEM_COLUMNS, *_SAYS_OF_ROWS, *beside} | named
