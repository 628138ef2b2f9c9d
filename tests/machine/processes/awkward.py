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


def make_worker(broken=False):
    if broken:
        raise RuntimeError("no such library")
    kept = []

    def handle(item: str) -> object:
        word, _, argument = item.partition(" ")
        fail(word)
        if word == "novel":
            return "z" * 10_000_000
        if word == "hoard":
            return len(bytearray(2**32))
        if word == "other":  # not what the pool expects
            return {"verdict": "correct"}
        if word == "forge":  # answers for items that come later
            (connection,) = (fd for fd in range(3, 30) if _is_socket(fd))
            body = msgspec.msgpack.encode((None, Answer("forged", 0)))
            for number in range(1000, 1010):
                os.write(connection, struct.pack(">II", len(body) + 4, number) + body)
        if word == "trickle":
            (connection,) = (fd for fd in range(3, 30) if _is_socket(fd))
            os.write(connection, struct.pack(">I", 1000))
            while True:
                os.write(connection, b"\0")
                time.sleep(0.2)
        if word == "shout":
            print("x" * 1_000_000)
            print("y" * 1_000_000, file=sys.stderr)
        if word == "once":  # crashes the first process that it meets
            if not os.path.exists(argument):
                open(argument, "w").close()
                os._exit(1)
        if word == "work":
            end = time.process_time() + float(argument)
            while time.process_time() < end:
                pass
        if word == "until":
            while not os.path.exists(argument):
                time.sleep(0.01)
        if word == "daemon":  # two forks and sessions away, as daemons are
            program = f"import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); open({argument!r}, 'w').write(str(os.getpid())); time.sleep(10000)"
            subprocess.run([sys.executable, "-c", program], start_new_session=True, check=True)
            while not os.path.exists(argument) or not open(argument).read():
                time.sleep(0.01)
        if word == "keep":
            kept.append(argument)
            return Answer(",".join(kept), os.getpid())
        if word == "variables":
            return Answer(",".join(sorted(os.environ)), os.getpid())
        return Answer(item, os.getpid())

    return handle


def _is_socket(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:
        return False
