"""What a confined process can still do: read the libraries, nothing else."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.machine.processes import pool
from r3_openrlhf.machine.processes.sandbox import missing_layers
from tests.tables import tables_beside

PRELUDE = """
import os, resource, signal, socket, subprocess, sys
from r3_openrlhf.machine.processes.sandbox import confine, take_violations, watch_for_code
own, outside, parent = sys.argv[1], sys.argv[2], sys.argv[3]
layers = confine(memory_bytes=2**30)
if not all(layers.values()):
    print("LAYER MISSING", layers); sys.exit()
def refused(action, *errors):
    try:
        action()
    except errors or (PermissionError,):
        print("refused")
    else:
        print("DONE")
"""


def confined(tmp_path, code):
    own, outside = tmp_path / "own", tmp_path / "outside"
    own.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    program = [sys.executable, "-c", PRELUDE + code, str(own), str(outside), str(os.getpid())]
    done = subprocess.run(
        program, capture_output=True, text=True, env={**os.environ, "SECRET": "x"}, timeout=300
    )
    if "LAYER MISSING" in done.stdout:
        pytest.skip(f"this kernel lacks a layer: {done.stdout.strip()}")
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("action", tables_beside(__file__)["refused"])
def test_refused(tmp_path, action):
    errors = "PermissionError, ZeroDivisionError, FileNotFoundError"
    assert confined(tmp_path, f"refused(lambda: {action}, {errors})") == ["refused"]


def test_the_same_actions_work_outside_the_sandbox(tmp_path):
    """The check can fail: without confinement a write outside succeeds."""
    code = PRELUDE.replace("layers = confine(memory_bytes=2**30)", "layers = {}")
    command = [
        sys.executable,
        "-c",
        code + "open(outside + '/new', 'w')",
        str(tmp_path),
        str(tmp_path),
        "1",
    ]
    subprocess.run(command, check=True)
    assert (tmp_path / "new").exists()


def test_libraries_stay_usable_and_much_memory_is_refused(tmp_path):
    code = """
import sympy; print(sympy.Integer(2) + 2)
import decimal, fractions; print(os.urandom(1) != b'')
refused(lambda: bytearray(2**31), MemoryError)
"""
    assert confined(tmp_path, code) == ["4", "True", "refused"]


def test_the_layers_that_are_missing_are_those_that_confine_cannot_set_up(tmp_path):
    program = PRELUDE.replace("if not all(layers.values()):", "if False:")
    program += "from r3_openrlhf.machine.processes.sandbox import missing_layers; print(layers, missing_layers())"
    command = [sys.executable, "-c", program, str(tmp_path), "", ""]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for layer, name in (("landlock", "Landlock ("), ("seccomp", "seccomp (")):
        assert (f"'{layer}': False" in printed) == (name in printed), printed


@pytest.mark.parametrize(
    "open_files", [63, 64]
)  # no path can be opened; no set of rules either
def test_a_layer_that_cannot_be_set_up_is_an_error(tmp_path, open_files):
    if missing_layers():
        pytest.skip(f"this kernel lacks a layer: {missing_layers()}")
    program = f"held = [open('/dev/null') for _ in range(3, {open_files})]\n{PRELUDE}\nprint('CONFINED')"
    command = [sys.executable, "-c", program, str(tmp_path), "", ""]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "OSError: [Errno 24]" in done.stderr


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (-1, "read and write what the user can"),
        (1, "its version is 1"),
        (5, "seccomp alone"),
        (6, None),
        (7, None),
    ],
)
def test_what_a_version_of_landlock_leaves_open(version, words):
    gap = next(iter(missing_layers(version)), None)
    assert gap is None if words is None else words in gap


def test_what_is_missing_is_a_warning_at_the_first_item(monkeypatch, caplog):
    monkeypatch.setattr(pool, "missing_layers", lambda: missing_layers(5))
    with pool.ProcessPool(
        "tests.machine.processes.awkward:make_worker", memory_bytes=2**30
    ) as workers:
        workers.submit("plain").result(300)
    assert [
        record.levelname
        for record in caplog.records
        if "its version is 5" in record.getMessage()
    ] == ["WARNING"]


def test_code_from_strings_is_noticed(tmp_path):
    code = """
from sympy import simplify, symbols
from r3_openrlhf.rewards.answers.formulas.safe_expressions import replace_in_sympy
replace_in_sympy()
watch_for_code()
refused(lambda: eval('1 + 1'))
print(*take_violations())
import collections, dataclasses, colorsys
collections.namedtuple('Point', 'x y'); dataclasses.make_dataclass('C', ['x'])
x, y = symbols('x y'); simplify((x + y)**2 - x**2)
print(*take_violations(), 'quiet')
"""
    assert confined(tmp_path, code) == ["refused", "exec", "quiet"]


# System calls that a grading process has no use for, on the real kernel: refused, and its own limits still its own
CALLS = Path(__file__).with_name("system_calls.txt").read_text()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
def test_calls_by_number_are_refused_and_its_limits_are_its_own(tmp_path):
    assert confined(tmp_path, CALLS) == ["20", "1000"]
