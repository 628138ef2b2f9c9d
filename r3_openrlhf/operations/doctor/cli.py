"""The command `r3 doctor`."""

import sys

import click

from r3_openrlhf.operations.doctor import run
from r3_openrlhf.operations.doctor.checks import STACKS, Stack


@click.command()
@click.argument("settings", nargs=-1, metavar="[experiment=NAME [KEY=VALUE]...]")
@click.option(
    "--stack",
    type=click.Choice(STACKS),
    help="Which list of packages is wanted; default: what the machine has.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
def doctor(settings: tuple[str, ...], stack: Stack | None, as_json: bool) -> None:
    """Compare installation and machine with a run's needs; each failed line has a remedy.

    \b
    r3 doctor                                    exit code 1 if a line fails
    r3 doctor experiment=quickstart              and the model, the problems and the disk of this run
    r3 doctor experiment=r3_1p5b_deepscaler_8gpu model.path=/models/my_model
    python -m r3_openrlhf.operations.doctor                 the same where nothing is installed: it needs Python alone
    """
    sys.exit(run(settings, stack=stack, as_json=as_json))
