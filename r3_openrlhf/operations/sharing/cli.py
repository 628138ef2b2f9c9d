"""`r3 push`: the model of a run, with its card, to a repository of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from r3_openrlhf.method.errors import R3Error, quoted, shortened

if TYPE_CHECKING:
    from r3_openrlhf.runs.directory import RunDirectory


@click.command("push")
@click.argument("run")
@click.argument("repository", metavar="ORGANISATION/NAME", required=False)
@click.option(
    "--step", type=int, help="The checkpoint of this step; default: the newest weights."
)
@click.option("--private", is_flag=True, help="A repository that is made is private.")
@click.option(
    "--card", "only_card", is_flag=True, help="Print the model card; write and send nothing."
)
def push(
    run: str, repository: str | None, step: int | None, private: bool, only_card: bool
) -> None:
    """Send the model of a run and its model card to the hub, under the account of `hf auth login`.

    A card that is in the model's folder stays as it is.

    \b
    r3 push runs/quickstart --card
    r3 push runs/quickstart my-name/my-model --private
    """
    from r3_openrlhf.operations.sharing.card import model_card
    from r3_openrlhf.runs.directory import RunDirectory, write_whole

    directory = RunDirectory.open(run)
    card = model_card(directory)
    if only_card:
        click.echo(card, nl=False)
        return
    if repository is None or repository.count("/") != 1:
        raise R3Error(f"the repository is {quoted(repository)}; use ORGANISATION/NAME")
    folder = _weights(directory, step)
    readme = folder / "README.md"
    if not readme.exists():
        write_whole(readme, card)
    click.echo(_sent(folder, repository, private=private))


def _weights(run: RunDirectory, step: int | None) -> Path:
    """Return the folder of the model. R3Error: there is none."""
    folder = run.newest_weights()
    if step is not None:
        folder = run.checkpoints / f"global_step{step}_hf"
    if not (folder / "config.json").is_file():
        raise R3Error(
            f"{folder} holds no model; let the run save one (checkpoint.save_steps), or use --step"
        )
    return folder


def _sent(folder: Path, repository: str, *, private: bool) -> str:
    """Send a folder. Returns its address. R3Error: the hub refuses it, or is not reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=folder)
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise R3Error(
            f"the hub did not take {folder} as {repository}: {shortened(error)}; `hf auth login` sets the account"
        ) from error
    return str(commit.commit_url)
