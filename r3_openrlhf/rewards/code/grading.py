"""Task `code`: the program of a response against the tests of its problem (config/code_tests.py).

This process holds what is expected, and compares. What is hostile runs elsewhere (run.py,
remote.py) and sees a test's input alone."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from r3_openrlhf.config.code_tests import CodeTests, read_tests, shared_lines, split_names
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.rewards.answers.request import Item, Result
from r3_openrlhf.rewards.code import remote
from r3_openrlhf.rewards.code.compare import same_literal, same_text, same_value
from r3_openrlhf.rewards.code.data import NotPlain, encode
from r3_openrlhf.rewards.code.extraction import last_program
from r3_openrlhf.rewards.code.languages import LANGUAGES
from r3_openrlhf.rewards.code.run import Call, Limits, Outcome, run_program

MAX_PROGRAM_CHARS = 200_000
MAX_SHOWN_CHARS = 1000
# statuses that are the reason, wherever they come
_OWN_REASON = frozenset({"timeout", "memory", "blocked", "output", "syntax_error"})
_FUTURE = re.compile(r"^from __future__ import [^\n;#]+$", re.MULTILINE)
_CHECKER = """
import json, sys
for name, text in json.load(sys.stdin).items():
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
sys.argv = ["checker.py", "input.txt", "correct_output.txt", "solution_output.txt"]
exec(compile({source!r}, "checker.py", "exec"), {{"__name__": "__main__"}})
"""

_PYTHON: Mapping[str, str] = {"python": "python"}
Run = Callable[..., Iterable[Outcome]]  # as run_program
Check = Callable[[Outcome, Run], bool | None]  # None: no process for it


def grader(code: Mapping[str, Any]) -> Callable[[Item], Result]:
    """The grader with the settings of config.CodeConfig. ConfigError: a language is missing."""
    limits = Limits(**{name: code[name] for name in ("seconds_per_test", "seconds", "memory_mb")})
    by_share = code["credit"] == "share"
    if (url := code["url"]) is not None:
        run: Run = partial(remote.run_program, url)
        return lambda item: judge(item, limits, run, languages=None, by_share=by_share)
    languages = {**_PYTHON, **code["languages"]}
    for path in languages.values():
        LANGUAGES[path]
    return lambda item: judge(item, limits, run_program, languages=languages, by_share=by_share)


def judge(
    item: Item, limits: Limits, run: Run, *, languages: Mapping[str, str] | None = _PYTHON, by_share: bool = False
) -> Result:
    """Correct is what passes every test. The score is 1 or 0; by_share: the share that passed.

    Reasons: no_code, syntax_error, timeout, memory, output, blocked, "failed test 3 of 10: ...";
    never an expected output. A test without a process leaves it ungraded, unless another failed.

    Args:
        languages: name -> its entry in languages.py; None: programs run elsewhere, without tests
            that are code.
        by_share: run the tests after the first that failed, too.
    """
    try:
        (reference,) = item.references
        tests, checks = _checked_tests(reference)
    except (DataError, ValueError):
        return "ungraded", "bad_reference", None, None
    program = last_program(item.response, language=tests.language, names=_asked(checks))
    if program is None or len(program) > MAX_PROGRAM_CHARS:
        return "wrong", "no_code" if program is None else "too_long", 0.0, None
    shown = program[:MAX_SHOWN_CHARS]
    if languages is None and any(call.exact or call.test is not None for call, _ in checks):
        return "ungraded", "asserts_need_local_processes", None, shown
    if languages is not None and tests.language not in languages:
        return "ungraded", "unknown_language", None, shown
    language = tests.language if languages is None else languages[tests.language]
    limits = replace(
        limits,
        seconds_per_test=max(limits.seconds_per_test, tests.time_limit or 0.0),
        memory_mb=round(max(limits.memory_mb, tests.memory_limit_mb or 0)),
    )
    outcomes = run(_whole(program, tests.preamble), [call for call, _ in checks], limits=limits, language=language)
    passed, is_absent, reason = 0, False, ""
    for number, (outcome, (call, check)) in enumerate(zip(outcomes, checks, strict=False), 1):
        holds = _holds(outcome, check, run)
        passed += holds is True
        is_absent |= holds is None
        if holds is False:
            reason = reason or _reason(outcome, call, f"failed test {number} of {len(checks)}")
            if not by_share:
                break
    if reason:
        return "wrong", reason, passed / len(checks) if by_share else 0.0, shown
    if is_absent:
        return "ungraded", "unavailable", None, shown
    return "correct", "correct", 1.0, shown


def _holds(outcome: Outcome, check: Check, run: Run) -> bool | None:
    if outcome.status == "finished":
        return check(outcome, run)
    return None if outcome.status == "unavailable" else False


def _reason(outcome: Outcome, call: Call, sentence: str) -> str:
    """Say why a test failed. The program may have written the detail: it is never compared."""
    if outcome.status in _OWN_REASON:
        return outcome.status
    if outcome.status == "finished":
        wrong = "it does not hold" if call.test is not None or call.exact else "wrong value"
        return f"{sentence}: {wrong if call.stdin is None else 'wrong output'}"
    return f"{sentence}: {outcome.detail or outcome.status}"


def _whole(program: str, preamble: str) -> str:
    """The program after the code that its problem promises; imports from the future stay first."""
    if not preamble:
        return program
    first = "".join(f"{line}\n" for line in _FUTURE.findall(program))
    return f"{first}{preamble}\n\n{_FUTURE.sub('', program)}"


@functools.lru_cache(maxsize=64)
def _checked_tests(reference: str) -> tuple[CodeTests, list[tuple[Call, Check]]]:
    """The tests that a reference holds: what is called, and whether its outcome is right."""
    tests = read_tests(reference)
    if tests.asserts:
        return tests, _asserts(tests)
    if tests.fn_name is None:
        texts = zip(tests.inputs, tests.outputs, strict=True)
        return tests, [
            (Call(stdin=given), partial(_is_text, tests.checker, given, expected)) for given, expected in texts
        ]
    checks: list[tuple[Call, Check]] = []
    for given, expected in zip(tests.inputs, tests.outputs, strict=True):
        arguments = map(_numbered, given) if tests.integer_keys else given
        call = Call(function=tests.fn_name, arguments=tuple(arguments))
        checks.append((call, partial(_is_value, expected, tests.boxed_outputs)))
    return tests, checks


def _is_text(checker: str | None, given: str, expected: str, outcome: Outcome, run: Run) -> bool | None:
    if same_text(expected, outcome.stdout):
        return True
    return False if checker is None else _allowed(checker, given, expected, outcome.stdout, run)


def _is_value(expected: Any, boxed: bool, outcome: Outcome, _: Run) -> bool:
    return same_value(expected, outcome.value, boxed=boxed)


def _is_literal(expected: str, outcome: Outcome, _: Run) -> bool:
    return same_literal(expected, outcome.value)


def _is_true(outcome: Outcome, _: Run) -> bool:
    return outcome.value == "true"


def _asserts(tests: CodeTests) -> list[tuple[Call, Check]]:
    """Tests that are code. `assert f(1) == 2` is a call, whose value is compared here."""
    setup, sources = shared_lines(tests)
    names, imports = split_names(tests)
    setup = "\n".join([*imports, setup]).strip()
    is_plain = all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.parse(setup).body)
    checks: list[tuple[Call, Check]] = []
    for source in sources:
        equation = _equation(source, names) if is_plain else None
        if equation is None:
            checks.append((Call(test=source, setup=setup, names=tuple(names)), _is_true))
        else:
            checks.append((equation[0], partial(_is_literal, equation[1])))
    return checks


def _equation(source: str, names: Sequence[str]) -> tuple[Call, str] | None:
    """The call and the encoded literal of `assert f(1) == 2`; None: it is another test."""
    match ast.parse(source).body:
        case [ast.Assert(ast.Compare(ast.Call(ast.Name(name), given, []), [ast.Eq()], [right]))] if name in names:
            try:
                arguments = tuple(map(ast.literal_eval, given))
                return Call(function=name, arguments=arguments, exact=True), encode(
                    ast.literal_eval(right), exact=True
                )
            except (ValueError, TypeError, NotPlain):
                return None
    return None


def _asked(checks: Sequence[tuple[Call, Check]]) -> tuple[str, ...]:
    """Names that the program must define."""
    call, _ = checks[0]
    return (call.function,) if call.function is not None else call.names


def _numbered(value: Any) -> Any:
    """A dictionary with the numbers as keys that JSON made texts of."""
    if isinstance(value, dict) and all(re.fullmatch(r"-?[0-9]{1,18}", key) for key in value):
        return {int(key): inner for key, inner in value.items()}
    return value


def _allowed(checker: str, given: str, expected: str, printed: str, run: Run) -> bool | None:
    """Ask the problem's checker, in a process that the program never saw."""
    files = {"input.txt": given, "correct_output.txt": expected, "solution_output.txt": printed}
    source = _CHECKER.format(source=checker)
    (outcome,) = run(source, [Call(stdin=json.dumps(files))], limits=Limits(), language="python")
    if outcome.status == "unavailable":
        return None
    return outcome.status == "finished" and outcome.stdout.split()[-1:] == ["1"]
