"""The processes that environments live in: a nursery that imports one class, and a fork of it per environment.

Started by grading/processes/nursery.py. What an environment prints goes nowhere.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from r3_openrlhf.agents.environment import Environment, Observation, Step, environment_class, make_environment
from r3_openrlhf.grading.processes.forks import serve_forks
from r3_openrlhf.grading.processes.sandbox import die_with_parent
from r3_openrlhf.grading.processes.wire import frame, take_frame


class Call(msgspec.Struct, array_like=True, frozen=True):
    """What a process is asked: to begin a task, or to act."""

    seed: int | None = None
    action: str | None = None


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """Exactly one of the three."""

    observation: Observation | None = None
    step: Step | None = None
    error: str | None = None  # what the environment raised


_decode_call = msgspec.msgpack.Decoder(Call).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def run_nursery(
    control: socket.socket, *, directory: str, name: str, options: Mapping[str, Any], working_directory: str
) -> None:
    """Serves fork requests (forks.py) until the pool closes its end of `control`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    die_with_parent(signal.SIGTERM)
    try:
        os.chdir(working_directory)  # paths in the options mean what they mean to the parent
        environment_class(name)
        gc.collect()
        gc.freeze()  # so that the collector in a worker does not touch, and thereby copy, the pages of the libraries
        control.send(b"ready")
        serve_forks(control, partial(_become_worker, name=name, options=options))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _become_worker(connection: socket.socket, *, name: str, options: Mapping[str, Any]) -> None:
    os.setsid()  # programs that the environment starts are killed with it
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(connection, name, options)


def serve(connection: socket.socket, name: str, options: Mapping[str, Any]) -> None:
    """Answers calls in order until the connection is closed or the environment has raised something."""
    buffer = bytearray()
    environment: Environment | None = None
    while True:
        body = take_frame(buffer)
        if body is None:
            received = connection.recv(2**16)
            if not received:
                return
            buffer += received
            continue
        call = _decode_call(body)
        try:
            if environment is None:
                environment = make_environment(name, options)
            if call.action is None:
                answer = Answer(observation=environment.reset(call.seed or 0))
            else:
                answer = Answer(step=environment.step(call.action))
            message = frame(answer)
        except MemoryError:
            raise  # nothing in this process can be relied on any more
        except Exception as error:  # an environment's own mistake is data: it costs the trajectory, and is told
            connection.sendall(frame(Answer(error=f"{type(error).__name__}: {error}"[:500])))
            return
        connection.sendall(message)
