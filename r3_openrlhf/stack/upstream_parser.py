"""The parser and the checks of the installed OpenRLHF (cli/train_ppo_ray.py), run on our arguments.

They are under `__main__` in a module that imports ray, vllm and deepspeed: its source is read, not
imported."""

import argparse
import ast
import contextlib
import functools
import importlib.util
import io
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import nearest


def check_arguments(
    arguments: list[str], *, source: Path | None = None, off: Iterable[str] = ()
) -> SimpleNamespace:
    """Return the nested namespace that the installed OpenRLHF makes of `arguments`, after its own checks.

    off: flags whose names are checked; one that is false or null is in no argument.
    source: the file with the parser; None: openrlhf/cli/train_ppo_ray.py of the installed package.
    Raises ConfigError with the parser's or the check's own words, and with the nearest flag for one
    that does not exist."""
    parser, steps = _upstream(source or installed_source())
    _check_names(parser, [*arguments, *(f"--{flag}" for flag in off)])
    with _sentences() as output:
        checked = steps(arguments)
    if output.getvalue():
        sys.stderr.write(output.getvalue())
    return checked


def parsed_flags(arguments: list[str]) -> tuple[dict[str, Any], set[str]]:
    """Return (the value of every flag of the installed OpenRLHF, the flags that `arguments` name),
    before OpenRLHF's own checks.

    Raises:
        ConfigError: as `check_arguments`."""
    parser, _ = _upstream(installed_source())
    named = _check_names(parser, arguments)
    with _sentences():
        values = vars(parser.parse_args(arguments))
    names = {
        action.dest: option.removeprefix("--")
        for action in parser._actions
        for option in action.option_strings
    }
    return {names[dest]: value for dest, value in values.items()}, {
        flag.removeprefix("--") for flag in named
    }


def installed_flags() -> list[str]:
    """Every flag of the installed OpenRLHF, without its two dashes."""
    options = _options(_upstream(installed_source())[0])
    return [option.removeprefix("--") for option in options if option not in ("-h", "--help")]


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _check_names(parser: argparse.ArgumentParser, arguments: list[str]) -> list[str]:
    """Return the flags that `arguments` name. ConfigError: an unknown one (argparse takes beginnings)."""
    named = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    if unknown := [flag for flag in dict.fromkeys(named) if flag not in _options(parser)]:
        raise ConfigError(
            "; ".join(
                f"OpenRLHF has no flag {flag}; {nearest(flag, _options(parser))}"
                for flag in unknown
            )
        )
    return named


@contextlib.contextmanager
def _sentences() -> Iterator[io.StringIO]:
    """Collect what the parser prints; its refusals, and those of the checks, become ConfigErrors."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            yield output
    except (SystemExit, AssertionError) as error:
        reason = (
            output.getvalue().strip().rpartition("error: ")[2]
            if isinstance(error, SystemExit)
            else error
        )
        raise ConfigError(f"OpenRLHF does not accept the arguments: {reason}") from error


def installed_source() -> Path:
    """openrlhf/cli/train_ppo_ray.py, without an import: that of `openrlhf.cli` does much."""
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "OpenRLHF is not installed; run make setup or make setup-gpu. r3 doctor shows what is there"
        )
    return Path(spec.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py"


def _upstream(
    source: Path,
) -> tuple[argparse.ArgumentParser, Callable[[list[str]], SimpleNamespace]]:
    """Return the parser of the `__main__` block, and a function for the part up to `train(args)`."""
    making, checking = _programs(source, source.stat().st_mtime_ns)
    # importing openrlhf.utils.config would import torch and transformers; the file is alone
    hierarchize = runpy.run_path(str(source.parent.parent / "utils" / "config.py"))[
        "hierarchize"
    ]
    names: dict[str, Any] = {"argparse": argparse, "hierarchize": hierarchize}
    exec(making, names)  # noqa: S102, installed code
    parser = names["parser"]

    def steps(arguments: list[str]) -> SimpleNamespace:
        read = parser.parse_args
        parser.parse_args = lambda: read(arguments)
        exec(checking, names)  # noqa: S102
        return names["args"]

    return parser, steps


@functools.lru_cache(maxsize=2)
def _programs(source: Path, _changed_ns: int) -> tuple[CodeType, CodeType]:
    """Compile the parser's code, and its checks, while the file stays equal (`_changed_ns`)."""
    tree = ast.parse(source.read_text(encoding="utf-8"), filename=str(source))
    block = next(
        (
            node.body
            for node in tree.body
            if isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
        ),
        [],
    )
    parse = next(
        (index for index, node in enumerate(block) if "attr='parse_args'" in ast.dump(node)),
        None,
    )
    if parse is None:
        raise ConfigError(f"{source} has no parser under __main__; R³ supports OpenRLHF 0.11.2")
    checking = [
        node
        for node in block[parse:]
        if not isinstance(node, ast.ImportFrom) and "func=Name(id='train'" not in ast.dump(node)
    ]
    known = sys.stdlib_module_names
    imports = [
        node
        for node in tree.body
        if (isinstance(node, ast.Import) and all(name.name in known for name in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module in known)
    ]
    making, checks = (
        ast.Module(body, type_ignores=[]) for body in (imports + block[:parse], checking)
    )
    return compile(making, str(source), "exec"), compile(checks, str(source), "exec")
