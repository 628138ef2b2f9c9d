"""Commands to type after a run: they work as printed, with the run's own data and reward."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from r3_openrlhf.config import ENVIRONMENT, R3Config
from r3_openrlhf.problems.files import is_on_the_hub

GENERATED = "reasoning_gym:"
OTHER_SEED = 1234  # of generated problems that the run has not seen
# Settings of one arm. Another algorithm gets those of its preset.
OF_THE_ARM = (
    *("algo=", "arm=", "run_dir="),
    *("advantage.", "critic.", "exploration.", "history.", "ranking.", "reflection.", "replay."),
)


def next_commands(
    experiment: str, settings: Sequence[str], config: R3Config, *, last_step: int, program: str = "r3"
) -> list[str]:
    """Shell commands for a run that has ended, for the directory in which its own command was
    typed.

    The first opens it in a browser. An evaluation is suggested for problems known without a hub;
    a second algorithm, with the command that compares the two, if the run has held-out problems.

    Args:
        experiment: NAME of experiment=NAME.
        settings: the other settings of the run's command line.
        last_step: the run's last.
        program: how `r3` was called."""
    run = _short(config.run_dir)
    commands = [["view", run], ["show", run, "--step", str(last_step)]]
    if words := _evaluation(config):
        commands.append(["eval", run, *words])
    if config.held_out.path is not None:
        first, second = config.algorithm.compared
        other = first if config.algorithm_name != first else second
        kept = [one for one in settings if not one.lstrip("+").startswith(OF_THE_ARM)]
        other_run = f"{run}_{other}"
        train = ["train", f"experiment={experiment}", f"algo={other}", *kept, f"run_dir={other_run}"]
        commands += [train, ["compare", run, other_run]]
    return [shlex.join([program, *words]) for words in commands]


def _evaluation(config: R3Config) -> list[str]:
    """Arguments of `r3 eval`: problems not trained on; none where the run knows none."""
    limit = ["--max-new-tokens", str(config.rollout.max_new_tokens)]
    if config.data.path.startswith(ENVIRONMENT) or config.data.sources:
        return []
    if config.data.path.startswith(GENERATED):
        return ["--benchmark", config.data.path, *limit, f"data.reasoning_gym.seed={OTHER_SEED}"]
    if config.held_out.path is not None and not config.held_out.path.startswith(GENERATED):
        split = [] if Path(config.held_out.path).exists() else [f"data.split={config.held_out.split}"]
        return ["--benchmark", config.held_out.path, *limit, *split]
    return ["--benchmark", "math500"] if is_on_the_hub(config.data.path) else []


def _short(path: str) -> str:
    """Relative to here, if it is below."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
