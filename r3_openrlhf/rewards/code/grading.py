"""Task `code`: the program of a response against the tests of its problem (config/code_tests.py).

This process holds what is expected, and compares. What is hostile runs elsewhere (run.py,
remote.py) and sees a test's input alone."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from r3_openrlhf.config.code_tests import CodeTests, read_tests
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.rewards.answers.request import Item, Result
from r3_openrlhf.rewards.code import remote
from r3_openrlhf.rewards.code.compare import same_text, same_value
from r3_openrlhf.rewards.code.extraction import last_program
from r3_openrlhf.rewards.code.languages import LANGUAGES
from r3_openrlhf.rewards.code.run import Call, Limits, Outcome, run_asserts, run_program

MAX_PROGRAM_CHARS = 200_000
MAX_SHOWN_CHARS = 1000
ABSENT = "unavailable"
# outcomes whose word is the reason, wherever they come
_OWN_REASON = frozenset({"timeout", "memory", "blocked", "output"})
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
Run = Callable[..., list[Outcome]]  # as run_program


def grader(code: Mapping[str, Any]) -> Callable[[Item], Result]:
    """The grader with the settings of config.CodeConfig. ConfigError: a language is missing."""
    limits = Limits(**{name: code[name] for name in ("seconds_per_test", "seconds", "memory_mb")})
    if (url := code["url"]) is not None:
        return lambda item: judge(item, limits, functools.partial(remote.run_program, url), languages=None)
    languages = {**_PYTHON, **code["languages"]}
    for path in languages.values():
        LANGUAGES[path]
    return lambda item: judge(item, limits, run_program, languages=languages)


def judge(item: Item, limits: Limits, run: Run, *, languages: Mapping[str, str] | None = _PYTHON) -> Result:
    """Correct is what passes every test; the score is the share that passed.

    Reasons: no_code, syntax_error, timeout, memory, output, blocked, "failed test 3 of 10: ...";
    never an expected output. A test without a process leaves it ungraded, unless another failed.

    Args:
        languages: name -> its entry in languages.py; None: programs run elsewhere, without asserts.
    """
    if len(item.references) != 1:
        return "ungraded", "bad_reference", None, None
    try:
        tests = read_tests(item.references[0])
    except DataError:
        return "ungraded", "bad_reference", None, None
    program = last_program(item.response, language=tests.language)
    if program is None or len(program) > MAX_PROGRAM_CHARS:
        return "wrong", "no_code" if program is None else "too_long", 0.0, None
    shown = program[:MAX_SHOWN_CHARS]
    if languages is None and tests.asserts:
        return "ungraded", "asserts_need_local_processes", None, shown
    if languages is not None and tests.language not in languages:
        return "ungraded", "unknown_language", None, shown
    language = tests.language if languages is None else languages[tests.language]
    limits = replace(
        limits,
        seconds_per_test=max(limits.seconds_per_test, tests.time_limit or 0.0),
        memory_mb=round(max(limits.memory_mb, tests.memory_limit_mb or 0)),
    )
    reasons = _results(_whole(program, tests.preamble), tests, language, limits, run)
    failures = [(number, reason) for number, reason in enumerate(reasons, 1) if reason not in ("", ABSENT)]
    if failures:
        number, reason = failures[0]
        sentence = f"failed test {number} of {len(reasons)}: {reason}"
        single = reason.partition(":")[0]
        score = reasons.count("") / len(reasons)
        return "wrong", single if single in _OWN_REASON or single == "syntax_error" else sentence, score, shown
    if ABSENT in reasons:
        return "ungraded", ABSENT, None, shown
    return "correct", "correct", 1.0, shown


def _whole(program: str, preamble: str) -> str:
    """The program after the code that its problem promises; imports from the future stay first."""
    if not preamble:
        return program
    first = "".join(f"{line}\n" for line in _FUTURE.findall(program))
    return f"{first}{preamble}\n\n{_FUTURE.sub('', program)}"


def _results(program: str, tests: CodeTests, language: str, limits: Limits, run: Run) -> list[str]:
    """For each test "", or why it does not count as passed."""
    if tests.asserts:
        outcomes = run_asserts(program, tests.asserts, setup=tests.setup, limits=limits)
        held = [outcome.status != "finished" or outcome.value is True for outcome in outcomes]
        return [_why(outcome) if fine else "it does not hold" for fine, outcome in zip(held, outcomes, strict=True)]
    outcomes = run(program, _calls(tests), limits=limits, language=language)
    pairs = zip(tests.inputs, tests.outputs, outcomes, strict=True)
    return [_compared(tests, given, expected, outcome, run) for given, expected, outcome in pairs]


def _calls(tests: CodeTests) -> Sequence[Call]:
    if tests.fn_name is None:
        return [Call(stdin=text) for text in tests.inputs]
    listed = [[_numbered(argument) for argument in given] if tests.integer_keys else given for given in tests.inputs]
    return [Call(function=tests.fn_name, arguments=tuple(given)) for given in listed]


def _numbered(value: Any) -> Any:
    """A dictionary with the numbers as keys that JSON made texts of."""
    if isinstance(value, dict) and all(re.fullmatch(r"-?[0-9]{1,18}", key) for key in value):
        return {int(key): inner for key, inner in value.items()}
    return value


def _compared(tests: CodeTests, given: Any, expected: Any, outcome: Outcome, run: Run) -> str:
    if why := _why(outcome):
        return why
    if tests.fn_name is not None:
        return "" if same_value(expected, outcome.value, boxed=tests.boxed_outputs) else "wrong value"
    if same_text(expected, outcome.stdout):
        return ""
    return "wrong output" if tests.checker is None else _checked(tests.checker, given, expected, outcome.stdout, run)


def _why(outcome: Outcome) -> str:
    if outcome.status == "finished":
        return ""
    if outcome.status in _OWN_REASON or outcome.status in (ABSENT, "syntax_error"):
        return outcome.status
    return outcome.detail or outcome.status


def _checked(checker: str, given: str, expected: str, printed: str, run: Run) -> str:
    """Ask the problem's checker, in a process that the program never saw."""
    files = {"input.txt": given, "correct_output.txt": expected, "solution_output.txt": printed}
    source = _CHECKER.format(source=checker)
    (outcome,) = run(source, [Call(stdin=json.dumps(files))], limits=Limits(), language="python")
    if outcome.status == ABSENT:
        return ABSENT
    passed = outcome.status == "finished" and outcome.stdout.split()[-1:] == ["1"]
    return "" if passed else "wrong output"
