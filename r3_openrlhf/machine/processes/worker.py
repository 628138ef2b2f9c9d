"""The processes of a pool: a server that loads once (fork_server.py), and a fork per worker.

A message is the number of the item and MessagePack. Never pickle: a process may handle hostile
text, and unpickling what it sends back would run its code in the pool's process."""

import importlib
import inspect
import json
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from r3_openrlhf.machine.processes import fork_server
from r3_openrlhf.machine.processes.sandbox import adopt_orphans, confine, watch_for_code

MAX_MESSAGE_BYTES = 256 * 2**20
MAX_ERROR_CHARS, NUMBER_BYTES = 500, 4


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):  # numpy values in reasoning_gym's entries
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain data")


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def run_template(
    owner: int, target: str, options: Mapping[str, Any], *, memory_bytes: int | None
) -> None:
    """Serve forks, each with a socket as its descriptor, until the owner ends.

    Args:
        owner: pid of the process that started this one.
        target, options, memory_bytes: as ProcessPool's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's business
    channel = socket.socket(fileno=0)
    try:
        module, _, attribute = target.partition(":")
        handle = getattr(importlib.import_module(module), attribute)(**options)
        parameter = next(iter(inspect.signature(handle, eval_str=True).parameters.values()))
    except Exception as error:
        channel.send(
            json.dumps({"error": f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]}).encode()
        )
        raise
    decode = msgspec.msgpack.Decoder(
        Any if parameter.annotation is parameter.empty else parameter.annotation
    ).decode

    def run(descriptors: Sequence[int]) -> None:
        connection = Connection(descriptors[0])
        os.setsid()
        adopt_orphans()  # so that they come to the server when this one is gone, and not before
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):  # the first one is the server's channel
            os.dup2(nowhere, descriptor)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory_bytes is not None:
            os.chdir("/")
            watch_for_code()
            confine(memory_bytes=memory_bytes)
        serve(connection, lambda body: handle(decode(body)))

    channel.send(b"{}")
    fork_server.serve(channel, run, owner=owner, adopts=True)


def serve(connection: Connection, handle: Callable[[bytes], Any]) -> None:
    """Answer items in order, until the connection is closed or `handle` has raised something."""
    while True:
        try:
            message = connection.recv_bytes(MAX_MESSAGE_BYTES)
        except EOFError:
            return
        number, body = message[:NUMBER_BYTES], message[NUMBER_BYTES:]
        try:
            answer = encode((None, handle(body)))
        except MemoryError:
            raise  # nothing in this process can be relied on any more
        except Exception as error:
            text = (
                f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
                .encode("utf-8", "replace")
                .decode()
            )
            connection.send_bytes(number + encode((text, None)))
            return
        connection.send_bytes(number + answer)
