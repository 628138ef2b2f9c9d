"""What Ray executes in the place of Python for a worker: a fork that runs the worker's script (fork_server.py).

Ray knows a worker by the process id that it registers with, which is the fork's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from r3_openrlhf.cpu_stack.fork_server import Fork, connect, run_script

NAME = "r3_openrlhf.cpu_stack.worker_shim"


def run(address: str, argv: list[str], variables: Mapping[str, str] | None = None) -> int:
    """The exit code of a fork of the server at `address` that runs `python argv[0] argv[1] ...`, with these variables of a
    runtime_env; this process lives as long."""
    connect(address)
    process = Fork(target=run_script, args=(argv, dict(variables or {})))
    process.start()
    process.join()
    code = process.exitcode or 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":  # python -m r3_openrlhf.cpu_stack.worker_shim ADDRESS SCRIPT ARGUMENTS
    sys.exit(run(sys.argv[1], sys.argv[2:]))
