"""`r3 plan`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import nearest

if TYPE_CHECKING:
    from r3_openrlhf.config import R3Config

OWN = ("gpu", "nodes", "mean_tokens", "problems", "network_gbit")


@click.command()
@click.argument(
    "settings",
    nargs=-1,
    metavar="experiment=NAME [gpu=NAME] [nodes=N] [KEY=VALUE]...",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: bytes, seconds.")
def plan(settings: tuple[str, ...], as_json: bool) -> None:
    """Estimate a run: GPU memory by phase and part, hours, disk. Arithmetic; nothing is started.

    \b
    r3 plan experiment=r3_1p5b_deepscaler_8gpu
    r3 plan experiment=r3_7b_deepscaler_multinode gpu=a100-80gb nodes=2 mean_tokens=3000

    \b
    gpu=NAME          h100-80gb (default), h200-141gb, h800-80gb, a100-80gb, a100-40gb, l40s-48gb, rtx4090-24gb
    nodes=N           instead of cluster.num_nodes
    mean_tokens=N     of a response; default: half of rollout.max_new_tokens
    problems=N        how many there are, where neither the configuration nor a file here says it
    network_gbit=N    of a GPU to other nodes, Gbit/s; default: 400 for H100, 200 for A100
    every other KEY=VALUE as for r3 train

    The formulas and their sources: docs/cluster.md. Exit code 1 where the run does not fit.
    """
    from r3_openrlhf.config.loading import load_config, split_settings
    from r3_openrlhf.runs.models.checks import without_packing
    from r3_openrlhf.runs.models.locate import locate_model
    from r3_openrlhf.runs.models.routers import unknown_router
    from r3_openrlhf.runs.planning.forecast import make_plan, not_planned, num_problems_of
    from r3_openrlhf.runs.planning.formulas import RATES, SLOW
    from r3_openrlhf.runs.planning.hardware import DEFAULT, GPUS
    from r3_openrlhf.runs.planning.history_forecast import history_warnings
    from r3_openrlhf.runs.planning.shapes import shape_of
    from r3_openrlhf.runs.planning.table import plan_as_json, plan_table
    from r3_openrlhf.runs.planning.verdict import check_split, fits, remedies

    name, settings_of_run = split_settings(settings, command="plan")
    own = {
        key: value
        for key, _, value in (setting.partition("=") for setting in settings_of_run)
        if key in OWN
    }
    numbers = {key: _number(key, value) for key, value in own.items() if key != "gpu"}
    others = [setting for setting in settings_of_run if setting.partition("=")[0] not in OWN]
    others += [f"cluster.num_nodes={numbers['nodes']}"] if "nodes" in numbers else []
    config = load_config(name, others)
    if (card := own.get("gpu", DEFAULT)) not in GPUS:
        raise ConfigError(
            f"gpu is {quoted(card)}, which the plan does not know; {nearest(card, list(GPUS))}"
        )
    gpu, located = GPUS[card], locate_model(config.model.path)
    if "network_gbit" in numbers:
        gpu = replace(gpu, network=numbers["network_gbit"] * 1e9 / 8)
    is_here = (Path(located) / "config.json").is_file()
    try:
        shape = shape_of(located if is_here else config.model.path)
    except ConfigError as error:
        if not is_here:
            raise
        click.echo(f"Nothing is planned: {error}")
        return
    check_split(config, heads=shape.heads, kv_heads=shape.kv_heads)
    if config.rollout.routing_replay and not shape.expert_bytes:
        raise ConfigError(unknown_router(config))
    config, changed = without_packing(config, shape.packing_fault)
    if (unknown := not_planned(config)) is not None:
        raise ConfigError(
            f"the plan does not know what {unknown} takes; leave it out to plan without it"
        )
    num_problems = numbers.get("problems") or num_problems_of(config) or _counted(config)
    if num_problems is None:
        raise ConfigError(
            f"the number of problems of data.path={config.data.path} is not known here; add problems=N"
        )
    mean = numbers.get("mean_tokens")
    found, slow = (
        make_plan(config, shape, gpu, num_problems=num_problems, mean_tokens=mean, rates=rates)
        for rates in (RATES, SLOW)
    )
    fitting = fits(config, shape, gpu)
    said: dict[str, Any] = {
        "fits": fitting,
        "remedies": [] if fitting else remedies(config, shape, gpu),
        "warnings": changed
        + history_warnings(
            config,
            num_problems=num_problems,
            mean_tokens=found.mean_tokens,
            expert_bytes=found.expert_bytes,
        ),
    }
    if as_json:
        click.echo(json.dumps(plan_as_json(found, slow, **said)))
    else:
        from rich.console import Console

        width = None if sys.stdout.isatty() else 120
        Console(file=sys.stdout, width=width).print(plan_table(found, slow, **said), crop=False)
    if not fitting:
        sys.exit(1)


def _number(key: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{key} is {quoted(value)}; use a whole number from 1")
    return int(value)


def _counted(config: R3Config) -> int | None:
    """Count the problems of files that are here; None: some are elsewhere, or nothing here reads them.

    DataError as `load_problems`."""
    if not all(Path(part.path).exists() for part in config.data.parts.values() if part.path):
        return None
    try:
        from r3_openrlhf.problems.sources import load_problems
    except ImportError:
        return None
    with_rows = config.reward.reads_rows
    return len(load_problems(config.data, seed=config.train.seed, with_rows=with_rows).labels)
