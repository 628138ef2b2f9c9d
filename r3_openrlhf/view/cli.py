"""`r3 view`."""

from __future__ import annotations

import getpass
import os
import re
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from r3_openrlhf.config.access import check_access, new_token, read_token
from r3_openrlhf.method.errors import R3Error, quoted

if TYPE_CHECKING:
    from r3_openrlhf.view.library import Library

TOKEN = "R3_VIEW_TOKEN"


@click.command("view")
@click.argument("paths", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="0: any free port.",
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    help=f"File with the token that readers must show; else {TOKEN}; else a new one, in the printed address.",
)
@click.option(
    "--root-path",
    default="",
    metavar="/PATH",
    help="Where a proxy has the pages, as Open OnDemand or Jupyter's.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
def view(
    paths: tuple[str, ...],
    port: int,
    host: str,
    token_file: str | None,
    root_path: str,
    no_browser: bool,
) -> None:
    """Look at runs and evaluations in a browser: curves, groups, responses, tokens.

    RUN is a run directory, a directory of `r3 eval`, or one that holds some. Nothing in it is
    changed, and a run may still train.

    \b
    r3 view runs/quickstart
    r3 view runs/                               all of them, over each other
    r3 view runs/quickstart --no-browser        on a cluster: prints the ssh line for your laptop
    r3 view runs/ --port 8765 --root-path /user/me/proxy/8765       in Jupyter, with jupyter-server-proxy
    """
    from r3_openrlhf.view.library import Library

    library = Library(paths)
    token = read_token(token_file, TOKEN)
    check_access(host, token, variable=TOKEN, name="token")
    if not re.fullmatch(r"(/[\w.~@:+-]+)*", root_path, re.ASCII):
        raise R3Error(
            f"--root-path is {quoted(root_path)}; use /words/of/a/path, without a / at its end"
        )
    serve(
        library,
        host=host,
        port=port,
        token=token,
        root_path=root_path,
        opens_browser=not no_browser,
    )


@click.command("report")
@click.argument("paths", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The page to write.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
def report(paths: tuple[str, ...], out: Path, overwrite: bool) -> None:
    """Write runs into one page to share: changes, curves, settings.

    The page has no scripts and needs no other file, so it opens as an attachment. At most 3 MB.

    \b
    r3 report runs/quickstart --out report.html
    r3 report runs/r3_1 runs/grpo_1 --out report.html --overwrite
    """
    from r3_openrlhf.runs.files import replacing
    from r3_openrlhf.view.library import Library
    from r3_openrlhf.view.report import report as report_of

    if out.exists() and not overwrite:
        raise R3Error(f"--out {out} exists; choose another file, or add --overwrite")
    page = report_of(Library(paths)).encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as file:
            file.write(page)
    except OSError as error:
        raise R3Error(f"--out {out} cannot be written: {error.strerror}") from error
    click.echo(out)
    click.echo(f"{len(page) / 1e6:.1f} MB", err=True)


def serve(
    library: Library,
    *,
    host: str,
    port: int,
    token: str | None,
    root_path: str = "",
    opens_browser: bool,
) -> None:
    """Serve the pages until the process is asked to end. R3Error: the port is taken.

    token: None: a new one, which the printed address has."""
    import uvicorn

    from r3_openrlhf.view.app import create_app

    query = "" if token else f"?token={(token := new_token())}"
    config = uvicorn.Config(
        create_app(library, token=token, root_path=root_path),
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise R3Error(
                f"--port {port} on --host {host} cannot be used: {error.strerror}; choose another"
            ) from error
        listener.listen(128)
        port = listener.getsockname()[1]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}{root_path}/{query}"
        click.echo(address)
        if "SSH_CONNECTION" in os.environ:
            local = f"127.0.0.1:{port}"
            tunnel = f"ssh -N -L {port}:{local} {getpass.getuser()}@{socket.getfqdn()}"
            click.echo(
                f"From your own machine: {tunnel}, then http://{local}{root_path}/{query}",
                err=True,
            )
        if not query:
            click.echo(
                "The browser asks for a name and a password: any name, and the token.", err=True
            )
        click.echo("Ctrl-C ends it.", err=True)
        with ExitStack() as stack:
            if opens_browser and query and _has_screen():
                stack.enter_context(_browser(address))

            def end(*_: object) -> None:
                stack.close()
                os._exit(0)  # a thread that makes a page would keep the process

            signal.signal(signal.SIGINT, end)
            server = uvicorn.Server(config)
            # uvicorn/server.py:332 waits for the code that makes pages; SIGTERM keeps its default action
            server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
            server.run(sockets=[listener])


@contextmanager
def _browser(address: str) -> Iterator[None]:
    """Open it through a file of this user: the list of processes shows a browser's arguments."""
    with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
        page.write(f'<meta http-equiv="refresh" content="0; url={address}">')
        page.flush()
        webbrowser.open(f"file://{page.name}")
        yield


def _has_screen() -> bool:
    """Return True if a browser has a screen. Else webbrowser would look for one in this terminal."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or any(
        name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
