"""model.path -> a directory that Transformers, OpenRLHF and vLLM load, or a name on the hub.

Models built here and kept in a cache: "smollm2" (real, 135M parameters); "tiny", "tiny_agent" and
"tiny_code", trained in seconds (for sums, problems/agents/vault.py and programs); and
"package.module:build", your function that writes a model into the directory that it is given.
A directory in the cache is complete: it is renamed at the end. Its name ends in a hash of the code
that built it, so a changed recipe is never answered with the old model.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import is_import_path, load_object

# name -> modules of this package that make the model, the one with build(directory) first
BUILDERS = {"smollm2": ["smollm2"]} | {name: [name, "pretraining"] for name in ("tiny", "tiny_agent", "tiny_code")}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def locate_model(path: str, *, cache_dir: Path | None = None) -> str:
    """Where the model is, or will be once it is built. Reads nothing but directories, writes
    nothing.

    A model directory is returned absolute, a hub name ("org/name") as it is: whether the hub has it
    is not asked. These names are always the built models; a directory of such a name is "./tiny".
    Raises ConfigError for anything else."""
    if sources := _sources_of(path):
        recipe = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:10]
        name = re.sub(r"[^\w.-]", "_", path)
        return str((cache_dir or default_cache_dir()) / f"{name}-{recipe}")
    directory = Path(path).expanduser()
    if path and directory.is_dir():
        if not (directory / "config.json").is_file():
            raise ConfigError(f"model.path is '{path}', a directory without config.json: not a Hugging Face model")
        return str(directory.resolve())
    if _HUB_NAME.fullmatch(path) and not directory.parent.is_dir():
        return path
    known = [*BUILDERS, *(str(other) for other in directory.parent.glob("*") if (other / "config.json").is_file())]
    near = difflib.get_close_matches(path, known, n=1)
    raise ConfigError(
        f"model.path is '{path}', which does not exist"
        + (f"; did you mean '{near[0]}'?" if near else ".")
        + f" Use a directory in Hugging Face format, {' or '.join(map(repr, BUILDERS))}, a hub name (org/name), "
        "or package.module:build."
    )


def resolve_model(path: str, *, cache_dir: Path | None = None) -> str:
    """`locate_model`, and build the model if it is built here and the cache does not have it yet.

    A build takes about 20 s on two cores. Raises ConfigError as `locate_model` does, and when the
    weights of "smollm2" are not installed, a builder of yours cannot be imported or the cache
    cannot be written."""
    located = locate_model(path, cache_dir=cache_dir)
    if is_built(path) and not Path(located).is_dir():
        own = f"r3_openrlhf.runs.models.{BUILDERS[path][0]}:build" if path in BUILDERS else path
        _build(load_object("model.path", own), Path(located))
    return located


def is_built(path: str) -> bool:
    """True for a name of BUILDERS or a builder's import path, from which models are made."""
    return bool(_sources_of(path))


def _sources_of(path: str) -> list[Path]:
    """The files whose code makes the model; [] where `path` names no builder. No imports."""
    here = Path(__file__)
    if path in BUILDERS:
        return [here.with_name(f"{module}.py") for module in BUILDERS[path]]
    if not is_import_path(path):
        return []
    module = path.rpartition(":")[0]
    file = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
    sources = [source for folder in (".", *sys.path) if (source := Path(folder, file)).is_file()]
    return [*sources[:1], here.with_name("pretraining.py")] if sources else []


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/r3_openrlhf/models; $XDG_CACHE_HOME is ~/.cache where it is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "r3_openrlhf" / "models"


def _build(build: Callable[[Path], None], directory: Path) -> None:
    """Build into a temporary sibling and rename it: `directory` appears whole or not at all."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
            unfinished = Path(scratch) / "model"
            unfinished.mkdir()
            build(unfinished)
            try:
                unfinished.rename(directory)
            except OSError:  # another process was faster: its model is as good as ours
                if not directory.is_dir():
                    raise
    except OSError as error:
        raise ConfigError(
            f"The model cannot be built in {directory.parent}: {error}; set XDG_CACHE_HOME to a directory with space"
        ) from error
