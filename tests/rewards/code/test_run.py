"""Programs in their processes: what comes back, and what a limit is called."""

import pytest

from r3_openrlhf.rewards.code.run import Call, Limits, Runner


@pytest.fixture(scope="module")
def runner():
    with Runner() as runner:
        try:
            runner.start()
        except OSError as error:
            pytest.skip(str(error))
        yield runner


def one(runner, program, call=None, **limits):
    (outcome,) = runner.run_program(program, [call or Call(stdin="")], limits=Limits(**limits))
    return outcome


def test_each_input_has_a_process_and_an_outcome(runner):
    program = "import sys\nsys.seen = getattr(sys, 'seen', 0) + 1\nprint(sys.seen, sum(map(int, input().split())))"
    outcomes = runner.run_program(program, [Call(stdin="1 2"), Call(stdin="3 4\n")], limits=Limits())
    assert [(outcome.status, outcome.stdout) for outcome in outcomes] == [("finished", "1 3\n"), ("finished", "1 7\n")]
    assert all(outcome.cpu_s > 0 for outcome in outcomes)


def test_what_a_function_returns_is_plain_data_of_the_same_types(runner):
    value = "[None, True, 1, -2**70, 10**5000, 1.5, 'a\\ud800', (1, [2]), {1: {2}}, frozenset({3}), b'x', 2j]"
    outcome = one(runner, f"def f(x):\n    return {value}", Call(function="f", arguments=(1,)))
    assert outcome.status == "finished"
    assert outcome.value == eval(value)
    assert [type(item) for item in outcome.value] == [type(item) for item in eval(value)]


@pytest.mark.parametrize(
    ("program", "status", "detail"),
    [
        ("x = 1\nraise ValueError('secret')", "error", "ValueError at line 2"),
        ("def f(:", "syntax_error", "SyntaxError at line 1"),
        ("x = 1\n\0", "syntax_error", "SyntaxError"),
        ("while True: pass", "timeout", ""),
        ("import time; time.sleep(100)", "timeout", ""),
        ("x = [0] * 10**10", "memory", "MemoryError at line 1"),
        ("while True: print('x' * 10**6)", "output", ""),
        ("import os; os.fork()", "blocked", "PermissionError at line 1"),
        ("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV"),
        ("import os; os._exit(3)", "crashed", "the process ended early"),
    ],
)
def test_why_a_program_did_not_finish(runner, program, status, detail):
    outcome = one(runner, program, seconds_per_test=2.0)
    assert (outcome.status, outcome.detail) == (status, detail)


def test_the_time_of_all_tests_together(runner):
    program = "while input() == 'hang': pass\nprint('done')"
    calls = [Call(stdin="go"), Call(stdin="hang\n" * 10**7), Call(stdin="go")]
    outcomes = runner.run_program(program, calls, limits=Limits(seconds_per_test=5, seconds=0.3))
    assert [outcome.status for outcome in outcomes] == ["finished", "timeout", "timeout"]


def test_a_zygote_that_is_killed_is_started_again(runner):
    runner.start()
    runner._zygote.kill()
    assert one(runner, "print(1)").stdout == "1\n"
