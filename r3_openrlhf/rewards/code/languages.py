"""The languages of programs: a command for each. A user's own is the import path of a Language."""

from dataclasses import dataclass

from r3_openrlhf.config.code_tests import PACKAGES
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import OpenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A way to run programs of a language; behind the same barriers as Python, as one process that
    may have threads."""

    # program and arguments, `{file}` for the program's file; empty for this Python
    command: tuple[str, ...] = ()
    # run once before the first test, makes `{output}` of `{file}`; then `{file}` in command is that output
    compile: tuple[str, ...] = ()
    file: str = "solution"  # the name of the program's file
    # directories besides /usr that the command reads and starts from
    paths: tuple[str, ...] = ()
    # importable besides the standard library, where they are installed
    packages: tuple[str, ...] = PACKAGES
    # those that are loaded once, before the first test
    preload: tuple[str, ...] = tuple(
        ["array", "copy", "queue", "statistics", "numpy", "numpy.random"]
    )
    # much more than it uses: only use, looked at from time to time, is limited
    reserves_memory: bool = False


def _of_user(path: str, found: object) -> Language:
    if not isinstance(found, Language):
        raise ConfigError(f"language is {path}, which is no Language")
    return found


CPP = Language(
    compile=("/usr/bin/g++", "-std=gnu++17", "-O2", "-pipe", "-o", "{output}", "{file}"),
    command=("./{file}",),
    file="solution.cpp",
)
LANGUAGES: OpenTable[Language] = OpenTable(
    "language", {"python": Language(), "cpp": CPP}, of_user=_of_user
)
