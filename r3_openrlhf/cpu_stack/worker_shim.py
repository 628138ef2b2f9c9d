"""What Ray executes in the place of Python for a worker: a fork that runs the worker's script (fork_server.py).

Ray knows a worker by the process id that it registers with, which is the fork's.
"""

from __future__ import annotations

import sys

from r3_openrlhf.cpu_stack.fork_server import Fork, connect, run_script


def main() -> int:
    """python -m r3_openrlhf.cpu_stack.worker_shim ADDRESS SCRIPT ARGUMENTS: the fork's exit code."""
    address, *argv = sys.argv[1:]
    connect(address)
    process = Fork(target=run_script, args=(argv,))
    process.start()
    process.join()
    code = process.exitcode or 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
