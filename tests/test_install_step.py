"""What is shown while `make setup` installs: real commands, at a terminal and in a pipe."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tools.install_step import INTERVAL_S, Line, run_step

REPOSITORY = Path(__file__).parents[1]
CHATTY = "import sys; print('Collecting torch'); print('WARNING: Location x is ignored', file=sys.stderr); sys.exit({})"


def step(log, code, stderr=subprocess.PIPE):
    program = REPOSITORY / "tools" / "install_step.py"
    command = [
        sys.executable,
        program,
        "--step",
        "2/4",
        "--log",
        log,
        "PyTorch",
        "--",
        sys.executable,
        "-c",
        code,
    ]
    return subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=600
    )


def test_what_a_step_says_goes_to_the_log_only(tmp_path):
    log = tmp_path / "install.log"
    for _ in range(2):
        done = step(log, CHATTY.format(0))
        first, *ticks, last = done.stderr.splitlines()
        assert (done.returncode, done.stdout, first) == (
            0,
            "",
            "installing group 2 of 4, PyTorch",
        )
        assert all(tick.startswith(f"{first}: ") for tick in ticks)
        assert last.startswith(f"{first}: done, ") and last.endswith(" s")
    assert (
        log.read_text().count("Collecting torch\n")
        == log.read_text().count("is ignored\n")
        == 2
    )


def test_a_step_that_fails_shows_its_end_and_where_the_rest_is(tmp_path):
    done = step(
        tmp_path / "install.log", "for n in range(40): print('line', n)\n" + CHATTY.format(3)
    )
    assert done.returncode == 3
    shown = [line.strip() for line in done.stderr.splitlines() if line.startswith("    ")]
    # The two streams of a process have no order.
    assert shown[-1] == "line 39" or "Collecting torch" in shown
    assert len(shown) == 15 and not any("is ignored" in line for line in shown)
    assert f"exit status 3; everything it said is in {tmp_path / 'install.log'}" in done.stderr
    assert "r3 doctor" in done.stderr and "line 0\n" in (tmp_path / "install.log").read_text()


BROKEN_OFF = "Connection broken: IncompleteRead(1048576 bytes read, 2097152 more expected)"
NO_WHEEL = "Could not build wheels for deepspeed"
NO_RELEASE = "No matching distribution found for a==9"


@pytest.mark.parametrize(
    ("reason", "failures", "status", "runs"),
    [
        (BROKEN_OFF, 0, 0, 1),
        (BROKEN_OFF, 2, 0, 3),
        (BROKEN_OFF, 5, 1, 3),
        (NO_WHEEL, 5, 1, 1),
        (NO_RELEASE, 5, 1, 1),
    ],
)
def test_only_an_index_that_fails_for_a_moment_is_asked_again(
    tmp_path, reason, failures, status, runs
):
    said, counter = io.StringIO(), tmp_path / "counter"
    code = (
        f"import sys; open({str(counter)!r}, 'a').write('x'); fails = len(open({str(counter)!r}).read()) <= {failures}; "
        f"print('ERROR: {reason}') if fails else None; sys.exit(fails)"
    )
    command = [sys.executable, "-c", code]
    assert (
        run_step(command, title="group", log=tmp_path / "log", stream=said, pauses=(0.0, 0.0))
        == status
    )
    assert len(counter.read_text()) == runs
    assert said.getvalue().count("Trying again") == runs - 1
    assert ("Error: group failed with exit status 1" in said.getvalue()) == bool(status)


def test_a_terminal_has_one_line_that_is_rewritten(tmp_path):
    ours, theirs = pty.openpty()
    try:
        step(tmp_path / "install.log", CHATTY.format(0), stderr=theirs)
        # One read may give a part of what was shown.
        os.write(theirs, b"!")
        shown = ""
        while not shown.endswith("!"):
            shown += os.read(ours, 65536).decode()
    finally:
        os.close(theirs)
        os.close(ours)
    assert shown.count("\n") == 1 and shown.startswith("\r\x1b[K") and "Collecting" not in shown


@pytest.mark.parametrize("terminal", [False, True])
def test_no_wait_is_silent_for_ten_seconds(terminal):
    """A step of 95 seconds, looked at twice a second."""
    now, said = 0.0, []

    class Stream(io.StringIO):
        def write(self, text):
            said.append((now, text))

    line = Line("installing", stream=Stream(), terminal=terminal, clock=lambda: now)
    for tick in range(191):
        now = tick / 2
        line.tick("torch")
    line.end("done")
    gaps = [later - earlier for (earlier, _), (later, _) in zip(said, said[1:], strict=False)]
    assert max(gaps) < 10
    if not terminal:
        assert min(gaps[:-1]) >= INTERVAL_S
        assert not any("\x1b" in text or "\r" in text for _, text in said)
    assert said[-1][1].rstrip("\n").endswith("installing: done, 95 s")
