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
_MILLISECONDS = re.compile(r"\bms\b|milli", re.I)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns in which one family of data sets keeps its tests."""

    name: str  # as the first page says it
    tests: str  # the column with the tests
    problem: tuple[str, ...]  # columns of which the first that is there holds the problem
    # None: the column has one of the forms of any_tests
    read: Callable[[dict[str, Any]], CodeTests] | None = None
    also: tuple[str, ...] = ()  # further columns without which it is another shape


def shape_of(columns: Sequence[str], *, path: str, answer_key: str | None) -> Shape:
    """Return the shape of a file. DataError: none that is known, and the column is not named either."""
    if answer_key is not None:
        chosen_column(columns, key=answer_key, groups=(), option="answer_key", path=path)
        return _shape_with_tests_in(answer_key, columns)
    shape = known_shape(columns)
    if shape is None:
        raise DataError(
            f"data.path {path} has no column that is known to hold the tests of programs; its columns are {', '.join(columns)}; "
            "name it with data.answer_key=COLUMN (docs/rewards.md says what it may hold)"
        )
    return shape


def _shape_with_tests_in(column: str, columns: Sequence[str]) -> Shape:
    """Return the first known shape with its tests in this column, else one that reads any form."""
    for shape in SHAPES:
        if shape.tests == column and set(shape.also) <= set(columns):
            return shape
    return Shape("tests in a column", column, _PROBLEM)


def known_shape(columns: Sequence[str]) -> Shape | None:
    """Return the first shape whose columns are there."""
    for shape in SHAPES:
        if {root_of(shape.tests, columns), *shape.also} <= set(columns):
            return shape
    return None


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
        _check_can_run(row)
        tests = shape.read(row) if shape.read else any_tests(value_at(row, shape.tests), row)
        text = write_tests(tests)
        if not text.isascii() and _SURROGATE.search(text):
            raise DataError("its tests hold half of a surrogate pair, which is no Unicode text")
        cell = _problem_for(tests, row, problem_key)
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


def _check_can_run(row: dict[str, Any]) -> None:
    """Raise DataError if a column says that the row's programs cannot be run here."""
    for column, (allowed, sentence) in _SAYS_OF_ROWS.items():
        if row.get(column) is not None and row[column] not in allowed:
            raise DataError(sentence)


def _problem_for(tests: CodeTests, row: dict[str, Any], problem_key: str) -> object:
    """Return the cell of the problem, with what its tests need added to the last turn.

    DataError: it is no problem of these tests."""
    cell = value_at(row, problem_key)
    before, turn, form = turns_of(cell, key=problem_key)
    words = "\n".join([*(earlier["content"] for earlier in before), turn])
    if tests.kind == "standard input" and _ASKS_FOR_A_FUNCTION.search(words):
        raise DataError("it asks for a function, and its tests are for a program")
    addition = _needed(tests, row, words)
    if not addition:
        return cell
    if form == A_TEXT:
        return turn + addition
    return [*before, {"role": "user", "content": turn + addition}]


def _needed(tests: CodeTests, row: dict[str, Any], words: str) -> str:
    """Return what the problem must say for its tests: names and first lines, if any.

    DataError: the tests call a function that neither they nor the problem names."""
    if tests.kind == "standard input":
        return _formats_to_say(row, words)
    starter = _starter_code(row)
    all_words = " ".join([words, starter, str(row.get("entry_point"))])
    function, classes = _names_to_say(tests, all_words)
    if starter and starter.rstrip(":") not in words:
        function = f"\n\nStart from this code:\n```python\n{starter}\n```"
    return function + classes


def _formats_to_say(row: dict[str, Any], words: str) -> str:
    """Return the columns about input and output whose text the problem does not hold."""
    paragraphs = []
    for key in ("input_format", "output_format"):
        text = str(row.get(key) or "").strip()
        if text and text not in words:
            title = key.replace("_", " ").capitalize()
            paragraphs.append(f"\n\n{title}: {text}")
    return "".join(paragraphs)


def _starter_code(row: dict[str, Any]) -> str:
    """Return the code that a solution begins with; empty: the row has none."""
    info = row.get("test_info")
    if isinstance(info, list) and info:
        info = info[0]
    declared = info.get("function_declaration") if isinstance(info, dict) else ""
    return str(row.get("starter_code") or declared or "").strip()


def _names_to_say(tests: CodeTests, words: str) -> tuple[str, str]:
    """Return sentences about the function that the tests call, and about classes that they use."""
    if tests.fn_name is None:
        call = first_call(tests)
        names, _ = split_names(tests)
    else:
        call = (tests.fn_name, len(tests.inputs[0]))
        names = [tests.fn_name]
    if call is None:
        return "", ""
    function, num_arguments = call
    unsaid = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", words)]
    classes = ""
    for name in unsaid:
        if name == function:
            continue
        if not name[:1].isupper():
            raise DataError(f"its tests use {name}, which neither they nor the problem defines")
        classes += f"\n\nThe tests also use the class `{name}`."
    if function not in unsaid:
        return "", classes
    plural = "" if num_arguments == 1 else "s"
    sentence = (
        f"The function is called `{function}` and takes {num_arguments} argument{plural}."
    )
    return f"\n\n{sentence}", classes


# Values in cells


def parsed(value: object, *, depth: int = 3) -> Any:
    """Parse a JSON text, and one in it; return others as is. DataError: bad JSON or packing."""
    while isinstance(value, str) and depth:
        text = value.strip()
        if not text:
            return None
        if text[:1] in ("{", "[", '"'):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DataError("its tests are not JSON") from error
        else:
            value = unpacked(text)
        depth -= 1
    return value


class _OnlyText(pickle.Unpickler):
    """It makes no object: the first class or function that a pickle names is refused."""

    def find_class(self, module: str, name: str) -> object:
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


def limit_of(value: object, *, unit: float = 1.0) -> float | None:
    """Read a limit as a number: 2, "2.0 seconds", {"seconds": 2, "nanos": 0}. None: it says none."""
    if isinstance(value, dict):
        value = (value.get("seconds") or 0) + (value.get("nanos") or 0) / 1e9
    if isinstance(value, str):
        value = _number_with_unit(value)
    if not isinstance(value, (int, float)) or not 0 < value < 1e15:
        return None
    return float(value) * unit


def _number_with_unit(text: str) -> float | None:
    """Return the first number of a text, milliseconds as seconds. None: it has none."""
    number = _NUMBER.search(text)
    if number is None:
        return None
    scale = 1e-3 if _MILLISECONDS.search(text) else 1.0
    return float(number[0]) * scale


def as_text(value: object) -> str:
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


def _json_or_text(value: object) -> object:
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
    arguments = [_lines_of_json(given) if isinstance(given, str) else given for given in inputs]
    if not all(isinstance(values, list) for values in arguments):
        raise DataError("an input for a function is no list of arguments")
    # APPS keeps values in lists of one, and says so nowhere
    are_boxed = boxed and all(isinstance(value, list) and len(value) == 1 for value in outputs)
    return CodeTests(
        inputs=arguments,
        outputs=outputs,
        fn_name=name.rpartition(".")[2].strip(),
        boxed_outputs=are_boxed,
        integer_keys=any(_has_number_keys(values) for values in arguments),
        **more,
    )


def _has_number_keys(arguments: list[Any]) -> bool:
    """Return if a dict in these arguments has keys that JSON has turned from numbers into texts."""
    return any(with_number_keys(value) != value for value in arguments)


def in_and_out(tests: dict[str, Any], *, name: str | None = None, **more: Any) -> CodeTests:
    """Read {inputs, outputs[, fn_name]}, APPS's form, which TACO, PRIME and verl share."""
    name = tests.get("fn_name") or name
    inputs = tests.get("inputs") or []
    outputs = tests.get("outputs") or []
    are_lists = isinstance(inputs, list) and isinstance(outputs, list)
    if not are_lists or len(inputs) != len(outputs):
        raise DataError("its inputs and outputs are not two lists of one length")
    if not name:
        input_texts = [as_text(value) for value in inputs]
        output_texts = [as_text(value) for value in outputs]
        return CodeTests(inputs=input_texts, outputs=output_texts, **more)
    values = []
    for given, expected in zip(inputs, outputs, strict=True):
        values.append(_json_or_text(expected) if isinstance(given, str) else expected)
    return _function_tests(str(name), inputs, values, boxed=bool(values), **more)


_IS_FUNCTION = {"functional", "function_call", "function"}
_IS_STDIN = {"stdin", "stdin_stdout", "standard_input", "stdio", None}


def listed(cases: list[Any], *, name: str | None = None, **more: Any) -> CodeTests:
    """Read [{input, output[, testtype, fn_name, metadata.func_name]}], LiveCodeBench's form."""
    kinds = _kinds_of(cases)
    names = {case.get("fn_name") or _metadata(case).get("func_name") for case in cases}
    names -= {None, ""}
    if kinds <= _IS_STDIN and not names:
        tests = {
            "inputs": [case["input"] for case in cases],
            "outputs": [case["output"] for case in cases],
        }
        return in_and_out(tests, **more)
    return _function_tests(
        _function_of_cases(kinds, names, default=name),
        [_input_of_case(case) for case in cases],
        [_json_or_text(case["output"]) for case in cases],
        boxed=kinds == {"function_call"},
        **more,
    )


def _kinds_of(cases: list[Any]) -> set[Any]:
    """Return the kinds that tests name. DataError: one is no test, or of a kind not known."""
    for case in cases:
        if not isinstance(case, dict) or "input" not in case or "output" not in case:
            raise DataError("one of its tests has no input and output")
    kinds = {case.get("testtype") or case.get("type") for case in cases}
    unknown = kinds - _IS_FUNCTION - _IS_STDIN
    if unknown:
        kind = min(str(kind) for kind in unknown)
        raise DataError(f"its tests are of the kind {quoted(kind)}, which is not known")
    return kinds


def _function_of_cases(kinds: set[Any], names: set[Any], *, default: str | None) -> str:
    """Return the one function of a list of tests. DataError: they are of none, or of several."""
    say_their_kind = kinds != {None}
    if say_their_kind and not kinds & _IS_FUNCTION:
        raise DataError("its tests name a function, and say that they are for standard input")
    name = next(iter(names), None) or default
    are_mixed = say_their_kind and bool(kinds & _IS_STDIN)
    if not name or len(names) > 1 or are_mixed:
        raise DataError("its tests are for a function, and do not say which one")
    return str(name)


def _input_of_case(case: dict[str, Any]) -> object:
    """Return the input of one test; that of a `function_call` may be a JSON text."""
    if case.get("type") == "function_call":
        return _json_or_text(case["input"])
    return case["input"]


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a row or a test, which may be a JSON text; {}: it has none."""
    metadata = row.get("metadata")
    if isinstance(metadata, str) and metadata.strip().startswith("{"):
        metadata = parsed(metadata)
    return metadata if isinstance(metadata, dict) else {}


def _limits(row: dict[str, Any]) -> dict[str, Any]:
    """Return the limits of time and memory that a row names, as fields of CodeTests."""
    memory = limit_of(row.get("memory_limit"))
    if memory is None:
        memory = limit_of(row.get("memory_limit_bytes"), unit=2.0**-20)
    return {"time_limit": limit_of(row.get("time_limit")), "memory_limit_mb": memory}


def any_tests(value: object, row: dict[str, Any]) -> CodeTests:
    """Read tests in a cell: the contract, or of APPS, LiveCodeBench, PRIME, rllm and SYNTHETIC."""
    content = parsed(value)
    if not content:
        raise DataError("it has no tests")
    name = _metadata(row).get("func_name") or row.get("fn_name")
    if isinstance(content, dict):
        return _tests_of_object(content, row, name=name)
    if not isinstance(content, list):
        raise DataError("its tests are of no form that is known")
    if all(isinstance(line, str) for line in content):
        return CodeTests(asserts=content)
    return listed(content, name=name, **_limits(row))


def _tests_of_object(
    content: dict[str, Any], row: dict[str, Any], *, name: str | None
) -> CodeTests:
    """Read tests in a JSON object, whose keys tell its form. DataError: none that is known."""
    if "test_cases" in content:
        tests = any_tests(content["test_cases"], row | {"fn_name": content.get("fn_name")})
        language = str(content.get("language") or "python").lower()
        tests.language = "python" if language == "python3" else language
        return tests
    if "assert_case" in content:  # verl with a sandbox
        return CodeTests(asserts=[str(line) for line in parsed(content["assert_case"])])
    if {"asserts", "checker", "setup", "preamble"} & content.keys():
        return read_tests(json.dumps(content))
    if "inputs" in content:
        limits = _limits(row)
        for key in ("language", "time_limit", "memory_limit_mb"):
            if content.get(key) is not None:
                limits[key] = content[key]
        return in_and_out(content, name=name, **limits)
    raise DataError("its tests are of no form that is known")


# One function for each shape


def code_contests(row: dict[str, Any]) -> CodeTests:
    """Read CodeContests: three groups of tests, {input: [..], output: [..]}."""
    names = ("public_tests", "private_tests", "generated_tests")
    groups = [parsed(row.get(name)) or {} for name in names]
    inputs: list[Any] = []
    outputs: list[Any] = []
    for group in groups:
        inputs += group.get("input") or []
        outputs += group.get("output") or []
    return in_and_out({"inputs": inputs, "outputs": outputs}, **_limits(row))


def livecodebench(row: dict[str, Any]) -> CodeTests:
    """Read LiveCodeBench: public tests as JSON, private ones packed."""
    public = parsed(row["public_test_cases"]) or []
    private = parsed(row.get("private_test_cases")) or []
    return listed([*public, *private], name=_metadata(row).get("func_name"))


def mbpp(row: dict[str, Any]) -> CodeTests:
    """Read MBPP, its sanitized version and MBPP+: asserts, with what they import."""
    lines = [*(parsed(row["test_list"]) or []), *(parsed(row.get("challenge_test_list")) or [])]
    asserts = [str(line) for line in lines]
    more = str(row.get("test") or "")  # of MBPP+
    if more.strip():
        asserts.append(more)
    setup = [*(row.get("test_imports") or []), row.get("test_setup_code") or ""]
    return CodeTests(asserts=asserts, setup="\n".join(setup).strip())


def python_tests(row: dict[str, Any]) -> CodeTests:
    """Read a source of tests: HumanEval's, EvalPlus's and LeetCodeDataset's define `check(candidate)`,
    KodCode's are a module of pytest, whose fixtures and classes are not known here."""
    source = str(row.get("test") or row.get("test_code") or "")
    body = statements(source)
    if body is None:
        raise DataError("its tests are no Python")
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    if row.get("entry_point") and any(node.name == "check" for node in functions):
        return _checks(str(row["entry_point"]), source, str(row.get("prompt") or ""))
    return _pytest_module(body, functions)


def _pytest_module(body: Sequence[ast.stmt], functions: Sequence[ast.FunctionDef]) -> CodeTests:
    """Make calls of a module's tests. DataError: they have marks or fixtures."""
    calls = []
    for function in functions:
        if function.name.startswith("test"):
            _check_marks(function)
            calls.append(f"{function.name}()")
    for node in body:
        if isinstance(node, ast.ClassDef):
            calls += _of_class(node)
    setup = []
    for node in body:
        code = ast.unparse(node)
        if not code.startswith("if __name__ == '__main__':"):
            setup.append(code)
    return CodeTests(asserts=calls, setup="\n".join(setup))


def _of_class(node: ast.ClassDef) -> list[str]:
    """Return calls of the tests in a class; none: it is no class of tests. DataError: they need more than a call."""
    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    is_unittest = bases == ["TestCase"]
    is_pytest = not bases and node.name.startswith("Test")
    if not is_unittest and not is_pytest:
        return []
    methods = [
        part for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    if node.decorator_list or any(_needs_more_than_a_call(method) for method in methods):
        raise DataError("its tests are in a class with marks, fixtures or coroutines")
    tests = [method.name for method in methods if method.name.startswith("test")]
    if is_unittest:
        return [f"{node.name}({test!r}).debug()" for test in tests]
    return [f"{node.name}().{test}()" for test in tests]


def _needs_more_than_a_call(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return if pytest does more for this method of a test class than to call it."""
    if method.decorator_list or method.name.startswith(("setup_", "teardown_")):
        return True
    if not method.name.startswith("test"):
        return False
    return isinstance(method, ast.AsyncFunctionDef) or len(method.args.args) > 1


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
    """Raise DataError for other marks than `parametrize`, or arguments that these do not give."""
    given: set[str] = set()
    for mark in test.decorator_list:
        if ast.unparse(mark).partition("(")[0] != "pytest.mark.parametrize":
            raise DataError(f"its tests have the mark {quoted(ast.unparse(mark)[:40])}")
        names: Any = ast.literal_eval(mark.args[0])  # type: ignore[attr-defined]
        given |= set(re.split(r"[, ]+", names)) if isinstance(names, str) else set(names)
    arguments = {argument.arg for argument in test.args.args}
    if arguments - given:
        raise DataError("its tests have fixtures")


def codeforces(row: dict[str, Any]) -> CodeTests:
    """Read open-r1/codeforces: official tests, and a checker where several outputs are right."""
    cases = parsed(row["official_tests"]) or []
    return listed(cases, checker=row.get("generated_checker") or None, **_limits(row))


# further columns that some function above reads
_COLUMNS_READ = (
    "starter_code",
    "metadata",
    "time_limit",
    "memory_limit",
    "memory_limit_bytes",
    "private_tests",
    "generated_tests",
    "private_test_cases",
    "challenge_test_list",
    "test_setup_code",
    "test_imports",
    "test_info",
    "generated_checker",
    "input_format",
    "output_format",
    "fn_name",
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
    """Return every column that some shape reads, and those that the user named."""
    columns = {*PROBLEM_COLUMNS, *_SAYS_OF_ROWS, *_COLUMNS_READ}
    for shape in SHAPES:
        columns |= {root_of(shape.tests), *shape.also}
    for key in keys:
        if key:
            columns |= {key, root_of(key)}
    return columns
