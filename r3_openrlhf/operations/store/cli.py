"""`r3 history`: look into a run's history store, check it, begin one."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history.connection import CONTENT_ERRORS, reading, snapshot
from r3_openrlhf.method.history.numbers import attempts, statistics
from r3_openrlhf.operations.store.verification import verify as verified

STORE_NAME = "history.sqlite"
# for lines; --json has all
LEFT_OUT = {"row", "epoch", "reason", "entropy_source"}


@click.group()
def history() -> None:
    """Inspect and check the history store of a run.

    RUN is a run directory, or the store itself. All are safe while it runs.

    \b
    Example:
      r3 history stats runs/quickstart
      r3 history show runs/quickstart problem-17
    """


def _command(function: Callable[..., dict[str, Any]]) -> click.Command:
    """Make a command of a function of one store: its result is JSON or lines, exit code 1 where it
    is not "ok"."""

    @functools.wraps(function)
    def run(run: str, as_json: bool, **options: object) -> None:
        store = Path(run, STORE_NAME) if Path(run).is_dir() else Path(run)
        if not store.exists():
            raise HistoryError(f"there is no history store at {store}")
        try:
            result = function(store, **options)
            click.echo(
                json.dumps(result, allow_nan=False) if as_json else "\n".join(_lines(result))
            )
        except CONTENT_ERRORS as error:  # read, but no table can be made
            raise HistoryError(
                f"{run} holds what cannot be there ({type(error).__name__}: {error}); `r3 history verify {run}` says where"
            ) from error
        if not result.get("ok", True):
            raise HistoryError(f"{store} is NOT SOUND; its findings are above")

    run = click.option(
        "--json", "as_json", is_flag=True, help="One JSON object on stdout instead of lines."
    )(run)
    return history.command()(click.argument("run")(run))


@_command
def stats(store: Path) -> dict[str, Any]:
    """Steps, rollouts, problems, bytes of a run's history."""
    with reading(store) as connection, snapshot(connection):
        return statistics(connection, store)


@click.argument("uid")
@_command
def show(store: Path, uid: str) -> dict[str, Any]:
    """A problem's attempts over time: verdict, reward, length, entropy.

    Rows with a step under `evicted_at` cannot be recalled any more; they wait until no checkpoint
    needs them."""
    return attempts(store, uid)


@history.command("import")
@click.argument("source")
@click.argument("settings", nargs=-1, metavar="experiment=NAME [KEY=VALUE]...")
@click.option(
    "--into",
    required=True,
    type=click.Path(path_type=Path),
    help="A new directory: history.start of the run.",
)
@click.option(
    "--problem",
    default="problem",
    show_default=True,
    help="The column with the problem's text.",
)
@click.option(
    "--solution", default="solution", show_default=True, help="The column with the response."
)
@click.option(
    "--origin",
    help="What every row says of its origin, such as 'teacher NAME'. Default: the name of SOURCE.",
)
def import_(source: str, settings: tuple[str, ...], into: Path, **options: Any) -> None:
    """Verified successes of an earlier run or a file, as the beginning of a run's history.

    The settings are those of the run to come: its prompts, its tokenizer, its grader.

    \b
    r3 history import runs/earlier --into runs/start experiment=quickstart
    r3 history import solved.jsonl --into runs/start --solution answer_text experiment=quickstart
    r3 train experiment=quickstart history.start=runs/start
    """
    from r3_openrlhf.config.loading import load_config, split_settings
    from r3_openrlhf.operations.store.importing import import_successes

    experiment, overrides = split_settings(settings, command="history import")
    # it trains nothing
    trains_nothing = (
        "replay.imported.warm_start=0",
        "replay.imported.use=both",
    )
    config = load_config(experiment, [*overrides, *trains_nothing])
    click.echo("\n".join(_lines(import_successes(source, into, config, **options))))


@_command
def verify(store: Path) -> dict[str, Any]:
    """Check pages, references, counters and stored arrays; exit code 1 if one is wrong."""
    result = verified(store)
    return {"ok": not result.findings, **result._asdict()}


def _lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each value, row and sentence."""
    for name, value in result.items():
        if not isinstance(value, list):
            yield f"{name}: {json.dumps(value, ensure_ascii=False)}"
            continue
        yield f"{name}: {len(value)}"
        for row in value:
            shown = (
                {key: row[key] for key in row if key not in LEFT_OUT}
                if isinstance(row, dict)
                else row
            )
            yield f"  {shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)}"
