"""What a test file must leave as it found it: the process, and the code of the libraries that adapters patch.

A patch that stays is seen by the files that come after it in the same process, so that they pass or fail by their order.

What is read is copied first, by `dict.copy`: `list(d.items())` allocates, so that a collection or another thread may run
in between and import something."""

import asyncio
import inspect
import logging
import os
import resource
import signal
import sys
from pathlib import Path

# what r3_openrlhf/stack and machine/cpu reach into
PATCHED = (
    "openrlhf",
    "vllm",
    "deepspeed",
    "ray",
)
NOT_THEIRS = ("PYTEST_CURRENT_TEST", "RAY_CLIENT_MODE")  # pytest's own; what `import ray` sets
# other variables are added by libraries when they are imported
NEVER_BY_AN_IMPORT = (
    "R3_",
    "SLURM",
    "RAY_",
)


def _of_module(module) -> dict:
    """Functions and classes by their name, and the functions of the classes that are at home there."""
    found = {}
    for name, value in vars(module).copy().items():
        if inspect.isfunction(value) or inspect.isclass(value):
            found[f"{module.__name__}.{name}"] = value
        if inspect.isclass(value) and value.__module__ == module.__name__:
            for key, part in vars(value).copy().items():
                if inspect.isfunction(part) or isinstance(part, (staticmethod, classmethod)):
                    found[f"{module.__name__}.{name}.{key}"] = part
    return found


def code_of_libraries() -> dict:
    found = {}
    for name, module in sys.modules.copy().items():
        if name.split(".")[0] in PATCHED and inspect.ismodule(module):
            found |= _of_module(module)
    return found


def process() -> dict:
    found: dict = {
        f"the environment's {name}": value
        for name, value in os.environ.items()
        if name not in NOT_THEIRS
    }
    found["the working directory"] = Path.cwd()
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGCHLD,
        signal.SIGALRM,
    ):
        found[f"what {number.name} does"] = signal.getsignal(number)
    for name in ("RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_NPROC"):
        found[f"the limit {name}"] = resource.getrlimit(getattr(resource, name))
    # get_running_loop raises where there is none
    found["the event loop that runs here"] = asyncio._get_running_loop()
    found["what logging shows"] = logging.root.level, logging.root.manager.disable
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        found["torch's default type"] = torch.get_default_dtype()
        found["torch's number of threads"] = torch.get_num_threads()
        found["torch's gradient mode"] = torch.is_grad_enabled()
    return found


def differences(before: dict, after: dict) -> list[str]:
    """Names whose value is another one, and variables of ours that were added."""
    changed = {
        name
        for name in before
        if name in after and before[name] is not after[name] and before[name] != after[name]
    }
    changed |= {
        name for name in before.keys() - after.keys() if name.startswith("the environment's ")
    }
    added = tuple(f"the environment's {prefix}" for prefix in NEVER_BY_AN_IMPORT)
    return sorted(
        changed | {name for name in after.keys() - before.keys() if name.startswith(added)}
    )
