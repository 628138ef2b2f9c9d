"""What a test file must leave as it found it: the process, and the code of the libraries that adapters patch.

A patch that stays is seen by the files that come after it in the same process, so that they pass or fail by their order."""

import inspect
import os
import signal
import sys
from pathlib import Path

PATCHED = ("openrlhf", "vllm", "deepspeed", "ray")  # what r3_openrlhf/openrlhf_adapter and cpu_stack reach into
# torch.utils.data and others set these for good when they are first imported or used
GROWING = ("PYTEST_CURRENT_TEST", "KMP_", "TORCH", "TOKENIZERS_", "TRANSFORMERS_", "VLLM_", "CUDA_", "PYDEVD_", "LD_")


def _of_module(module) -> dict:
    """Functions and classes by their name, and the functions of the classes that are at home there."""
    found = {}
    for name, value in list(vars(module).items()):
        if inspect.isfunction(value) or inspect.isclass(value):
            found[f"{module.__name__}.{name}"] = value
        if inspect.isclass(value) and value.__module__ == module.__name__:
            for key, part in vars(value).items():
                if inspect.isfunction(part) or isinstance(part, (staticmethod, classmethod)):
                    found[f"{module.__name__}.{name}.{key}"] = part
    return found


def code_of_libraries() -> dict:
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in PATCHED and inspect.ismodule(module):
            found |= _of_module(module)
    return found


def process() -> dict:
    found: dict = {
        f"the environment's {name}": value for name, value in os.environ.items() if not name.startswith(GROWING)
    }
    found["the working directory"] = Path.cwd()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGALRM):
        found[f"what {number.name} does"] = signal.getsignal(number)
    return found


def differences(before: dict, after: dict, *, new: bool) -> list[str]:
    """Names whose value is another one. new: also those that were added or are gone."""
    names = before.keys() | after.keys() if new else before.keys() & after.keys()
    return sorted(
        name for name in names if before.get(name) is not after.get(name) and before.get(name) != after.get(name)
    )
