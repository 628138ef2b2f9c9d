"""The list of long tests: made by a run, used by `make test-fast`, and without a name that no test has."""

import ast
import subprocess
import sys
from pathlib import Path

from tests.long_tests import NAME

ROOT = Path(__file__).parents[1]
SUITE = """
import time
import pytest
@pytest.mark.parametrize("seconds", [0, 0.3])
def test_long(seconds): time.sleep(seconds)
def test_short(): pass
"""


SHARED = """
import time
import pytest
@pytest.fixture(scope="module")
def shared(): time.sleep(1.2)
def test_first(shared): pass
def test_second(shared): pass
"""


def run_suite(folder, *arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.long_tests", *arguments]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_writes_the_list_and_the_next_one_can_leave_them_out(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: x")
    (tmp_path / "tests" / "test_shared.py").write_text(SHARED)
    (tmp_path / "tests" / "test_two.py").write_text(SUITE)
    assert "5 passed" in run_suite(tmp_path, "-n", "2", "--write-long-tests", "0.3")
    assert (tmp_path / NAME).read_text() == "tests/test_shared.py\ntests/test_two.py::test_long\n"
    assert "1 passed, 4 deselected" in run_suite(tmp_path, "-m", "not long")


def test_every_name_is_that_of_a_test():
    def names(nodes, *before):
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, *before, node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield "::".join([*before, node.name])
            elif isinstance(node, ast.Assign):  # Test... = StateMachine.TestCase
                yield from ("::".join([*before, ast.unparse(target), "runTest"]) for target in node.targets)

    listed = (ROOT / NAME).read_text().split()
    for path in {name.partition("::")[0] for name in listed}:
        found = {path} | set(names(ast.parse((ROOT / path).read_text()).body, path))
        assert {name for name in listed if name.partition("::")[0] == path} <= found
