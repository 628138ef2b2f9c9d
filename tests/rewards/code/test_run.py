"""Programs in their processes: what comes back, and what a limit is called."""

import fcntl
import os
import resource
import select
import socket
import subprocess
import sys
from unittest.mock import ANY

import pytest

from r3_openrlhf.rewards.code import run
from r3_openrlhf.rewards.code.barriers import floor_gap
from r3_openrlhf.rewards.code.data import decode
from r3_openrlhf.rewards.code.run import Call, Limits, Outcome, Runner
from tests.tables import tables_beside

TABLES = tables_beside(__file__)


def outcome_of(runner, program, call=None, **limits):
    (outcome,) = runner.run_program(program, [call or Call(stdin="")], limits=Limits(**limits))
    return outcome


def test_each_input_has_a_process_and_an_outcome(runner):
    program = "import sys\nsys.seen = getattr(sys, 'seen', 0) + 1\nprint(sys.seen, sum(map(int, input().split())))"
    outcomes = [
        *runner.run_program(program, [Call(stdin="1 2"), Call(stdin="3 4\n")], limits=Limits())
    ]
    assert [(outcome.status, outcome.stdout) for outcome in outcomes] == [
        ("finished", "1 3\n"),
        ("finished", "1 7\n"),
    ]
    assert all(outcome.cpu_s > 0 for outcome in outcomes)


def test_what_a_function_returns_is_plain_data_of_the_same_types(runner):
    value = "[None, True, 1, -2**70, 10**5000, 1.5, 'a\\ud800', (1, [2]), {1: {2}}, frozenset({3}), b'x', 2j]"
    outcome = outcome_of(
        runner, f"def f(x):\n    return {value}", Call(function="f", arguments=(1,))
    )
    assert outcome.status == "finished"
    assert decode(outcome.value) == eval(value)
    assert [type(item) for item in decode(outcome.value)] == [
        type(item) for item in eval(value)
    ]


@pytest.mark.parametrize(("program", "status", "detail"), TABLES["unfinished"])
def test_why_a_program_did_not_finish(runner, program, status, detail):
    outcome = outcome_of(runner, program, seconds_per_test=2.0)
    assert (outcome.status, outcome.detail) == (status, detail)


def test_the_time_of_all_tests_together(runner):
    program = "while input() == 'hang': pass\nprint('done')"
    calls = [Call(stdin="go"), Call(stdin="hang\n" * 10**7), Call(stdin="go")]
    outcomes = runner.run_program(
        program, calls, limits=Limits(seconds_per_test=5, seconds=0.3)
    )
    assert [outcome.status for outcome in outcomes] == ["finished", "timeout", "timeout"]


def test_a_zygote_that_is_killed_is_started_again(runner):
    runner.start()
    runner._zygote.process.kill()
    assert outcome_of(runner, "print(1)").stdout == "1\n"


@pytest.mark.parametrize("namespaces", ["bubblewrap", "unshare", "none"])
def test_every_kind_of_namespaces(namespaces):
    with Runner(namespaces=namespaces) as other:
        try:
            other.start()
        except OSError as error:
            pytest.skip(str(error))
        program = "import os\nprint(input(), os.listdir('.'))\nopen('x', 'w').write('y')"
        outcomes = [
            *other.run_program(program, [Call(stdin="a"), Call(stdin="b")], limits=Limits())
        ]
        box = other._box
        assert [outcome.stdout for outcome in outcomes] == ["a []\n", "b []\n"]
    assert box is None or not os.path.exists(box)


def test_large_arguments_arrive_and_those_that_are_no_data_are_no_verdict(runner):
    large = "x" * 2**24
    assert outcome_of(
        runner, "def f(x): return len(x)", Call(function="f", arguments=(large,))
    ).value == str(2**24)
    outcome = outcome_of(
        runner, "def f(x): return 1", Call(function="f", arguments=(object(),))
    )
    assert (outcome.status, outcome.detail) == (
        "unavailable",
        "the arguments have a value of type object",
    )


@pytest.mark.parametrize(("landlock", "seccomp", "namespaces", "words"), TABLES["floor"])
def test_the_floor(landlock, seccomp, namespaces, words):
    kind = "" if namespaces == "none" else namespaces
    gap = floor_gap({"namespaces": kind, "landlock": landlock, "seccomp": seccomp})
    assert (
        gap is None
        if not words
        else words in gap and gap.startswith("a program of a model could reach")
    )


def test_below_the_floor_no_program_is_run(monkeypatch):
    monkeypatch.setattr(
        run, "floor_gap", lambda _: "a program of a model could reach everything"
    )
    with Runner() as other:
        assert outcome_of(other, "print(1)").status == "unavailable"
        with pytest.raises(OSError, match="a program of a model could reach everything"):
            other.start()


def test_a_program_that_runs_for_its_limit_is_late_however_long_its_grader_waits(
    runner, monkeypatch
):
    monkeypatch.setattr(run.Clock, "seconds", lambda _: 0.0)
    assert outcome_of(runner, "while True: pass", seconds_per_test=0.5).status == "timeout"


def test_a_program_that_waits_for_a_processor_is_not_late(runner):
    """Its time is its own: three processes beside it for each processor."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(3 * (os.cpu_count() or 1))
    ]
    try:
        program = "import time\nend = time.process_time() + .5\nwhile time.process_time() < end: pass\nprint('done')"
        assert outcome_of(runner, program, seconds_per_test=1.5).stdout == "done\n"
        # of two processes, one waits for a processor while the other waits for it: neither counts
        burn = "import time\ndef f(x):\n    end = time.process_time() + .1\n    while time.process_time() < end: pass\n    return x"
        limits = Limits(seconds_per_test=0.5, seconds=1.5)
        outcomes = runner.run_program(
            burn, [Call(test="assert f(1) == 1", names=("f",))] * 5, limits=limits
        )
        assert [outcome.status for outcome in outcomes] == ["finished"] * 5
    finally:
        for process in busy:
            process.kill()
            process.wait()


NO_LANDLOCK = """
import ctypes, struct
from r3_openrlhf.machine.processes.sandbox import _Program
from r3_openrlhf.rewards.code.run import *
code = b"".join(struct.pack("=HBBI", *line) for line in [(32, 0, 0, 0), (21, 0, 1, 444), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)])
libc, of_programs = ctypes.CDLL(None), _Program(4, code)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(of_programs), 0, 0) == 0
with Runner(namespaces="bubblewrap") as runner:
    program = "import os\\nos.umask(0o777)\\nos.mkdir('d')\\nprint(input(), os.listdir('.'))"
    found = [*runner.run_program(program, [Call(stdin="a"), Call(stdin="b")], limits=Limits())]
    print([name for name, holds in runner.barriers.items() if not holds], [one.stdout or one.status for one in found])
"""


def test_a_directory_that_stays_is_no_failure_of_the_machine(runner):
    """Without Landlock a program can make one; it is told from trouble, and the next test has an empty directory."""
    if runner.barriers["namespaces"] != "bubblewrap":
        pytest.skip("no bubblewrap here")
    done = subprocess.run(
        [sys.executable, "-c", NO_LANDLOCK], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "['landlock'] [\"a ['d']\\n\", \"b ['d']\\n\"]\n", done.stderr


def test_a_program_has_no_descriptor_of_its_grader(monkeypatch):
    """However high their numbers are."""
    pair = socket.socketpair
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip("so many descriptors are not to be had")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6000), hard))
    monkeypatch.setattr(
        run.socket,
        "socketpair",
        lambda *kind: tuple(
            socket.socket(fileno=fcntl.fcntl(end.detach(), fcntl.F_DUPFD_CLOEXEC, 5000))
            for end in pair(*kind)
        ),
    )
    program = "import os\nfor n in range(42, 6000):\n    try: os.fstat(n)\n    except OSError: continue\n    print(n)"
    try:
        with Runner() as other:
            assert outcome_of(other, program) == Outcome(status="finished", cpu_s=ANY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_zygote_whose_owner_is_killed_ends_and_leaves_nothing(tmp_path):
    program = (
        "from r3_openrlhf.rewards.code.run import *\nr = Runner(namespaces='none')\nr.start()\n"
        "print(r._zygote.process.pid, r._box, flush=True)\n"
        "next(r.run_program('import time; time.sleep(60)', [Call(stdin='')], limits=Limits(seconds_per_test=60)))"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, box = owner.stdout.readline().split()
    zygote = os.pidfd_open(int(pid))
    owner.kill()
    owner.wait()
    assert select.select([zygote], [], [], 600)[0]
    os.close(zygote)
    assert not os.path.exists(box)
