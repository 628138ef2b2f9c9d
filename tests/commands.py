"""The command r3, called in this process."""

from functools import partial

from click.testing import CliRunner

from r3_openrlhf.cli import main


def r3(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def command(*words):
    """`r3` with these words before the others."""
    return partial(r3, *words)
