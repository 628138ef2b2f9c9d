"""Workers whose items are the ways in which an item can fail."""

import ctypes
import os
import struct
import subprocess
import sys
import time

import msgspec


class Answer(msgspec.Struct, array_like=True):
    """What a well-behaved worker says."""

    text: str
    pid: int


def fail(word: str) -> None:
    """End, stop or break the process, if the word says how."""
    if word == "hang":
        time.sleep(10_000)
    if word == "spin":
        while True:
            pass
    if word == "segfault":
        ctypes.string_at(0)
    if word == "exit":
        os._exit(3)
    if word == "raise":
        raise KeyError("the lamp")


def write_a_novel(argument):
    return "z" * 10_000_000


def hoard(argument):
    return len(bytearray(2**32))


def answer_otherwise(argument):
    """Return what the pool does not expect."""
    return {"verdict": "correct"}


def forge(argument):
    """Write answers for items that come later."""
    connection = _connection()
    body = msgspec.msgpack.encode((None, Answer("forged", 0)))
    for number in range(1000, 1010):
        os.write(connection, struct.pack(">II", len(body) + 4, number) + body)


def trickle(argument):
    """Announce an answer of 1000 bytes, and write one byte after the other."""
    connection = _connection()
    os.write(connection, struct.pack(">I", 1000))
    while True:
        os.write(connection, b"\0")
        time.sleep(0.2)


def shout(argument):
    print("x" * 1_000_000)
    print("y" * 1_000_000, file=sys.stderr)


def crash_once(path):
    """End the first process that meets this item."""
    if not os.path.exists(path):
        open(path, "w").close()
        os._exit(1)


def work(seconds):
    end = time.process_time() + float(seconds)
    while time.process_time() < end:
        pass


def wait_until(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def start_a_daemon(path):
    """Start a process two forks and sessions away, as daemons are; it writes its id to `path`."""
    program = f"""
import os, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open({path!r}, "w") as file:
    file.write(str(os.getpid()))
time.sleep(10_000)
"""
    subprocess.run([sys.executable, "-c", program], start_new_session=True, check=True)
    while not os.path.exists(path) or not open(path).read():
        time.sleep(0.01)


def list_variables(argument):
    return Answer(",".join(sorted(os.environ)), os.getpid())


WAYS = {  # first word of an item -> what happens; an item without a result is answered as any other
    "novel": write_a_novel,
    "hoard": hoard,
    "other": answer_otherwise,
    "forge": forge,
    "trickle": trickle,
    "shout": shout,
    "once": crash_once,
    "work": work,
    "until": wait_until,
    "daemon": start_a_daemon,
    "variables": list_variables,
}


def make_worker(broken=False):
    if broken:
        raise RuntimeError("no such library")
    kept = []

    def handle(item: str) -> object:
        word, _, argument = item.partition(" ")
        fail(word)
        if word == "keep":
            kept.append(argument)
            return Answer(",".join(kept), os.getpid())
        result = WAYS[word](argument) if word in WAYS else None
        return Answer(item, os.getpid()) if result is None else result

    return handle


def _connection():
    """Return the descriptor of the only socket, which leads to the pool."""
    (connection,) = (descriptor for descriptor in range(3, 30) if _is_socket(descriptor))
    return connection


def _is_socket(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:
        return False
