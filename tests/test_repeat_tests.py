"""tools/repeat_tests.py on a suite of two tests: every run is counted, and one failure is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TOOL = Path(__file__).parents[1] / "tools" / "repeat_tests.py"
SUITE = """
from pathlib import Path
SEEN = Path(__file__).with_name("seen.txt")
def note(name):
    with SEEN.open("a") as file:
        file.write(name)
def test_a(): note("a")
def test_b(): note("b")
"""


def repeat(tmp_path, suite, runs):
    (tmp_path / "tools").mkdir(exist_ok=True)
    (tmp_path / "tools" / TOOL.name).write_text(TOOL.read_text())  # its outputs go beside it
    (tmp_path / "test_two.py").write_text(suite)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak: x")
    command = [sys.executable, "tools/repeat_tests.py", str(runs), "test_two.py"]
    # a second of each run were the other plug-ins
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_reverse,random_order.plugin"}
    return subprocess.run(command, cwd=tmp_path, env={**os.environ, **plugins}, capture_output=True, text=True)


def test_every_order_is_run(tmp_path):
    done = repeat(tmp_path, SUITE, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "seen.txt").read_text() == "ab" + "ba"
    first, second, all_ = done.stdout.splitlines()
    assert "run 1, as written, 0 busy loops: 2 passed" in first
    assert "run 2, reverse, 2 busy loops: 2 passed" in second and all_ == "2 runs, 0 failed"
    assert (tmp_path / "build" / "repeat_tests.txt").read_text().splitlines()[1:] == [first, second]


def test_one_failure_is_a_failure(tmp_path):
    failing = SUITE.replace('def test_b(): note("b")', "def test_b(): assert not SEEN.read_text().startswith('aa')")
    done = repeat(tmp_path, failing, 3)
    assert done.returncode == 1 and "3 runs, 1 failed" in done.stdout, done.stdout


def test_it_goes_on_behind_the_runs_of_the_same_files_and_of_no_others(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / ".gitignore").write_text("*\n!test_two.py\n!.gitignore\n")
    git("init")
    failing = SUITE.replace(  # the first time only
        'def test_b(): note("b")', 'def test_b():\n    note("b")\n    assert SEEN.read_text().count("b") > 1'
    )
    (tmp_path / "test_two.py").write_text(failing)
    git("add", ".")
    git("commit", "-m", "two tests")
    assert repeat(tmp_path, failing, 1).returncode == 1
    again = repeat(tmp_path, failing, 3)  # the failure of before is not forgotten, and is not run again
    assert again.returncode == 1 and "1 runs of before count" in again.stdout, again.stdout
    assert again.stdout.splitlines()[-1] == "3 runs, 1 failed" and len((tmp_path / "seen.txt").read_text()) == 6

    (tmp_path / "docs").mkdir()  # the table is committed, and counts on a machine that has no other
    (tmp_path / "build" / "repeat_tests.txt").rename(tmp_path / "docs" / "repeat_tests.txt")
    git("add", "--force", "docs")
    git("commit", "-m", "the table")
    elsewhere = repeat(tmp_path, failing, 4)
    assert "3 runs of before count" in elsewhere.stdout, elsewhere.stdout
    assert elsewhere.stdout.splitlines()[-1] == "4 runs, 1 failed"

    changed = failing + "\n"
    (tmp_path / "test_two.py").write_text(changed)
    assert "of before" not in repeat(tmp_path, changed, 1).stdout
    git("commit", "--all", "-m", "another one")
    anew = repeat(tmp_path, changed, 1)
    assert anew.returncode == 0 and "of before" not in anew.stdout and len(anew.stdout.splitlines()) == 2, anew.stdout


def test_the_busy_loops_end_with_a_tool_that_is_killed(tmp_path):
    code = "import os; from repeat_tests import busy\nwith busy(1) as [loop]: print(loop.pid, flush=True); os.kill(os.getpid(), 9)"
    with (tmp_path / "loop").open("w") as file:  # not a pipe: a loop that goes on would hold it open
        subprocess.run([sys.executable, "-c", code], cwd=TOOL.parent, stdout=file)
    try:
        loop = psutil.Process(int((tmp_path / "loop").read_text()))
        loop.wait(timeout=300)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        loop.kill()
        pytest.fail("the loop goes on")
