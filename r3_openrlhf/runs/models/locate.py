"""model.path -> a directory that Transformers, OpenRLHF and vLLM load, or a name on the hub.

Models built here and kept in a cache: "smollm2" (real, 135M parameters); "tiny", "tiny_agent",
"tiny_code" and "tiny_tools", trained in seconds (for sums, problems/agents/vault.py, programs, and
sums by a tool); and "package.module:build", your function that writes a model into the directory that it is given.
A directory in the cache is complete: it is renamed at the end. Its name ends in a hash of the code
that built it, so a changed recipe is never answered with the old model.
"""

import difflib
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from r3_openrlhf.method.errors import ConfigError, quoted, shortened
from r3_openrlhf.method.open_table import is_import_path, load_object

# name -> modules of this package that make the model, the one with build(directory) first
BUILDERS = {"smollm2": ["smollm2"]} | {
    name: [name, "pretraining"] for name in ("tiny", "tiny_agent", "tiny_code")
}
BUILDERS["tiny_tools"] = ["tiny_tools", "tiny", "pretraining"]
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# the hub's cache names directories so
SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|\Z)")


def locate_model(path: str, *, cache_dir: Path | None = None) -> str:
    """Return where the model is, or will be once it is built. Reads nothing but directories, writes
    nothing.

    A model directory is returned absolute, a hub name ("org/name") as it is: whether the hub has it
    is not asked. These names are always the built models; a directory of such a name is "./tiny".
    Raises ConfigError for anything else."""
    if sources := _sources_of(path):
        recipe = hashlib.sha256(
            b"".join(source.read_bytes() for source in sources)
        ).hexdigest()[:10]
        name = re.sub(r"[^\w.-]", "_", path)
        cache = (
            Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            / "r3_openrlhf"
            / "models"
        )
        return str((cache_dir or cache) / f"{name}-{recipe}")
    directory = Path(path).expanduser()
    if path and directory.is_dir():
        if not (directory / "config.json").is_file():
            why = (
                adapter_alone(directory) or "has no config.json: it is not a Hugging Face model"
            )
            raise ConfigError(f"model.path is '{path}', a directory that {why}")
        return str(directory.resolve())
    if _HUB_NAME.fullmatch(path) and not directory.parent.is_dir():
        return path
    known = [
        *BUILDERS,
        *(
            str(other)
            for other in directory.parent.glob("*")
            if (other / "config.json").is_file()
        ),
    ]
    near = difflib.get_close_matches(path, known, n=1)
    raise ConfigError(
        f"model.path is '{path}', which does not exist"
        + (f"; did you mean '{near[0]}'?" if near else ".")
        + f" Use a directory in Hugging Face format, {' or '.join(map(repr, BUILDERS))}, a hub name (org/name), "
        "or package.module:build."
    )


def adapter_alone(directory: Path) -> str | None:
    """Say what to do with a directory that holds an adapter of PEFT and no model; None: it does not."""
    if not (directory / "adapter_config.json").is_file():
        return None
    try:
        base = json.loads((directory / "adapter_config.json").read_bytes())[
            "base_model_name_or_path"
        ]
    except (ValueError, TypeError, KeyError):
        base = None
    return (
        f"holds an adapter alone; merge it into its base model {quoted(str(base))} (PEFT: merge_and_unload, then save_pretrained) "
        "and give the directory of that"
    )


def resolve_model(
    path: str, *, cache_dir: Path | None = None, revision: str | None = None
) -> str:
    """`locate_model`, and build the model if it is built here and the cache does not have it yet.
    With a `revision` of the hub: its snapshot's directory in the hub's cache.

    A build takes about 20 s on two cores. Raises ConfigError as `locate_model` does, and when the
    weights of "smollm2" are not installed, a builder of yours cannot be imported or the cache
    cannot be written."""
    located = locate_model(path, cache_dir=cache_dir)
    if revision is not None:
        if located != path:
            raise ConfigError(
                f"model.revision is {quoted(revision)}, and model.path {path} is no name on the hub"
            )
        return _snapshot(path, revision)
    if is_built(path) and not Path(located).is_dir():
        own = f"r3_openrlhf.runs.models.{BUILDERS[path][0]}:build" if path in BUILDERS else path
        _build(load_object("model.path", own), Path(located))
    return located


def without_weights(path: str, revision: str | None) -> str:
    """Return a directory with the configuration and the tokenizer of a model of the hub, of its cache
    where the hub cannot be asked. ConfigError: neither has them."""
    directory = _snapshot(
        path, revision, allow_patterns=["*.json", "*.jinja", "*.model", "*.py", "*.txt"]
    )
    if not Path(directory, "tokenizer_config.json").is_file():
        raise ConfigError(f"the cache of the hub has no tokenizer of {path}")
    return directory


def _snapshot(path: str, revision: str | None, **options: object) -> str:
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(path, revision=revision, **options)
    except Exception as error:  # the hub's errors have no common class
        reason = shortened(str(error).strip().splitlines()[0])
        named = path if revision is None else f"model.revision {quoted(revision)} of {path}"
        raise ConfigError(f"{named} cannot be had: {reason}") from error


def keep_commit(file: Path, model: str) -> None:
    """Keep the commit of the hub that a run's model is of, if it is of the hub.

    ConfigError: the run was started with another one, as a branch of the hub may move."""
    from huggingface_hub import try_to_load_from_cache

    cached = (
        try_to_load_from_cache(model, "config.json")
        if _HUB_NAME.fullmatch(model)
        else f"{model}/config.json"
    )
    commit = SNAPSHOT.search(str(cached))
    if commit is None:
        return
    if not file.is_file():
        file.write_text(f"{commit[1]}\n", encoding="utf-8")
    elif (before := file.read_text(encoding="utf-8").strip()) != commit[1]:
        raise ConfigError(
            f"model.path is {model}, which is commit {commit[1]} now, and the run was started with {before}; use model.revision={before}, "
            "or another run_dir"
        )


def is_built(path: str) -> bool:
    """Return True for a name of BUILDERS or a builder's import path, from which models are made."""
    return bool(_sources_of(path))


def _sources_of(path: str) -> list[Path]:
    """Return the files whose code makes the model; [] where `path` names no builder. No imports."""
    here = Path(__file__)
    if path in BUILDERS:
        return [here.with_name(f"{module}.py") for module in BUILDERS[path]]
    if not is_import_path(path):
        return []
    module = path.rpartition(":")[0]
    file = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
    sources = [
        source for folder in (".", *sys.path) if (source := Path(folder, file)).is_file()
    ]
    return [*sources[:1], here.with_name("pretraining.py")] if sources else []


def _build(build: Callable[[Path], None], directory: Path) -> None:
    """Build into a temporary sibling and rename it: `directory` appears whole or not at all."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{directory.name}-", dir=directory.parent
        ) as scratch:
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
