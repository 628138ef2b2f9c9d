"""The processes of a pool: a template that loads what they need once, and a fork of it for each worker.

The template is a new interpreter, so nothing of its owner (CUDA, Ray, threads) is in it or in its workers. It never sees
an item. It ends when its owner does, and the kernel ends a worker together with it, however that happens.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from r3_openrlhf.machine.processes.sandbox import adopt_orphans, confine, die_with_parent, watch_for_code
from r3_openrlhf.machine.processes.wire import encode, frame, take_frame

MAX_MESSAGE_BYTES = 256 * 2**20
MAX_ERROR_CHARS = 500


def run_template(
    control: socket.socket, owner: int, target: str, options: Mapping[str, Any], *, memory_bytes: int | None
) -> None:
    """Serve requests for workers until the owner closes its end of `control` or ends.

    A message with a socket attached asks for a worker that serves it; the answer is its pid. A message without one is a pid:
    that worker, and the programs that it started, are killed.

    Args:
        owner: pid of the process that started this one.
        target, options, memory_bytes: as ProcessPool's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's business
    try:
        module, _, attribute = target.partition(":")
        handle = getattr(importlib.import_module(module), attribute)(**options)
        parameter = next(iter(inspect.signature(handle, eval_str=True).parameters.values()))
    except Exception as error:
        control.send(f"!{type(error).__name__}: {error}"[:MAX_ERROR_CHARS].encode("utf-8", "replace"))
        raise
    decode = msgspec.msgpack.Decoder(Any if parameter.annotation is parameter.empty else parameter.annotation).decode
    own = _children(os.getpid())  # of libraries
    gc.collect()
    gc.freeze()  # so that the collector in a worker does not touch, and thereby copy, the pages of the libraries
    adopt_orphans()
    workers: set[int] = set()
    try:
        control.send(b"ready")
        while os.getppid() == owner:
            if not select.select([control], [], [], 1.0)[0]:
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
            if not message:
                return
            if not descriptors:
                workers.discard(pid := int.from_bytes(message, "big"))
                _kill(pid)
                _kill_orphans(own | workers)
                continue
            template, pid = os.getpid(), os.fork()
            if pid == 0:
                try:
                    control.close()
                    connection = socket.socket(fileno=descriptors[0])
                    _become_worker(template, memory_bytes)
                    serve(connection, lambda body: handle(decode(body)))
                finally:
                    os._exit(1)  # whatever happens, a worker never runs the template's code
            os.close(descriptors[0])
            workers.add(pid)
            control.send(pid.to_bytes(4, "big"))
    except OSError:
        return  # the owner is gone
    finally:
        for pid in workers:
            _kill(pid)
        _kill_orphans(own)


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        found |= set(map(int, file.read_text().split()))
    return found


def _kill_orphans(known: set[int]) -> None:
    """What a worker that is gone had started, and what that had: it comes here, to the nearest one that adopts."""
    while orphans := _children(os.getpid()) - known:
        for pid in orphans:
            _kill(pid)


def _kill(pid: int) -> None:
    """Only here: a process that has ended keeps its number until this one, its parent, has waited for it."""
    for kill in (os.killpg, os.kill):  # the group is not there yet where the worker has only just been forked
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os.waitpid(pid, 0)


def _become_worker(template: int, memory_bytes: int | None) -> None:
    os.setsid()  # programs that it starts are killed with it
    die_with_parent(signal.SIGKILL)
    adopt_orphans()  # so that they come to the template when this one is gone, and not before
    if os.getppid() != template:
        os._exit(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        os.chdir("/")
        watch_for_code()
        confine(memory_bytes=memory_bytes)


def serve(connection: socket.socket, handle: Callable[[bytes], Any]) -> None:
    """Answer items in order, until the connection is closed or `handle` has raised something."""
    buffer = bytearray()
    while True:
        taken = take_frame(buffer, max_bytes=MAX_MESSAGE_BYTES)
        if taken is None:
            received = connection.recv(2**18)
            if not received:
                return
            buffer += received
            continue
        number, body = taken
        try:
            answer = frame(number, encode((None, handle(body))))
        except MemoryError:
            raise  # nothing in this process can be relied on any more
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS].encode("utf-8", "replace").decode()
            connection.sendall(frame(number, encode((text, None))))
            return
        connection.sendall(answer)
