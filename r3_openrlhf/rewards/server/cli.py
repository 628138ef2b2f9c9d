"""`r3 serve-rewards`."""

import logging
import os
from dataclasses import fields, replace
from typing import Any

import click

from r3_openrlhf.config import CodeConfig, RewardConfig
from r3_openrlhf.config.access import new_token, read_token
from r3_openrlhf.rewards.server.settings import ServerSettings

_REWARD = RewardConfig()
MAX_HEADER_BYTES = 32 * 2**10
DRAIN_S = 10
_FROM_1 = click.IntRange(1, 2**20)


def _option(
    name: str, field: str, text: str, *, of: object = ServerSettings, type: object = None
) -> Any:
    """Make an option whose default is the one of the settings."""
    return click.option(
        name, field, default=getattr(of, field), show_default=True, help=text, type=type
    )


@click.command("serve-rewards")
@_option("--host", "host", "Address to listen on.")
@_option(
    "--port", "port", "0: any free port, printed at the start.", type=click.IntRange(0, 65535)
)
@_option(
    "--task",
    "task",
    "A grader of yours, my_module:function, which items may name besides ours.",
)
@click.option(
    "--workers",
    "num_workers",
    type=int,
    default=lambda: len(os.sched_getaffinity(0)),
    help="Grading processes.  [default: cores of this process]",
)
@_option("--timeout", "timeout_s", "Seconds for one response.", of=_REWARD)
@click.option("--length-reward/--no-length-reward", default=True, show_default=True)
@_option("--length-reward-max-tokens", "length_reward_max_tokens", "L_max.", of=_REWARD)
@_option(
    "--code-seconds-per-test",
    "seconds_per_test",
    "Programs: CPU seconds of a test.",
    of=_REWARD.code,
)
@_option("--code-seconds", "seconds", "Programs: seconds of all tests.", of=_REWARD.code)
@_option("--code-memory-mb", "memory_mb", "Programs: MB of a test.", of=_REWARD.code)
@click.option(
    "--code-credit", "credit", help="Programs: all, share or threshold.  [default: all]"
)
@click.option(
    "--code-threshold",
    "threshold",
    type=float,
    help="Programs: share of the tests that is enough.",
)
@click.option(
    "--code-url",
    "url",
    help="Programs: a SandboxFusion server that runs them.  [default: this machine]",
)
@click.option(
    "--code-language",
    "languages",
    multiple=True,
    metavar="WORD=IMPORT_PATH",
    help="Programs: a language (docs/rewards.md); may be repeated.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    help="File with the token that callers must show; else R3_REWARD_TOKEN; else a new one, in the printed address.",
)
@_option("--max-body-mb", "max_body_mb", "MB of one request.", type=_FROM_1)
@_option("--max-pending", "max_pending_items", "Items waiting; above it 503.", type=_FROM_1)
@_option(
    "--max-pending-mb",
    "max_pending_mb",
    "MB of items that wait, with references; above it 503.",
    type=_FROM_1,
)
@_option(
    "--max-connections",
    "max_connections",
    "Connections at once, also idle ones; above it 503.",
    type=_FROM_1,
)
@_option("--read-timeout", "read_timeout_s", "Seconds for the body of a request.", type=_FROM_1)
def serve_rewards(
    languages: tuple[str, ...], length_reward: bool, token_file: str | None, **values: Any
) -> None:
    """Serve grades and rewards over HTTP, for `reward.urls`.

    Example: r3 serve-rewards --port 5000, then reward.urls=[http://127.0.0.1:5000]
    """
    values["languages"] = {
        word: path for word, _, path in (pair.partition("=") for pair in languages)
    }
    values["length_reward_max_tokens"] = (
        values["length_reward_max_tokens"] if length_reward else None
    )
    values["code"] = CodeConfig(**_taken(CodeConfig, values))
    values["reward"] = RewardConfig(**_taken(RewardConfig, values))
    run(ServerSettings(token=read_token(token_file, "R3_REWARD_TOKEN"), **values))


def _taken(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of a class of settings out of `values`."""
    return {
        field.name: values.pop(field.name) for field in fields(kind) if field.name in values
    }


def run(settings: ServerSettings) -> None:
    """Serve until the process is asked to end. Without a token: with a new one, which the printed
    address has."""
    import uvicorn

    from r3_openrlhf.rewards.server.app import create_app

    logging.basicConfig(level=logging.INFO)
    user = "" if settings.token else f"r3:{(token := new_token())}@"
    settings = settings if settings.token else replace(settings, token=token)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=DRAIN_S,
        backlog=4096,
        http="h11",  # which bounds the bytes of the headers; httptools does not
        limit_concurrency=settings.max_connections,
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    listener = config.bind_socket()
    listener.listen(config.backlog)  # from here on callers wait instead of being refused
    host, port = listener.getsockname()[:2]
    click.echo(
        f"serving rewards on http://{user}{f'[{host}]' if ':' in host else host}:{port}",
        err=True,
    )

    uvicorn.Server(config).run(sockets=[listener])
