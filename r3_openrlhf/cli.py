"""The command `r3`: results to stdout, progress and errors to stderr; a mistake: exit code 1."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shlex
import sys
import tempfile
import tomllib
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from r3_openrlhf import __version__
from r3_openrlhf.method.errors import R3Error, shortened, without_secrets
from r3_openrlhf.method.open_table import looking_only
from r3_openrlhf.runs.stop_request import RunInterrupted

if TYPE_CHECKING:
    from r3_openrlhf.config import R3Config
    from r3_openrlhf.runs.directory import RunDirectory

# Each command loads its own modules when it is called: `r3 --help` imports no framework. The last
# word is an extra of pyproject.toml: its needs beyond the smallest installation.
ELSEWHERE = {
    "attack-rewards": ("evaluation.attacks.cli", "attack_rewards", "eval"),
    "check-tests": ("evaluation.check_tests", "check_tests", "eval"),
    "compare": ("comparison.cli", "compare", "notebook"),
    "doctor": ("operations.doctor.cli", "doctor", None),
    "eval": ("evaluation.cli", "evaluate", "eval"),
    "history": ("operations.store.cli", "history", None),
    "plan": ("runs.planning.cli", "plan", "cluster"),
    "push": ("operations.sharing.cli", "push", "eval"),
    "report": ("view.cli", "report", "view"),
    "serve-rewards": ("rewards.server.cli", "serve_rewards", "serve"),
    "status": ("operations.cluster.cli", "status", "cluster"),
    "submit": ("operations.cluster.cli", "submit", "cluster"),
    "view": ("view.cli", "view", "view"),
}
EXTRAS = {"config": "config", "show": "view"}
EXTRAS |= {name: extra for name, (_, _, extra) in ELSEWHERE.items() if extra is not None}
# These read runs of others, and run no code that a run's settings name.
LOOKING = {"compare", "history", "push", "report", "show", "status", "view"}
# Commands and options that are gone, as they were typed, with what does the same.
RETIRED = Path(__file__).with_name("config") / "retired_commands.toml"
STACK = ("deepspeed", "openrlhf", "ray", "vllm")


class R3Group(click.Group):
    """Turns R3Error into its sentence, and finds the commands that live in other packages."""

    def list_commands(self, context: click.Context) -> list[str]:
        """List the commands of this file and of ELSEWHERE, by name."""
        return sorted([*super().list_commands(context), *ELSEWHERE])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the package of a command in ELSEWHERE when it is asked for."""
        if name in ELSEWHERE:
            module, attribute, _ = ELSEWHERE[name]
            return getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
        return super().get_command(context, name)

    def resolve_command(self, context: click.Context, args: list[str]):
        """Commands in LOOKING run within `looking_only`."""
        name, command, rest = super().resolve_command(context, args)
        if name in LOOKING:
            context.with_resource(looking_only())
        return name, command, rest

    def invoke(self, context: click.Context):
        """Turn errors into sentences; no other place does."""
        try:
            return super().invoke(context)
        except R3Error as error:
            raise click.ClickException(str(error)) from error
        except click.UsageError as error:
            sentence = _about_retired(error)
            if sentence is None:
                raise
            raise click.ClickException(sentence) from error
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except MemoryError as error:
            what = f"r3 {context.invoked_subcommand} needs more memory than it has"
            raise click.ClickException(
                f"{what}; a file that it reads may be too large"
            ) from error
        except Exception as error:
            raise click.ClickException(_sentence(error, context.invoked_subcommand)) from error


def _about_retired(error: click.UsageError) -> str | None:
    """Say what does the same as an unknown command or option that once was one; None: it never was."""
    name = getattr(error, "option_name", None) or getattr(error, "command_name", None)
    if name is None or error.ctx is None:
        return None
    # the first word is the program, under whatever name it was started
    _, *command = error.ctx.command_path.split()
    typed = " ".join(["r3", *command, name])
    instead = tomllib.loads(RETIRED.read_text(encoding="utf-8")).get(typed)
    if instead is None:
        return None
    gone = name if name.startswith("-") else typed.removeprefix("r3 ")
    return f"{gone} no longer exists; use {instead}"


def _sentence(error: Exception, command: str | None) -> str:
    """Turn a foreign exception into one sentence: what to install, or the file that has the traceback."""
    package = (
        (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    )
    if package not in ("", __package__):
        extra = EXTRAS.get(command or "")
        if extra is not None and package not in STACK:
            return f"r3 {command} needs {package}, which is not installed: pip install '{__package__}[{extra}]'"
        return (
            f"r3 {command} needs {package}, which is not installed: it belongs to the training stack; make setup (CPUs) "
            "or make setup-gpu in a checkout of r3_openrlhf installs it (docs/install.md)"
        )
    first = shortened(error)
    with tempfile.NamedTemporaryFile(
        "w", prefix="r3-", suffix="-traceback.txt", delete=False, encoding="utf-8"
    ) as file:
        file.write("".join(traceback.format_exception(error)))
    return (
        f"an unexpected {type(error).__name__}{f' ({first})' if first else ''} ended the command; the traceback is in "
        f"{file.name}, please report it"
    )


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    from r3_openrlhf.runs.commit import commit_of, version_line

    if wanted and not context.resilient_parsing:
        click.echo(version_line(__version__, commit_of()))
        context.exit()


@click.group(
    cls=R3Group,
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Version and commit.",
)
def main() -> None:
    """R³ (replay, reflection, ranking rewards; arXiv 2601.19620) for OpenRLHF.

    \b
    r3 train experiment=quickstart                       a real model on two CPU cores
    r3 train experiment=r3_1p5b_deepscaler_8gpu --dry-run
    r3 show runs/quickstart                              what the run did
    """


@main.command("config")
@click.argument("section", required=False)
@click.option("--search", help="Settings whose key, meaning or values mention this word.")
def config_command(section: str | None, search: str | None) -> None:
    """Every setting of a run: default, type, unit, meaning and allowed values.

    \b
    r3 config replay
    r3 config --search entropy
    """
    from r3_openrlhf.config import map as config_map

    click.echo(
        "\n\n".join(config_map.described(one) for one in config_map.chosen(section, search))
    )


@main.command()
@click.argument("settings", nargs=-1, metavar="experiment=NAME [KEY=VALUE]...")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check everything and print the first page of the run; start nothing.",
)
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="Show the stack's whole log on the terminal; with --dry-run also the configuration and OpenRLHF's arguments.",
)
@click.option("--quiet", is_flag=True, help="Errors only.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="What the run did (or, with --dry-run, would do) as one JSON object.",
)
def train(
    settings: tuple[str, ...], dry_run: bool, verbose: bool, quiet: bool, as_json: bool
) -> None:
    """Train a model, or resume the run in run_dir.

    \b
    r3 train experiment=quickstart
    r3 train experiment=quickstart replay.k=4 run_dir=runs/k4
    r3 train experiment=quickstart reflection.enabled=false run_dir=runs/no_reflection
    r3 train experiment=r3_1p5b_deepscaler_8gpu model.path=/models/my_model --dry-run
    r3 train experiment=quickstart algo=dapo             into runs/quickstart_dapo

    \b
    algo=NAME picks a preset of configs/algo:
    stock OpenRLHF    ppo, grpo, dapo, dr_grpo, gspo, rloo, reinforce_pp, reinforce_pp_baseline, flash_reinforce
    this project      r3, r3_paper, r3_earned, r3_teacher, sdpo, srpo, rrl, exgrpo; with history.start prefix, rlep, luffy, sft_then_grpo
    trajectories      hgpo, gigpo, agent_grpo (for experiments with agents.environment)

    `r3 config` lists every key with its default and unit.
    """
    from r3_openrlhf.config.loading import load_config, split_settings

    experiment, others = split_settings(settings, command="train")
    config = load_config(experiment, others)
    if dry_run:
        _print_plan(config, as_json=as_json, verbose=verbose)
        return

    from r3_openrlhf.runs.directory import RunDirectory

    run = RunDirectory(config.run_dir)
    if run.is_finished(config):
        if not quiet:
            click.echo(
                f"This run is finished; run_dir=ANOTHER trains again. {run.path} says:",
                err=True,
            )
    else:
        _train(config, run, verbose=verbose, quiet=quiet)
    if as_json or not quiet:
        _show_summary(run, as_json=as_json)
    if not (as_json or quiet):
        from r3_openrlhf.stack.next_commands import next_commands

        # as it can be typed in the directory that this command was typed in
        program = (
            sys.argv[0]
            if sys.argv[0].endswith("/r3") and not os.path.isabs(sys.argv[0])
            else "r3"
        )
        last_step = run.read_metrics()[-1]["step"]
        commands = next_commands(
            experiment, others, config, last_step=last_step, program=program
        )
        click.echo("\n  ".join(("Next:", *commands)), err=True)


def _train(config: R3Config, run: RunDirectory, *, verbose: bool, quiet: bool) -> None:
    """Train until the run is finished. Exits with the code of a run that was stopped."""
    from r3_openrlhf.runs.lock import note_error, size_of
    from r3_openrlhf.runs.stop_request import GO_ON, GOES_ON
    from r3_openrlhf.stack.launch import train as launch

    # DeepSpeed looks for ninja, next to this command, also without an activated environment.
    programs, path = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    if programs not in path.split(os.pathsep):
        os.environ["PATH"] = f"{programs}{os.pathsep}{path}"
    before = size_of(run.events)
    try:
        launch(config, verbose=verbose, quiet=quiet)
        run.mark_finished()
    except KeyboardInterrupt as stopped:
        why = str(stopped) or "stopped"
        saved = getattr(stopped, "nothing_lost", False)
        if saved:
            click.echo(f"{why}; the same command continues from there", err=True)
        elif not quiet:
            click.echo(f"{why}{GOES_ON}", err=True)
        sys.exit(GO_ON if saved else 130)
    except RunInterrupted as interrupted:
        click.echo(str(interrupted), err=True)
        sys.exit(GO_ON)
    except R3Error as error:
        with contextlib.suppress(OSError, R3Error):  # a full disk, or a directory of others
            note_error(run, str(error), has_begun=size_of(run.events) != before)
        raise


@main.command("import-openrlhf", context_settings={"ignore_unknown_options": True})
@click.argument(
    "words",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="[NAME=VALUE]... SCRIPT | WORDS...",
)
@click.pass_context
def import_script(context: click.Context, words: tuple[str, ...]) -> None:
    """Convert a command line of OpenRLHF 0.11.2 or verl 0.9.1; print what has no counterpart.

    A script is read and never run; NAME=VALUE are variables of its environment.

    \b
    r3 import-openrlhf examples/scripts/train_ppo_ray.sh > configs/experiment/mine.yaml
    r3 import-openrlhf --actor.model_name_or_path Qwen/Qwen2.5-1.5B --data.prompt_dataset my.jsonl
    r3 import-verl MODEL_PATH=Qwen/Qwen3-1.7B run_qwen3_8b_fsdp.sh > configs/experiment/mine.yaml
    r3 train experiment=mine --dry-run
    """
    from r3_openrlhf.stack.shell_words import command_words

    importer = importlib.import_module(
        f"r3_openrlhf.stack.{(context.info_name or '').replace('-', '_')}"
    )
    command = command_words(words, importer.MODULE, importer.NAME)
    text, refused = importer.page(command.words)
    click.echo(text, nl=False)
    for note in command.notes:
        click.echo(f"Note: {note}", err=True)
    if refused is not None:
        click.echo(f"To be settled before it trains: {refused}", err=True)


main.add_command(import_script, "import-verl")


@main.command()
@click.argument("run")
@click.option("--step", type=int, help="The groups of this step.")
@click.option("--uid", help="The groups of this problem; with --step the one group.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object, with nothing rounded or cut."
)
@click.option(
    "--rollouts",
    is_flag=True,
    help="Every rollout, or those of --step and --uid, as one JSON object a line.",
)
@click.option(
    "--held-out",
    is_flag=True,
    help="The kept responses to held-out problems, as one JSON object a line.",
)
@click.option("--effect", is_flag=True, help="What replay, reflection and ranking changed.")
def show(
    run: str,
    step: int | None,
    uid: str | None,
    as_json: bool,
    rollouts: bool,
    held_out: bool,
    effect: bool,
) -> None:
    """Read a run: its summary, the groups of a step, one group, or the rollouts themselves.

    In a pipe --step and --uid print one record a line, with tabs between the columns.

    \b
    r3 show runs/quickstart
    r3 show runs/quickstart --step 9
    r3 show runs/quickstart --step 9 --uid 1f6d0c3f5a0be2b4
    r3 show runs/quickstart --rollouts > rollouts.jsonl
    r3 show runs/quickstart --effect
    """
    import shutil

    from r3_openrlhf.runs import group_report
    from r3_openrlhf.runs.directory import RunDirectory
    from r3_openrlhf.runs.effect import effect_of

    directory, width = RunDirectory.open(run), shutil.get_terminal_size().columns
    in_a_pipe = not sys.stdout.isatty()
    if rollouts or held_out:
        for rollout in directory.read_rollouts(
            step=step, uid_start=uid or "", held_out=held_out
        ):
            click.echo(json.dumps(rollout, ensure_ascii=False))
    elif effect:
        result = effect_of(directory)
        click.echo(json.dumps(asdict(result)) if as_json else "\n".join(result.sentences()))
    elif uid is not None and as_json:
        of_problem = group_report.group_rollouts(directory, step=step, uid=uid)
        click.echo(json.dumps({"uid": of_problem[0]["uid"], "rollouts": of_problem}))
    elif uid is not None and in_a_pipe:
        click.echo(
            group_report.tab_separated(
                group_report.group_records(directory, step=step, uid=uid)
            ),
            nl=False,
        )
    elif uid is not None:
        click.echo(group_report.group_page(directory, step=step, uid=uid, width=width))
    elif step is None:
        _show_summary(directory, as_json=as_json)
    elif as_json:
        click.echo(
            json.dumps({"step": step, "groups": group_report.step_groups(directory, step=step)})
        )
    elif in_a_pipe:
        click.echo(
            group_report.tab_separated(group_report.step_groups(directory, step=step)), nl=False
        )
    else:
        click.echo(group_report.step_page(directory, step=step, width=width))


def _print_plan(config: R3Config, *, as_json: bool, verbose: bool) -> None:
    """Show the plan of `r3 train`, after its checks: no weights, nothing stays but what the hub gave."""
    from r3_openrlhf.config.loading import config_to_json, config_to_yaml
    from r3_openrlhf.runs.first_page import algorithm_lines
    from r3_openrlhf.stack.launch import plan

    platform, arguments, notes, page = plan(config)
    for note in notes:
        click.echo(note, err=True)
    if as_json:
        found = {
            "configuration": json.loads(config_to_json(config)),
            "platform": platform,
            "arguments": arguments,
        }
        found["first_page"] = page.as_dict() if page is not None else None
        click.echo(without_secrets(json.dumps(found)))
    else:
        click.echo("\n".join(page.lines() if page is not None else algorithm_lines(config)))
    if page is not None:
        page.check()
    if as_json:
        return
    if not verbose:
        click.echo(
            f"Nothing was started, on {platform}; -v also prints the configuration and OpenRLHF's arguments.",
            err=True,
        )
        return
    click.echo(f"# configuration\n{without_secrets(config_to_yaml(config))}")
    click.echo(
        f"# OpenRLHF's arguments, on {platform}\npython -m openrlhf.cli.train_ppo_ray", nl=False
    )
    for argument in arguments:
        click.echo(
            f" \\\n  {argument}" if argument.startswith("--") else f" {shlex.quote(argument)}",
            nl=False,
        )
    click.echo()


def _show_summary(run: RunDirectory, *, as_json: bool) -> None:
    from r3_openrlhf.runs.report import summary, summary_table

    if as_json:
        click.echo(json.dumps(summary(run)))
    else:
        from rich.console import Console

        # on a terminal as wide as that is, elsewhere 80 columns
        width = None if sys.stdout.isatty() else 80
        Console(file=sys.stdout, width=width).print(summary_table(run), crop=False)
