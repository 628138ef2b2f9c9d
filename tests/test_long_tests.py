"""The list of long tests: made by a run, used by `make test-fast`, and without a name that no test has."""

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from tests.long_tests import NAME, long_ones

ROOT = Path(__file__).parents[1]
SUITE = """
import pytest
@pytest.mark.parametrize("case", [1, 2])
def test_long(case): pass
def test_short(): pass
"""


def run_suite(folder, *arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-p", "tests.long_tests", *arguments]
    # three processes would import the other plug-ins
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def report(nodeid, when, duration):
    return SimpleNamespace(nodeid=nodeid, when=when, duration=duration)


def test_what_is_long():
    """Durations by hand: the machine's own would depend on its load."""
    reports = [
        report("a.py::test_one[1]", "setup", 1.9),
        report("a.py::test_one[1]", "call", 0.1),
        report("a.py::test_one[2]", "call", 0.5),
        report("a.py::test_two", "call", 0.4),
        report("a.py::test_two", "teardown", 9.0),
        report("b.py::test_three", "setup", 2.0),
        report("b.py::test_four", "call", 3.0),
    ]
    assert long_ones(reports, 0.5) == {"a.py::test_one", "b.py"}


def test_a_run_writes_the_list_and_the_next_one_can_leave_them_out(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: x")
    for name in ("test_other.py", "test_two.py"):
        (tmp_path / "tests" / name).write_text(SUITE)
    assert "6 passed" in run_suite(tmp_path, "-n", "2", "--write-long-tests", "0")  # 0 s: everything is long
    assert (tmp_path / NAME).read_text() == "tests/test_other.py\ntests/test_two.py\n"
    (tmp_path / NAME).write_text("tests/test_other.py\ntests/test_two.py::test_long\n")
    assert "1 passed, 5 deselected" in run_suite(tmp_path, "-m", "not long")


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
