"""In the place of Ray's script of this name (ray/_private/workers/setup_worker.py), which reads a worker's runtime_env and executes
`py_executable`, that is worker_shim, in a second Python. Here it is one, and Ray is not imported: 0.05 s of processor time for 0.4.

Whatever it does not know is left to Ray's own script.
"""

from __future__ import annotations

import json
import runpy
import shlex
import sys
from pathlib import Path

from r3_openrlhf.cpu_stack.worker_shim import NAME, run

CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="


def asked() -> tuple[str, list[str], dict[str, str]] | None:
    """(the address of a fork server, a worker's command line, its variables), by this process's arguments; None: another kind
    of worker."""
    found = {
        name: word.removeprefix(name) for word in sys.argv for name in (CONTEXT, LANGUAGE) if word.startswith(name)
    }
    argv = [word for word in sys.argv[1:] if not word.startswith((CONTEXT, LANGUAGE))]
    if found.get(LANGUAGE) != "PYTHON" or CONTEXT not in found:
        return None
    context = json.loads(found[CONTEXT])
    executable = shlex.split(context.pop("py_executable", None) or "")
    variables = context.pop("env_vars", None) or {}
    if executable[-2:-1] != [NAME] or any(context.values()):
        return None
    return executable[-1], argv, variables


if __name__ == "__main__":
    if (found := asked()) is not None:
        sys.exit(run(*found))
    runpy.run_path(str(Path(sys.argv[1]).with_name(Path(__file__).name)), run_name="__main__")
