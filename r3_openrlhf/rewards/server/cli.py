"""`r3 serve-rewards`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from types import FrameType

import click

from r3_openrlhf.config import CodeConfig, RewardConfig
from r3_openrlhf.config.access import read_token
from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.rewards.server.settings import ServerSettings

_REWARD = RewardConfig()
MAX_HEADER_BYTES = 32 * 2**10
DRAIN_S, DRAIN_TOLD_EVERY_S = 10, 2


@click.command("serve-rewards")
@click.option("--host", default=ServerSettings.host, show_default=True)
@click.option("--port", default=ServerSettings.port, show_default=True, help="0: any free port, printed at the start.")
@click.option(
    "--task",
    default=ServerSettings.task,
    show_default=True,
    help=f"Grader of /get_reward: {' | '.join(TASKS)}, or my_module:function.",
)
@click.option(
    "--workers",
    type=int,
    default=lambda: len(os.sched_getaffinity(0)),
    help="Grading processes.  [default: cores of this process]",
)
@click.option("--timeout", default=_REWARD.timeout_s, show_default=True, help="Seconds for one response.")
@click.option("--tokenizer", help="tokenizer.json for the length reward of /get_reward; without it there is none.")
@click.option("--length-reward/--no-length-reward", default=True, show_default=True)
@click.option("--length-reward-max-tokens", default=_REWARD.length_reward_max_tokens, show_default=True, help="L_max.")
@click.option(
    "--code-seconds-per-test",
    default=_REWARD.code.seconds_per_test,
    show_default=True,
    help="Programs: CPU seconds of a test.",
)
@click.option(
    "--code-seconds", default=_REWARD.code.seconds, show_default=True, help="Programs: seconds of all tests."
)
@click.option("--code-memory-mb", default=_REWARD.code.memory_mb, show_default=True, help="Programs: MB of a test.")
@click.option("--code-url", help="Programs: a SandboxFusion server that runs them.  [default: this machine]")
@click.option(
    "--code-language",
    multiple=True,
    metavar="WORD=IMPORT_PATH",
    help="Programs: a language (docs/code.md); may be repeated.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    help="File with the token that callers must show; else R3_REWARD_TOKEN.",
)
@click.option("--max-body-mb", default=ServerSettings.max_body_bytes // 2**20, show_default=True)
@click.option(
    "--max-pending", default=ServerSettings.max_pending_items, show_default=True, help="Items waiting; above it 503."
)
@click.option(
    "--max-pending-mb",
    default=ServerSettings.max_pending_bytes // 2**20,
    show_default=True,
    help="MB of items that wait, references and metadata included; above it 503.",
)
@click.option(
    "--max-connections",
    default=ServerSettings.max_connections,
    show_default=True,
    help="Requests at once; above it 503. Idle ones give way.",
)
@click.option(
    "--read-timeout",
    default=ServerSettings.read_timeout_s,
    show_default=True,
    help="Seconds for the body of a request.",
)
def serve_rewards(
    host: str,
    port: int,
    task: str,
    workers: int,
    timeout: float,
    tokenizer: str | None,
    length_reward: bool,
    length_reward_max_tokens: int,
    code_seconds_per_test: float,
    code_seconds: float,
    code_memory_mb: int,
    code_url: str | None,
    code_language: tuple[str, ...],
    token_file: str | None,
    max_body_mb: int,
    max_pending: int,
    max_pending_mb: int,
    max_connections: int,
    read_timeout: float,
) -> None:
    """Serve grades and rewards over HTTP, for `reward.urls` or for OpenRLHF's own --reward.remote_url.

    Example: r3 serve-rewards --port 5000, then --reward.remote_url http://127.0.0.1:5000/get_reward
    """
    try:
        settings = ServerSettings(
            host=host,
            port=port,
            token=read_token(token_file, "R3_REWARD_TOKEN"),
            task=task,
            tokenizer=tokenizer,
            max_body_bytes=max_body_mb * 2**20,
            max_pending_items=max_pending,
            max_pending_bytes=max_pending_mb * 2**20,
            max_connections=max_connections,
            read_timeout_s=read_timeout,
            reward=RewardConfig(
                length_reward_max_tokens=length_reward_max_tokens if length_reward else None,
                timeout_s=timeout,
                num_workers=workers,
                code=CodeConfig(
                    seconds_per_test=code_seconds_per_test,
                    seconds=code_seconds,
                    memory_mb=code_memory_mb,
                    url=code_url,
                    languages={word: path for word, _, path in (one.partition("=") for one in code_language)},
                ),
            ),
        )
        run(settings)
    except R3Error as error:
        raise click.ClickException(str(error)) from error


def run(settings: ServerSettings) -> None:
    """Serves until the process is asked to end."""
    import uvicorn
    from typing_extensions import override

    from r3_openrlhf.rewards.server.app import create_app
    from r3_openrlhf.rewards.server.connection import Connection

    logging.basicConfig(level=logging.INFO)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=DRAIN_S,
        backlog=4096,
        http=Connection,  # of h11, which bounds the bytes of the headers; httptools does not
        limit_concurrency=settings.max_connections,
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    listener = config.bind_socket()
    listener.listen(config.backlog)  # from here on callers wait instead of being refused
    host, port = listener.getsockname()[:2]
    click.echo(f"serving rewards on http://{f'[{host}]' if ':' in host else host}:{port}", err=True)

    class Server(uvicorn.Server):
        @override
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # uvicorn says nothing at this log level while it drains (server.py:351)
            if not self.should_exit:
                click.echo(
                    f"stopping: requests in progress have up to {DRAIN_S} s; Ctrl-C again ends at once", err=True
                )
            super().handle_exit(sig, frame)

        @override
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            telling = asyncio.create_task(self.tell())
            try:
                await super().shutdown(sockets)
            finally:
                telling.cancel()

        async def tell(self) -> None:
            for left in range(DRAIN_S, 0, -DRAIN_TOLD_EVERY_S):
                if busy := len(self.server_state.tasks):
                    click.echo(f"stopping: {busy} in progress, at most {left} s to go", err=True)
                await asyncio.sleep(DRAIN_TOLD_EVERY_S)

    Server(config).run(sockets=[listener])
