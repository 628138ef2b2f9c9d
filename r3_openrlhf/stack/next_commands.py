"""Commands to type after a run: they work as printed, with the run's own data and reward."""

import os
import shlex
from collections.abc import Sequence

from r3_openrlhf.config import R3Config

# Settings of one arm. Another algorithm gets those of its preset.
OF_THE_ARM = (
    *("algo=", "arm=", "run_dir="),
    *(
        "advantage.",
        "critic.",
        "distill.",
        "exploration.",
        "history.",
        "ranking.",
        "reflection.",
        "replay.",
    ),
)


def next_commands(
    experiment: str,
    settings: Sequence[str],
    config: R3Config,
    *,
    last_step: int,
    program: str = "r3",
) -> list[str]:
    """Shell commands for a run that has ended, for the directory in which its own command was
    typed.

    The first opens it in a browser. With held-out problems follow a second algorithm and the command
    that compares the two.

    Args:
        experiment: NAME of experiment=NAME.
        settings: the other settings of the run's command line.
        last_step: the run's last.
        program: how `r3` was called."""
    relative = os.path.relpath(config.run_dir)
    run = config.run_dir if relative.startswith("..") else relative
    commands = [["view", run], ["show", run, "--step", str(last_step)]]
    if config.held_out.path is not None:
        first, second = config.algorithm.compared
        other = first if config.algorithm_name != first else second
        kept = [one for one in settings if not one.lstrip("+").startswith(OF_THE_ARM)]
        other_run = f"{run}_{other}"
        train = [
            "train",
            f"experiment={experiment}",
            f"algo={other}",
            *kept,
            f"run_dir={other_run}",
        ]
        commands += [train, ["compare", run, other_run]]
    return [shlex.join([program, *words]) for words in commands]
