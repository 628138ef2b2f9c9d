"""Task `code`: the program of a response against the tests of its problem (config/code_tests.py).

This process holds what is expected, and compares. What is hostile runs elsewhere (run.py,
remote.py) and sees a test's input alone."""

import ast
import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from r3_openrlhf.config.code_tests import (
    CodeTests,
    read_tests,
    shared_lines,
    split_names,
    with_number_keys,
)
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.rewards.answers.request import Item, Result
from r3_openrlhf.rewards.code import remote
from r3_openrlhf.rewards.code.compare import same_text, same_value
from r3_openrlhf.rewards.code.data import NotPlain, encode
from r3_openrlhf.rewards.code.extraction import last_program
from r3_openrlhf.rewards.code.languages import LANGUAGES
from r3_openrlhf.rewards.code.run import Call, Limits, Outcome, run_program

MAX_PROGRAM_CHARS = 200_000
MAX_SHOWN_CHARS = 1000
# statuses that are the reason, wherever they come
_OWN_REASON = frozenset({"timeout", "memory", "blocked", "output", "syntax_error"})
_FUTURE = re.compile(r"^from __future__ import [^\n;#]+$", re.MULTILINE)
_CHECKER = Path(__file__).with_name("run_checker.txt").read_text("utf-8")
_SHIPPED: Mapping[str, str] = {"python": "python", "cpp": "cpp"}
Run = Callable[..., Iterable[Outcome]]  # as run_program


def grader(code: Mapping[str, Any]) -> Callable[[Item], Result]:
    """Make the grader with the settings of config.CodeConfig. ConfigError: a language is missing."""
    limits = Limits(
        **{name: code[name] for name in ("seconds_per_test", "seconds", "memory_mb")}
    )
    credit = {"by_share": code["credit"] == "share", "threshold": code["threshold"] or 1.0}
    if (url := code["url"]) is not None:
        run: Run = functools.partial(remote.run_program, url)
        return functools.partial(judge, limits=limits, run=run, languages=None, **credit)
    languages = {**_SHIPPED, **code["languages"]}
    for path in languages.values():
        LANGUAGES[path]
    return functools.partial(
        judge, limits=limits, run=run_program, languages=languages, **credit
    )


def judge(
    item: Item,
    limits: Limits,
    run: Run,
    *,
    languages: Mapping[str, str] | None = _SHIPPED,
    by_share: bool = False,
    threshold: float = 1.0,
) -> Result:
    """Correct is what passes every test. The score is 1 or 0; by_share: the share that passed.

    Reasons: no_code, syntax_error, timeout, memory, output, blocked, "failed test 3 of 10: ...";
    never an expected output. Ungraded is what tests without a process could make correct or wrong.

    Args:
        languages: name -> its entry in languages.py; None: programs run elsewhere, without tests
            that are code.
        by_share: run the tests after the verdict is known, too.
        threshold: the share of tests that is enough for correct.
    """
    try:
        (reference,) = item.references
        tests, pairs = _pairs(reference)
    except (DataError, ValueError):
        return "ungraded", "bad_reference", None, None
    names = [*pairs[0][0].names, *([tests.fn_name] if tests.fn_name else [])]
    program = last_program(item.response, language=tests.language, names=names)
    if program is None or len(program) > MAX_PROGRAM_CHARS:
        return "wrong", "no_code" if program is None else "too_long", 0.0, None
    shown = program[:MAX_SHOWN_CHARS]
    if languages is None and any(call.test is not None for call, _ in pairs):
        return "ungraded", "asserts_need_local_processes", None, shown
    if languages is not None and tests.language not in languages:
        return "ungraded", "unknown_language", None, shown
    language = tests.language if languages is None else languages[tests.language]
    limits = replace(
        limits,
        seconds_per_test=max(limits.seconds_per_test, tests.time_limit or 0.0),
        memory_mb=round(max(limits.memory_mb, tests.memory_limit_mb or 0)),
    )
    try:
        passed, reason = _graded(program, reference, limits, run, language, by_share, threshold)
    except _NoProcess:
        return "ungraded", "unavailable", None, shown
    return (
        ("wrong", reason, passed if by_share else 0.0, shown)
        if reason
        else ("correct", "correct", 1.0, shown)
    )


class _NoProcess(Exception):
    """Tests have no outcome, and the others do not decide."""


@functools.lru_cache(maxsize=32)
def _graded(
    program: str,
    reference: str,
    limits: Limits,
    run: Run,
    language: str,
    by_share: bool,
    threshold: float,
) -> tuple[float, str]:
    """(share of tests that passed, why the first of the others did not; empty: enough passed). Equal
    programs of a group run once. Raises _NoProcess."""
    tests, pairs = _pairs(reference)
    again = functools.partial(
        run, _whole(program, tests.preamble), limits=limits, language=language
    )
    needed = next(
        count for count in range(1, len(pairs) + 1) if count / len(pairs) >= threshold
    )
    passed, failed, reason = 0, 0, ""
    outcomes = zip(again([call for call, _ in pairs]), pairs, strict=False)
    for number, (outcome, (call, expected)) in enumerate(outcomes, 1):
        holds = None if outcome.status == "unavailable" else False
        if outcome.status == "finished":
            holds = _is_right(tests, call, expected, outcome, again, run)
        passed += holds is True
        if holds is False:
            failed += 1
            reason = reason or _reason(outcome, call, f"failed test {number} of {len(pairs)}")
        if not by_share and (passed >= needed or failed > len(pairs) - needed):
            break
    if passed < needed and failed <= len(pairs) - needed:
        raise _NoProcess
    return passed / len(pairs), reason if passed < needed else ""


def _reason(outcome: Outcome, call: Call, sentence: str) -> str:
    """Say why a test failed. The program may have written the detail: it is never compared."""
    if outcome.status in _OWN_REASON:
        return outcome.status
    if outcome.status == "finished":
        wrong = "it does not hold" if call.test is not None else "wrong value"
        return f"{sentence}: {wrong if call.stdin is None else 'wrong output'}"
    return f"{sentence}: {outcome.detail or outcome.status}"


def _whole(program: str, preamble: str) -> str:
    """Put the program after the code that its problem promises; imports from the future stay first."""
    if not preamble:
        return program
    first = "".join(f"{line}\n" for line in _FUTURE.findall(program))
    return f"{first}{preamble}\n\n{_FUTURE.sub('', program)}"


@functools.lru_cache(maxsize=64)
def _pairs(reference: str) -> tuple[CodeTests, list[tuple[Call, Any]]]:
    """Read the tests that a reference holds: what is called, and what is expected of it."""
    tests = read_tests(reference)
    if tests.asserts:
        return tests, _asserts(tests)
    if tests.fn_name is None:
        return tests, [
            (Call(stdin=given.removeprefix("\ufeff")), expected)
            for given, expected in zip(tests.inputs, tests.outputs, strict=True)
        ]
    arguments = [
        map(with_number_keys, given) if tests.integer_keys else given for given in tests.inputs
    ]
    calls = [Call(function=tests.fn_name, arguments=tuple(given)) for given in arguments]
    return tests, list(zip(calls, tests.outputs, strict=True))


def _asserts(tests: CodeTests) -> list[tuple[Call, Any]]:
    """Read tests that are code. `assert f(1) == 2` is first tried as a call, whose value is compared."""
    setup, sources = shared_lines(tests)
    names, imports = split_names(tests)
    setup = "\n".join([*imports, setup]).strip()
    is_plain = all(
        isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.parse(setup).body
    )
    calls = [Call(test=source, setup=setup, names=tuple(names)) for source in sources]
    return [is_plain and _equation(call) or (call, "true") for call in calls]


def _equation(call: Call) -> tuple[Call, str] | None:
    """Return the call and the encoded literal of `assert f(1) == 2`; None: it is another test."""
    match ast.parse(call.test or "").body:
        case [
            ast.Assert(ast.Compare(ast.Call(ast.Name(name), given, []), [ast.Eq()], [right]))
        ] if name in call.names:
            with contextlib.suppress(ValueError, TypeError, NotPlain):
                arguments = tuple(map(ast.literal_eval, given))
                return replace(call, function=name, arguments=arguments), encode(
                    ast.literal_eval(right), exact=True
                )
    return None


def _is_right(
    tests: CodeTests, call: Call, expected: Any, outcome: Outcome, again: Run, run: Run
) -> bool | None:
    """Compare what a test is finished with; None: no process for what decides. again: the program."""
    if call.test is not None:
        if outcome.value == expected or call.function is None:
            return bool(outcome.value == expected)
        # 1.0 for 1, an order: by Python itself
        (outcome,) = again([replace(call, function=None)])
        return None if outcome.status == "unavailable" else outcome.value == "true"
    if call.function is not None:
        return same_value(expected, outcome.value, boxed=tests.boxed_outputs)
    is_same = same_text(expected, outcome.stdout)
    return (
        is_same
        if is_same or tests.checker is None
        else _allowed(tests.checker, call.stdin, expected, outcome, run)
    )


def _allowed(
    checker: str, given: str | None, expected: str, of_program: Outcome, run: Run
) -> bool | None:
    """Ask the problem's checker, in a process that the program never saw."""
    files = {
        "input.txt": given,
        "correct_output.txt": expected,
        "solution_output.txt": of_program.stdout,
    }
    source = _CHECKER.format(source=checker)
    (outcome,) = run(
        source, [Call(stdin=json.dumps(files))], limits=Limits(), language="python"
    )
    if outcome.status == "unavailable":
        return None
    return outcome.status == "finished" and outcome.stdout.split()[-1:] == ["1"]
