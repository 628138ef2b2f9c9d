"""Ports for servers that are about to start: free, and given to one process only."""

import random
import socket
import subprocess
import sys

import pytest

from r3_openrlhf.machine import ports

PROGRAM = """
import sys
from r3_openrlhf.machine import ports
ports.PORTS = range(*map(int, sys.argv[1:]))
print(ports.free_port(), flush=True)
sys.stdin.read()
"""


def is_free(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def few(monkeypatch):
    """The only ports there are: three neighbours that are free, below those which other tests are given."""
    parts = [range(start, start + 3) for start in range(4000, 9000, 10)]
    few = next(part for part in random.sample(parts, len(parts)) if all(map(is_free, part)))
    monkeypatch.setattr(ports, "PORTS", few)
    monkeypatch.setattr(ports, "_taken", [])
    return few


def test_none_is_given_twice_nor_to_another_process_while_this_one_lives(few):
    before = random.getstate()
    command = [sys.executable, "-c", PROGRAM, str(few.start), str(few.stop)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    theirs = int(other.stdout.readline())
    assert {theirs, ports.free_port(), ports.free_port()} == set(few)
    with pytest.raises(OSError, match=f"no free TCP port between {few.start} and {few.stop}"):
        ports.free_port()
    other.communicate()
    assert ports.free_port() == theirs
    assert random.getstate() == before


def test_a_port_in_use_is_not_given(few):
    with socket.create_server(("", few[1])):
        assert {ports.free_port() for _ in range(2)} == {few[0], few[2]}
