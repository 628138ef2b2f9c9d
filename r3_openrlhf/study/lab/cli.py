"""`r3 lab`: learning experiments on two cores."""

from __future__ import annotations

import json
from pathlib import Path

import click

from r3_openrlhf.method.errors import ConfigError, quoted


@click.group()
def lab() -> None:
    """Arms x seeds of a million-parameter model, and controls that could show R³ to be useless.

    \b
    r3 lab study                                     six arms x five seeds into runs/lab
    r3 lab study --arms grpo,r3 --seeds 1,2 --jobs 1 replay.k=4
    r3 lab study --arms r3 --arm "slow=grpo train.learning_rate=1e-4"
    r3 compare runs/lab
    r3 lab agents                                    estimators of trajectories, in a small world
    r3 lab controls                                  on the model that the study starts from
    r3 lab shares --experiment lab_own_skills        which regime a run starts in
    r3 lab train algo=r3 train.seed=1 run_dir=runs/try

    The same experiment on the whole stack: r3 train experiment=lab algo=r3.
    """


@lab.command()
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--experiment", default="lab", show_default=True, help="A file of configs/experiment.")
def train(settings: tuple[str, ...], experiment: str) -> None:
    """One run in this process. The same command again does nothing once it has finished."""
    from rich.progress import Progress

    from r3_openrlhf.config.loading import load_config
    from r3_openrlhf.runs.directory import RunDirectory
    from r3_openrlhf.study.lab.loop import Lab

    config = load_config(experiment, list(settings))
    RunDirectory(config.run_dir).check(config)  # before the model, which takes a minute to build
    with Progress(console=_stderr()) as bar:
        task = bar.add_task("generated tokens", total=config.train.max_generated_tokens)
        run = Lab(config).train(progress=lambda tokens: bar.update(task, completed=tokens))
    for line in run.read_evaluations():
        click.echo(
            f"step {line['step']}, {line['generated_tokens']} tokens: held-out accuracy {line['pass_at_1']:.3f}"
        )


@lab.command()
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--experiment", default="lab", show_default=True, help="A file of configs/experiment.")
@click.option(
    "--arms", default=None, help="Comma-separated presets of configs/algo and configs/lab, or controls (docs/lab.md)."
)
@click.option(
    "--arm",
    "own_arms",
    multiple=True,
    metavar="'NAME=PRESET [KEY=VALUE]...'",
    help="An arm with settings of its own, like its learning rate; may be repeated.",
)
@click.option("--seeds", default=None, help="Comma-separated whole numbers.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1), help="Runs side by side.")
@click.option("--out", default="runs/lab", show_default=True, help="Directory of the run directories.")
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory that keeps a small file of every run; runs that it has are not run again. `r3 evidence` reads it.",
)
def study(
    settings: tuple[str, ...],
    experiment: str,
    arms: str | None,
    own_arms: tuple[str, ...],
    seeds: str | None,
    jobs: int,
    out: str,
    evidence: Path | None,
) -> None:
    """Every arm with every seed. Finished runs are kept; `r3 compare OUT` draws the result.

    KEY=VALUE holds for all arms, what stands in --arm for that arm. Without --arms and --arm: six arms.
    """
    from rich.progress import Progress

    from r3_openrlhf.study.lab.study import ARMS, SEEDS, run_study

    wanted_arms = [*(arms.split(",") if arms else [] if own_arms else ARMS), *own_arms]
    try:
        wanted_seeds = [int(seed) for seed in seeds.split(",")] if seeds else SEEDS
    except ValueError as error:
        raise ConfigError(
            f"--seeds is {quoted(seeds)}; use whole numbers with commas between them, like 1,2,3"
        ) from error
    if Path(out).exists() and not Path(out).is_dir():
        raise ConfigError(f"--out {out} is a file; choose a directory")
    with Progress(console=_stderr()) as bar:
        task = bar.add_task("runs", total=len(wanted_arms) * len(wanted_seeds))

        def done(path: str, number: int, of: int) -> None:
            bar.console.print(f"{number} of {of}: {path}")
            bar.advance(task)

        paths = run_study(
            experiment,
            arms=wanted_arms,
            seeds=wanted_seeds,
            directory=Path(out).absolute(),
            jobs=jobs,
            overrides=settings,
            evidence=evidence,
            done=done,
        )
    for path in paths:
        click.echo(path)


@lab.command()
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--experiment", default="lab", show_default=True, help="A file of configs/experiment.")
@click.option("--model", default=None, help="A Hugging Face directory, like RUN/final_model; default: model.path.")
@click.option("--n", default=16, show_default=True, type=click.IntRange(min=2), help="Responses per problem.")
@click.option("--out", default=None, help="Write the numbers to this JSON file as well.")
def controls(settings: tuple[str, ...], experiment: str, model: str | None, n: int, out: str | None) -> None:
    """Reflection against resampling, and the entropy rank against what happens later, on held-out problems."""
    import tempfile
    from dataclasses import asdict

    from r3_openrlhf.config.loading import load_config
    from r3_openrlhf.runs.directory import RunDirectory
    from r3_openrlhf.study.lab.controls import entropy_rank_against_outcome, reflection_against_resampling
    from r3_openrlhf.study.lab.loop import Lab, held_out_problems

    config = load_config(experiment, list(settings))
    if model is not None and not Path(model).is_dir():
        raise ConfigError(f"--model {model} is no directory; give one in Hugging Face format, like RUN/final_model")
    if out is not None and (Path(out).is_dir() or not Path(out).absolute().parent.is_dir()):
        raise ConfigError(f"--out {out} cannot be written: it is a directory, or its directory does not exist")
    policy = Lab(config, model_dir=model)
    with tempfile.TemporaryDirectory() as scratch:
        labels = held_out_problems(config, policy.tokenizer, RunDirectory(scratch))
    if not labels:
        raise ConfigError("held_out.path is not set; the controls need held-out problems")
    found = {
        "reflection": reflection_against_resampling(policy, labels, n=n, hard_below=config.reflection.threshold),
        "entropy_rank": entropy_rank_against_outcome(policy, labels, n=n),
    }
    click.echo("| control | quantity | mean over problems [95% interval] | problems |\n|---|---|---|---|")
    for name, intervals in found.items():
        for quantity, interval in intervals.items():
            click.echo(f"| {name} | {quantity} | {interval} | {interval.num_problems} |")
    if out:
        plain = {name: {key: asdict(value) for key, value in part.items()} for name, part in found.items()}
        Path(out).write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


@lab.command()
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--experiment", default="lab", show_default=True, help="A file of configs/experiment.")
@click.option("--model", default=None, help="A Hugging Face directory, like RUN/final_model; default: model.path.")
@click.option("--n", default=4, show_default=True, type=click.IntRange(min=1), help="Groups for each problem.")
def shares(settings: tuple[str, ...], experiment: str, model: str | None, n: int) -> None:
    """Which regime a run starts in: all-wrong and all-right groups, truncated responses, on the training problems, and how many of
    the right answers of a world are earned."""
    from dataclasses import asdict

    from r3_openrlhf.config.loading import load_config
    from r3_openrlhf.problems.sources import load_problems
    from r3_openrlhf.study.lab.controls import shares as shares_of
    from r3_openrlhf.study.lab.loop import Lab

    config = load_config(experiment, list(settings))
    if model is not None and not Path(model).is_dir():
        raise ConfigError(f"--model {model} is no directory; give one in Hugging Face format, like RUN/final_model")
    labels = load_problems(config.data).labels
    found = shares_of(Lab(config, model_dir=model), labels, n=n)
    for name, share in asdict(found).items():
        click.echo(f"{name}: " + ("nothing to count" if share is None else f"{share:.1%}"))


@lab.command()
@click.option(
    "--variants",
    default="history,state",
    show_default=True,
    help="history: the keys must be remembered; state: shown.",
)
@click.option("--arms", default=None, help="Comma-separated; default: all of them (docs/agents.md).")
@click.option(
    "--policy",
    default="table",
    show_default=True,
    type=click.Choice(("table", "network")),
    help="What plays: a table of logits, or a recurrent network of 35,000 parameters.",
)
@click.option(
    "--seeds", default=10, show_default=True, type=click.IntRange(min=1), help="Runs of each arm: seeds 1, 2, ..."
)
@click.option("--tokens", default=None, type=click.IntRange(min=1), help="Generated tokens of a run.")
@click.option("--learning-rate", default=None, type=click.FloatRange(min=0, min_open=True))
@click.option(
    "--out", default="runs/lab_agents", show_default=True, help="A directory; what is in it is not run again."
)
def agents(
    variants: str,
    arms: str | None,
    policy: str,
    seeds: int,
    tokens: int | None,
    learning_rate: float | None,
    out: str,
) -> None:
    """Estimators of trajectories in a small world: half a second a run on one core, five with the network."""
    from r3_openrlhf.study.lab.agents import TOKENS, run_study, table
    from r3_openrlhf.study.lab.agents_table import ARMS

    if Path(out).exists() and not Path(out).is_dir():
        raise ConfigError(f"--out {out} is a file; choose a directory")
    if policy == "network":
        import torch

        torch.set_num_threads(1)  # matrices as small as these only wait for a second thread
    runs = run_study(
        Path(out),
        variants=variants.split(","),
        arms=arms.split(",") if arms else list(ARMS),
        seeds=range(1, seeds + 1),
        policy=policy,
        tokens=tokens or TOKENS,
        learning_rate=learning_rate,
    )
    click.echo(table(runs))


def _stderr():
    from rich.console import Console

    return Console(stderr=True)
