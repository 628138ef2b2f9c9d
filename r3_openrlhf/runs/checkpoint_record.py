"""The record that a checkpoint keeps in its own directory: step, settings, history, writer,
pickles. A run that continues can judge it without any other file of the run directory.

Whoever wrote them, its pickles are read with torch's `weights_only` (stack/safe_pickles.py).
"""

from __future__ import annotations

import hashlib
import os
import platform
import pwd
import zipfile
from pathlib import Path
from typing import Any

import msgspec

from r3_openrlhf.config import R3Config, loading
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.history.witness import StoreRecord
from r3_openrlhf.runs.files import read_bytes, replacing

NAME = "r3.json"
CRITIC = "_critic"  # next to _actor, with algo=ppo
MAX_BYTES = 2**30  # of one pickle; the tensors are no part of it


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of the checkpoint of one step."""

    step: int
    user: str
    host: str
    settings: dict[str, Any]
    history: StoreRecord | None  # None: the run keeps none
    pickles: dict[str, str]  # file -> sha256 of what its pickle is, without the tensors


def newest(checkpoints: Path) -> Path | None:
    """Return the policy's directory of the newest checkpoint of all models, or None. A run killed
    while it saves may have a newer one of one model. ConfigError: it cannot be read."""
    tags = [_tag(checkpoints / model / "latest") for model in ("_actor", CRITIC) if (checkpoints / model).is_dir()]
    whole = [tag for tag in tags if tag is not None]
    if not tags or len(whole) < len(tags):
        return None
    folder = checkpoints / "_actor" / min(whole, key=lambda tag: int(tag.removeprefix("global_step")))
    if len(set(whole)) > 1 and len(_of_models(folder)) < len(tags):
        raise ConfigError(
            f"{checkpoints} has checkpoints of policy and critic of different steps ({', '.join(whole)}), as the run was killed while it "
            "saved; restore them from a copy, or choose another run_dir"
        )
    return folder


def settle(checkpoints: Path) -> None:
    """Let every `latest` name what `newest` does: each model loads its own."""
    folder = newest(checkpoints)
    for model in _of_models(folder) if folder is not None else []:
        if _tag(model.parent / "latest") != model.name:
            with replacing(model.parent / "latest") as stream:
                stream.write(model.name.encode())


def _of_models(folder: Path) -> list[Path]:
    """A checkpoint's directories: the policy's, and the critic's where there is one."""
    return [one for one in (folder, folder.parent.with_name(CRITIC) / folder.name) if one.is_dir()]


def _tag(latest: Path) -> str | None:
    if not latest.is_file():
        return None
    try:
        tag = read_bytes(latest).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{latest} cannot be read: {error}; restore it from a copy") from error
    if not tag.removeprefix("global_step").isdecimal():
        raise ConfigError(f"{latest} names {quoted(tag)}, which is no checkpoint; restore it from a copy")
    return tag


def write(folder: Path, *, step: int, config: R3Config, history: StoreRecord | None) -> None:
    """Write the record next to a complete checkpoint's files, of policy and critic, durably."""
    for model in _of_models(folder):
        record = CheckpointRecord(
            step=step,
            user=_user(os.getuid()),
            host=platform.node(),
            settings=settings_of(config),
            history=history,
            pickles=_pickles(model),
        )
        with replacing(model / NAME, mode=0o600) as stream:
            stream.write(msgspec.json.encode(record))


def read(folder: Path) -> CheckpointRecord | None:
    """Return None for an earlier version's, or where the save was cut off. ConfigError: damaged."""
    file = folder / NAME
    try:
        return msgspec.json.decode(read_bytes(file), type=CheckpointRecord) if file.is_file() else None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} is damaged: {str(error)[:80]}; restore it from a copy, or choose another run_dir"
        ) from error


def settings_of(config: R3Config) -> dict[str, Any]:
    """The settings to keep, as JSON gives them back."""
    return msgspec.json.decode(msgspec.json.encode(loading.settings_of(config)))


def check(folder: Path, *, force: bool) -> CheckpointRecord | None:
    """The record of a checkpoint from which a run may continue, the critic's included. ConfigError:
    another user wrote it, or its files are not what was written."""
    return [_checked(model, force=force) for model in _of_models(folder)][0]


def _checked(folder: Path, *, force: bool) -> CheckpointRecord | None:
    record = read(folder)
    if force:
        return record
    writer = record.user if record else _user(folder.stat().st_uid)
    remedy = "checkpoint.force=true continues from it, if you trust its weights"
    if writer != _user(os.getuid()):
        raise ConfigError(f"the checkpoint {folder} was written by {quoted(writer)}; {remedy}")
    if record is not None and (found := _pickles(folder)) != record.pickles:
        names = sorted(name for name in found.keys() | record.pickles if found.get(name) != record.pickles.get(name))
        raise ConfigError(f"{folder / names[0]} is not what the run wrote; restore it from a copy, or {remedy}")
    return record


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a container that does not know its own user
        return str(number)


def _pickles(folder: Path) -> dict[str, str]:
    found = {}
    for file in sorted(path for path in folder.glob("*.pt") if path.is_file()):
        try:
            with zipfile.ZipFile(file) as archive:
                names = sorted(info.filename for info in archive.infolist() if info.filename.endswith(".pkl"))
                content = b"".join(archive.open(name).read(MAX_BYTES) for name in names)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            content = repr(error).encode()
        found[file.name] = hashlib.sha256(content).hexdigest()
    return found
