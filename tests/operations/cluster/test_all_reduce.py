"""The sum over the nodes, in processes of one machine."""

import subprocess
import sys

import pytest

from r3_openrlhf.operations.cluster.ray_on_nodes import free_port

pytest.importorskip("torch")


def part(*arguments):
    command = [sys.executable, "-m", "r3_openrlhf.operations.cluster.all_reduce", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_nodes_add_up():
    address = f"127.0.0.1:{free_port()}"
    parts = [part(address, rank, 2, 300) for rank in range(2)]
    said = [process.communicate() for process in parts]
    assert [process.returncode for process in parts] == [0, 0], said
    assert all(float(out) >= 0 for out, _ in said)


def test_a_node_that_does_not_come_ends_the_wait_with_a_sentence():
    process = part(f"127.0.0.1:{free_port()}", 0, 2, 1)
    printed, error = process.communicate()
    assert process.returncode == 1
    assert printed.strip().splitlines()[-1].startswith("all-reduce: ") and "Traceback" not in error
