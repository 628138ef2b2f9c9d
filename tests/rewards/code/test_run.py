"""Programs in their processes: what comes back, and what a limit is called."""

import os
import select
import subprocess
import sys

import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.rewards.code import run
from r3_openrlhf.rewards.code.barriers import Barrier, floor_gap
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


@pytest.mark.parametrize("namespaces", ["bubblewrap", "unshare", "none"])
def test_every_kind_of_namespaces(namespaces):
    with Runner(namespaces=namespaces) as other:
        try:
            other.start()
        except OSError as error:
            pytest.skip(str(error))
        program = "import os\nprint(input(), os.listdir('.'))\nopen('x', 'w').write('y')"
        outcomes = other.run_program(program, [Call(stdin="a"), Call(stdin="b")], limits=Limits())
        box = other._box
        assert [outcome.stdout for outcome in outcomes] == ["a []\n", "b []\n"]
    assert box is None or not os.path.exists(box)


def test_large_arguments_arrive_and_those_that_are_no_data_are_no_verdict(runner):
    large = "x" * 2**24
    assert one(runner, "def f(x): return len(x)", Call(function="f", arguments=(large,))).value == 2**24
    outcome = one(runner, "def f(x): return 1", Call(function="f", arguments=(object(),)))
    assert (outcome.status, outcome.detail) == ("unavailable", "the arguments have a value of type object")


@pytest.mark.parametrize(
    ("landlock", "seccomp", "namespaces", "words"),
    [
        (True, True, "none", None),
        (False, False, "bubblewrap", None),
        (True, False, "unshare", None),
        (False, True, "bubblewrap", None),
        (False, True, "unshare", "the user's files"),
        (True, False, "none", "the network and other processes"),
        (False, False, "none", "the user's files (no Landlock, no bubblewrap) and the network"),
    ],
)
def test_the_floor(landlock, seccomp, namespaces, words):
    barriers = [
        Barrier("namespaces", namespaces != "none", namespaces),
        Barrier("landlock", landlock, "landlock"),
        Barrier("seccomp", seccomp, "seccomp"),
    ]
    gap = floor_gap(barriers)
    assert gap is None if words is None else words in gap and gap.startswith("a program of a model could reach")


def test_below_the_floor_no_program_is_run(monkeypatch):
    monkeypatch.setattr(run, "floor_gap", lambda _: "a program of a model could reach everything")
    with Runner() as other:
        assert one(other, "print(1)").status == "unavailable"
    with pytest.raises(ConfigError, match="programs cannot be run on this machine: a program of a model could reach"):
        run.require_floor()


def test_a_program_that_waits_for_a_processor_is_not_late(runner):
    """Its time is its own: three processes beside it for each processor."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * (os.cpu_count() or 1))]
    try:
        program = "import time\nend = time.process_time() + .5\nwhile time.process_time() < end: pass\nprint('done')"
        assert one(runner, program, seconds_per_test=1.5).stdout == "done\n"
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_a_zygote_whose_owner_is_killed_ends_and_leaves_nothing(tmp_path):
    program = (
        "from r3_openrlhf.rewards.code.run import *\nr = Runner(namespaces='none')\nr.start()\n"
        "print(r._zygote.pid, r._box, flush=True)\n"
        "r.run_program('import time; time.sleep(60)', [Call(stdin='')], limits=Limits(seconds_per_test=60))"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, box = owner.stdout.readline().split()
    zygote = os.pidfd_open(int(pid))
    owner.kill()
    owner.wait()
    assert select.select([zygote], [], [], 60)[0]
    os.close(zygote)
    assert not os.path.exists(box)
