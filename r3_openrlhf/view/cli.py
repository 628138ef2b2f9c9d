"""`r3 view`."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

import click

from r3_openrlhf.config.access import check_access, read_token
from r3_openrlhf.config.shell_completion import complete_runs
from r3_openrlhf.method.errors import R3Error

TOKEN = "R3_VIEW_TOKEN"


@click.command("view")
@click.argument("paths", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: any free port.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--token-file", type=click.Path(dir_okay=False), help=f"File with the token that readers must show; else {TOKEN}."
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--export", hidden=True)
def view(
    paths: tuple[str, ...], port: int, host: str, token_file: str | None, no_browser: bool, export: str | None
) -> None:
    """Look at runs and evaluations in a browser: curves, groups, responses, tokens.

    RUN is a run directory, a directory of `r3 eval`, or one that holds some. Nothing in it is
    changed, and a run may continue meanwhile.

    \b
    r3 view runs/quickstart
    r3 view runs/                               all of them, over each other
    r3 view runs/quickstart --no-browser        on a cluster: prints the ssh line for your laptop
    """
    from r3_openrlhf.view.library import Library

    if export is not None:
        raise R3Error(
            "--export no longer exists: `r3 report RUN --out report.html` writes one page to share; to share all of a run, "
            "copy its directory, which r3 view opens anywhere"
        )
    library = Library(paths)
    token = read_token(token_file, TOKEN)
    check_access(host, token, variable=TOKEN, name="token")
    serve(library, host=host, port=port, token=token, opens_browser=not no_browser)


@click.command("report")
@click.argument("paths", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The page to write.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
def report(paths: tuple[str, ...], out: Path, overwrite: bool) -> None:
    """Write runs into one page to share: changes, curves, a dozen groups with texts, settings.

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


def serve(library, *, host: str, port: int, token: str | None, opens_browser: bool) -> None:
    """Serve the pages until the process is asked to end. R3Error: the port is taken."""
    import uvicorn

    from r3_openrlhf.view.app import create_app

    config = uvicorn.Config(
        create_app(library, token=token),
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
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        click.echo(address)
        for line in _advice(port, token):
            click.echo(line, err=True)
        if opens_browser and token is None and _has_screen():
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):  # how it is asked to end
            uvicorn.Server(config).run(sockets=[listener])


def _has_screen() -> bool:
    """True if a browser has a screen. Else webbrowser would look for one in this terminal."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _advice(port: int, token: str | None) -> list[str]:
    lines = []
    if "SSH_CONNECTION" in os.environ:
        lines.append(
            f"From your own machine: ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.getfqdn()}, then "
            f"http://127.0.0.1:{port}/"
        )
    if token is not None:
        lines.append("The browser asks for a name and a password: any name, and the token.")
    lines.append("Ctrl-C ends it.")
    return lines
