"""tools/repeat_tests.py on a suite of two tests: every run is counted, and one failure is a failure."""

import subprocess
import sys
from pathlib import Path

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
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / TOOL.name).write_text(TOOL.read_text())  # its outputs go beside it
    (tmp_path / "test_two.py").write_text(suite)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak: x")
    command = [sys.executable, "tools/repeat_tests.py", str(runs), "test_two.py"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


def test_every_order_is_run(tmp_path):
    done = repeat(tmp_path, SUITE, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "seen.txt").read_text() == "ab" + "ba"
    first, second, all_ = done.stdout.splitlines()
    assert "run 1, as written, 0 busy loops: 2 passed" in first
    assert "run 2, reverse, 2 busy loops: 2 passed" in second and all_ == "2 runs, 0 failed"
    assert (tmp_path / "build" / "repeat_tests.txt").read_text().splitlines() == [first, second]


def test_one_failure_is_a_failure(tmp_path):
    failing = SUITE.replace('def test_b(): note("b")', "def test_b(): assert not SEEN.read_text().startswith('aa')")
    done = repeat(tmp_path, failing, 3)
    assert done.returncode == 1 and "3 runs, 1 failed" in done.stdout, done.stdout
