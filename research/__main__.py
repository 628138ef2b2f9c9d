"""`python -m research`: learning experiments on two cores, and the tables of their evidence."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from r3_openrlhf.method.errors import ConfigError, R3Error, quoted
from research import load

MODEL = "making the model"
DIRECTORY = click.Path(path_type=Path, file_okay=False)
of_run = click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
of_experiment = click.option(
    "--experiment",
    default="lab",
    show_default=True,
    help="A file of research/experiments or configs/experiment.",
)
of_model = click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False),
    help="A Hugging Face directory, like RUN/final_model; default: model.path.",
)
as_json_too = click.option("--json", "as_json", is_flag=True, help="The numbers as JSON.")
as_tuning = click.option(
    "--tuning", is_flag=True, help="Of runs that choose a rate, and are not reported."
)


class ErrorsAreSentences(click.Group):
    """Print an R3Error as its sentence."""

    def invoke(self, context: click.Context):
        """Raise what `click` prints for an R3Error."""
        try:
            return super().invoke(context)
        except R3Error as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=ErrorsAreSentences)
def main() -> None:
    """Compare algorithms over seeds on a model of a million parameters, with controls for each part of R³.

    \b
    python -m research study                                     six arms x five seeds into runs/lab
    python -m research study --arms grpo,r3 --seeds 1,2 --jobs 1 replay.k=4
    python -m research study --arms r3 --arm "slow=grpo train.learning_rate=1e-4"
    r3 compare runs/lab
    python -m research agents                                    estimators of trajectories, in a small world
    python -m research controls                                  on the model that the study starts from
    python -m research shares --experiment lab_own_skills        which regime a run starts in
    python -m research reading --experiment lab_own_skills model.path=research.facts:reads
    python -m research train algo=r3 train.seed=1 run_dir=runs/try

    The same experiment on the whole stack: r3 train experiment=research/experiments/lab.yaml algo=r3.
    """


@main.command()
@of_run
@of_experiment
def train(settings: tuple[str, ...], experiment: str) -> None:
    """One run in this process. The same command again does nothing once it has finished."""
    from r3_openrlhf.runs.directory import RunDirectory
    from research.loop import Lab

    config = load(experiment, list(settings))
    # before the model, which takes a minute to build
    RunDirectory(config.run_dir).check(config)
    with _display() as display:
        display.phase(MODEL)
        lab = Lab(config)
        display.phase("training")
        run = lab.train(progress=lambda tokens: display.progress(tokens, f"{tokens:,} tokens"))
    for line in run.read_evaluations():
        click.echo(
            f"step {line['step']}, {line['generated_tokens']} tokens: held-out accuracy {line['pass_at_1']:.3f}"
        )


@main.command()
@of_run
@of_experiment
@click.option(
    "--arms",
    default=None,
    help="Comma-separated presets of configs/algo, ablations or controls (docs/lab.md).",
)
@click.option(
    "--arm",
    "own_arms",
    multiple=True,
    metavar="'NAME=PRESET [KEY=VALUE]...'",
    help="An arm with settings of its own, like its learning rate; may be repeated.",
)
@click.option("--seeds", default=None, help="Comma-separated whole numbers.")
@click.option(
    "--jobs",
    default=2,
    show_default=True,
    type=click.IntRange(min=1),
    help="Runs at the same time.",
)
@click.option(
    "--out",
    type=DIRECTORY,
    default="runs/lab",
    show_default=True,
    help="Directory of the run directories.",
)
@click.option(
    "--evidence",
    "keep",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that keeps what is left of every run; such runs are not repeated. `python -m research evidence` reads it.",
)
@as_tuning
def study(
    settings: tuple[str, ...],
    experiment: str,
    arms: str | None,
    own_arms: tuple[str, ...],
    seeds: str | None,
    jobs: int,
    out: Path,
    keep: Path | None,
    tuning: bool,
) -> None:
    """Every arm with every seed. Finished runs are kept; `r3 compare OUT` draws the result.

    KEY=VALUE applies to all arms, the settings in --arm to that arm. The default is six arms.
    """
    from research.study import ARMS, SEEDS, run_study

    wanted_arms = [*(arms.split(",") if arms else [] if own_arms else ARMS), *own_arms]
    try:
        wanted_seeds = [int(seed) for seed in seeds.split(",")] if seeds else SEEDS
    except ValueError as error:
        raise ConfigError(
            f"--seeds is {quoted(seeds)}; use whole numbers with commas between them, like 1,2,3"
        ) from error
    with _display() as display:
        display.phase("checking the settings, making the model, training")
        paths = run_study(
            experiment,
            arms=wanted_arms,
            seeds=wanted_seeds,
            directory=out.absolute(),
            jobs=jobs,
            overrides=settings,
            keep=keep,
            tuning=tuning,
            done=lambda path, number, of: display.line(f"{number} of {of}: {path}"),
        )
    for path in paths:
        click.echo(path)


@main.command()
@of_run
@of_experiment
@of_model
@click.option(
    "--n",
    default=16,
    show_default=True,
    type=click.IntRange(min=2),
    help="Responses per problem.",
)
@as_json_too
def controls(
    settings: tuple[str, ...], experiment: str, model: str | None, n: int, as_json: bool
) -> None:
    """Compare reflection with resampling, and the entropy rank with later outcomes, on held-out problems."""
    import tempfile
    from dataclasses import asdict

    from r3_openrlhf.runs.directory import RunDirectory
    from research.controls import entropy_rank_against_outcome, reflection_against_resampling
    from research.loop import Lab, held_out_problems

    config = load(experiment, list(settings))
    with _display() as display:
        display.phase(MODEL)
        policy = Lab(config, model_dir=model)
        with tempfile.TemporaryDirectory() as scratch:
            labels = held_out_problems(config, policy.tokenizer, RunDirectory(scratch))
        if not labels:
            raise ConfigError("held_out.path is not set; the controls need held-out problems")
        display.phase(f"reflection against resampling, {len(labels)} problems")
        reflection = reflection_against_resampling(
            policy, labels, n=n, hard_below=config.reflection.threshold
        )
        display.phase(f"entropy rank against outcome, {len(labels)} problems")
        estimates = {
            "reflection": reflection,
            "entropy_rank": entropy_rank_against_outcome(policy, labels, n=n),
        }
    if as_json:
        click.echo(json.dumps(estimates, default=asdict))
        return
    click.echo(
        "| control | quantity | mean over problems [95% interval] | problems |\n|---|---|---|---|"
    )
    for name, intervals in estimates.items():
        for quantity, interval in intervals.items():
            click.echo(f"| {name} | {quantity} | {interval} | {interval.num_problems} |")


@main.command()
@of_run
@of_experiment
@of_model
@click.option(
    "--n",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    help="Groups for each problem.",
)
@as_json_too
def shares(
    settings: tuple[str, ...], experiment: str, model: str | None, n: int, as_json: bool
) -> None:
    """Shares of all-wrong and all-right groups and of truncated responses on the training problems, before training; and in a
    world that knows the right steps, the share of right answers that are earned."""
    from dataclasses import asdict

    from r3_openrlhf.problems.sources import load_problems
    from research.controls import shares as shares_of
    from research.loop import Lab

    config = load(experiment, list(settings))
    labels = load_problems(config.data).labels
    with _display() as display:
        display.phase(MODEL)
        policy = Lab(config, model_dir=model)
        display.phase(f"sampling {n} groups of {len(labels)} problems")
        measured = asdict(shares_of(policy, labels, n=n))
    if as_json:
        click.echo(json.dumps(measured))
        return
    for name, share in measured.items():
        click.echo(f"{name}: " + ("nothing to count" if share is None else f"{share:.1%}"))


@main.command()
@of_run
@of_experiment
@of_model
@as_json_too
def reading(
    settings: tuple[str, ...], experiment: str, model: str | None, as_json: bool
) -> None:
    """Measure what a right answer in the prompt is worth to the model, on training problems: a teacher that cannot read teaches
    nothing."""
    from dataclasses import asdict

    from r3_openrlhf.problems.sources import load_problems
    from research.controls import reading as measure_reading
    from research.loop import Lab

    config = load(experiment, list(settings))
    labels = load_problems(config.data).labels
    with _display() as display:
        display.phase(MODEL)
        policy = Lab(config, model_dir=model)
        display.phase(f"{len(labels)} problems, with and without a right answer in the prompt")
        measured = measure_reading(policy, labels)
    if as_json:
        click.echo(json.dumps(measured, default=asdict))
        return
    for name, interval in measured.items():
        click.echo(f"{name}: {interval}")


@main.command()
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--variants",
    default="history,state",
    show_default=True,
    help="Keys are remembered, or shown.",
)
@click.option(
    "--arms", default=None, help="Comma-separated; default: all of them (docs/agents.md)."
)
@click.option(
    "--policy", default="table", show_default=True, type=click.Choice(("table", "network"))
)
@click.option(
    "--seeds",
    default=10,
    show_default=True,
    type=click.IntRange(min=1),
    help="Runs of each arm.",
)
@click.option(
    "--first-seed", default=1, show_default=True, help="To tune on seeds that are not reported."
)
@click.option(
    "--tokens", default=None, type=click.IntRange(min=1), help="Generated tokens of a run."
)
@click.option("--learning-rate", default=None, type=click.FloatRange(min=0, min_open=True))
@click.option(
    "--out",
    type=DIRECTORY,
    default="runs/lab_agents",
    show_default=True,
    help="Runs in it are not repeated.",
)
@as_json_too
def agents(
    settings: tuple[str, ...],
    variants: str,
    arms: str | None,
    policy: str,
    seeds: int,
    first_seed: int,
    tokens: int | None,
    learning_rate: float | None,
    out: Path,
    as_json: bool,
) -> None:
    """Estimators of trajectories in a small world: half a second a run on one core, five with the network.

    KEY=VALUE is a part of the recipe (trajectories, minibatches, rescale, forgets) or a key of `agents`, for all arms.
    """
    from dataclasses import asdict

    from research.agents import TOKENS, run_study, table
    from research.agents_table import ARMS, Recipe

    if policy == "network":
        import torch

        torch.set_num_threads(1)  # matrices as small as these only wait for a second thread
    with _display() as display:
        display.phase("training")
        runs = run_study(
            out,
            variants=variants.split(","),
            arms=arms.split(",") if arms else list(ARMS),
            seeds=range(first_seed, first_seed + seeds),
            policy=policy,
            recipe=Recipe.parse(settings),
            tokens=tokens or TOKENS,
            learning_rate=learning_rate,
            progress=lambda number, of: display.progress(
                number, f"{number} of {of} runs ended"
            ),
        )
    click.echo("\n".join(json.dumps(asdict(run)) for run in runs) if as_json else table(runs))


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--add", type=DIRECTORY, help="Put the runs of `agents --out DIRECTORY` into FILE first."
)
def agents_evidence(file: Path, add: Path | None) -> None:
    """Compare the runs of the lab for agents in a file: each arm at its own rate, and all at equal rates."""
    from research import agents_evidence as evidence_of_agents
    from research.agents import AgentRun

    runs = evidence_of_agents.read(file) if file.is_file() else []
    if add is not None:
        more = (
            AgentRun(**json.loads(path.read_text(encoding="utf-8")))
            for path in sorted(add.glob("*.json"))
        )
        runs = evidence_of_agents.write(file, runs, more)
    click.echo(evidence_of_agents.tables(runs))


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--reference",
    metavar="ARM",
    help="The arm that the others are compared with. [default: grpo]",
)
@as_tuning
@click.option(
    "--add",
    multiple=True,
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="A run of `r3 train` that has finished is put into FILE first. May be given several times.",
)
@click.option(
    "--without",
    multiple=True,
    type=int,
    metavar="SEED",
    help="Leave this seed out. May be given several times.",
)
@click.option(
    "--arms",
    help="Compare these alone, up to the tokens that all of theirs have; commas between them.",
)
@click.option(
    "--equal",
    default="generated",
    show_default=True,
    type=click.Choice(("generated", "trained", "computed")),
    help="Tokens of which all arms have the same number; computed: trained ones and a third of the teacher's.",
)
def evidence(
    file: Path,
    reference: str | None,
    tuning: bool,
    add: tuple[Path, ...],
    without: tuple[int, ...],
    arms: str | None,
    equal: str,
) -> None:
    """Compare the runs in a file of evidence: one row for each arm.

    \b
    python -m research evidence research/evidence/lab_own_skills.jsonl.zst
    python -m research evidence my_experiment.jsonl.zst --add runs/grpo-1 --add runs/r3-1
    """
    from r3_openrlhf.runs.directory import RunDirectory
    from research import evidence as files

    for run in add:
        files.add(file, RunDirectory.open(run), tuning=tuning)
    chosen = arms.split(",") if arms else ()
    regime = files.read_regime(
        file, tuning=tuning, without=without, arms=chosen, reference=reference, equal=equal
    )
    click.echo(files.regime_table(regime))


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--arm", required=True, help="The part of the names before _lrRATE or _cCOEF_lrRATE."
)
def tuned(file: Path, arm: str) -> None:
    """Print the settings of an arm that did best in the tuning runs of a file of evidence."""
    from research import evidence as files

    chosen = files.tuned(file, arm)
    click.echo(" ".join(f"{key}={value}" for key, value in chosen.items()))


def _display():
    from r3_openrlhf.runs.display import Display

    return Display(sys.stderr)


if __name__ == "__main__":
    main(prog_name="python -m research")
