"""What the tests of the fork server run in forks, and a program that owns a server."""

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

from r3_openrlhf.cpu_stack.fork_server import Fork, ForkServer, connect


def tell(path):
    """What a fork sees of itself."""
    print("to standard output")
    os.write(2, b"to standard error\n")
    loaded = "decimal" in sys.modules
    found = [os.getppid(), os.getcwd(), os.environ.get("R3_TEST_ASKED"), os.environ.get("R3_TEST_SERVER"), loaded]
    found += [signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()), sorted(sys.path)]
    Path(path).write_text(repr(found))


def fail():
    sys.exit(7)


def wait_for_ever(path):
    Path(path).write_text(str(os.getpid()))
    threading.Event().wait()


def write_at_exit(path):
    import atexit

    atexit.register(Path(path).write_text, "tidied up")


def own_fork(address, path):
    """A process that starts a fork and waits for it."""
    connect(address)
    process = Fork(target=wait_for_ever, args=(path,))
    process.start()
    process.join()


def own_server(temporary, report):
    """A process that has a server and a fork of it, and says where they are."""
    server = ForkServer({}, Path(temporary), modules=("decimal",))
    server.wait()
    connect(server.address)
    process = Fork(target=wait_for_ever, args=(f"{report}.fork",))
    process.start()
    Path(report).write_text(f"{server.pid} {process.pid} {server.address}")
    process.join()


def start(target, *arguments):
    """In a process of its own, which is no fork of a server."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process
