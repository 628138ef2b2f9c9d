"""The record that a checkpoint keeps in its own directory: step, settings, history, writer,
files. A run that continues can judge it without any other file of the run directory.

Whoever wrote them, its pickles are read with torch's `weights_only` (stack/safe_pickles.py).
"""

import hashlib
import os
import platform
import pwd
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from r3_openrlhf.config import R3Config
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
    files: dict[str, str] = {}  # -> sha256, `_digests`; an earlier version wrote none


def newest(checkpoints: Path) -> Path | None:
    """Return the policy's directory of the newest checkpoint of all models, or None. A run killed
    while it saves may have a newer one of one model. ConfigError: it cannot be read."""
    tags = [
        _tag(checkpoints / model / "latest")
        for model in ("_actor", CRITIC)
        if (checkpoints / model).is_dir()
    ]
    whole = [tag for tag in tags if tag is not None]
    if not tags or len(whole) < len(tags):
        return None
    folder = (
        checkpoints
        / "_actor"
        / min(whole, key=lambda tag: int(tag.removeprefix("global_step")))
    )
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
    """Return a checkpoint's directories: the policy's, and the critic's where there is one."""
    return [
        one for one in (folder, folder.parent.with_name(CRITIC) / folder.name) if one.is_dir()
    ]


def _tag(latest: Path) -> str | None:
    if not latest.is_file():
        return None
    try:
        tag = read_bytes(latest).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{latest} cannot be read: {error}; restore it from a copy"
        ) from error
    if not tag.removeprefix("global_step").isdecimal():
        raise ConfigError(
            f"{latest} names {quoted(tag)}, which is no checkpoint; restore it from a copy"
        )
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
            files={name: digest for name, (digest, _) in _digests(model, whole=False).items()},
        )
        with replacing(model / NAME, mode=0o600) as stream:
            stream.write(msgspec.json.encode(record))


def read(folder: Path) -> CheckpointRecord | None:
    """Return None for an earlier version's, or where the save was cut off. ConfigError: damaged."""
    file = folder / NAME
    try:
        return (
            msgspec.json.decode(read_bytes(file), type=CheckpointRecord)
            if file.is_file()
            else None
        )
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} is damaged: {str(error)[:80]}; restore it from a copy, or choose another run_dir"
        ) from error


def settings_of(config: R3Config) -> dict[str, Any]:
    """Return the settings to keep, as JSON gives them back."""
    # Hydra: `r3 history verify` reads records without it
    from r3_openrlhf.config import (
        loading,
    )

    return msgspec.json.decode(msgspec.json.encode(loading.settings_of(config)))


def check(folder: Path, *, force: bool) -> CheckpointRecord | None:
    """Check a checkpoint from which a run may continue, the critic's included, and return its
    record. ConfigError: another user wrote it, or its files are not what was written."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is named by {folder.with_name('latest')} and is not there; restore it from a copy"
        )
    return [_checked(model, force=force) for model in _of_models(folder)][0]


def _checked(folder: Path, *, force: bool) -> CheckpointRecord | None:
    record = read(folder)
    if force:
        return record
    writer = record.user if record else _user(folder.stat().st_uid)
    if writer != _user(os.getuid()):
        raise ConfigError(
            f"the checkpoint {folder} was written by {quoted(writer)}; checkpoint.force=true continues from it, if you trust its weights"
        )
    if record is None or not record.files:
        return record
    found = _digests(folder, whole=True)
    for name in sorted(found.keys() | record.files):
        digest, damage = found.get(name, (None, "it is not there"))
        if damage or digest != record.files.get(name):
            raise ConfigError(
                f"{folder / name} is not what the run wrote: it is damaged ({damage or 'its checksum differs'}); restore it from a copy, "
                "or choose another run_dir"
            )
    return record


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a container that does not know its own user
        return str(number)


def _digests(folder: Path, *, whole: bool) -> dict[str, tuple[str, str]]:
    """file -> (sha256, its damage or ""). Of an archive of torch's the hash is of its directory, with
    the CRC of each tensor, and of its pickles: to save it costs no reading. `whole`: read the
    tensors against those CRCs, as torch does not (it is built without miniz' check)."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != NAME)
    with ThreadPoolExecutor() as pool:  # zlib lets the others work
        return dict(
            zip(
                (file.name for file in files),
                pool.map(lambda file: _digest(file, whole=whole), files),
                strict=True,
            )
        )


def _digest(file: Path, *, whole: bool) -> tuple[str, str]:
    try:
        with file.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                stream.seek(0)
                return hashlib.file_digest(stream, "sha256").hexdigest(), ""
            with zipfile.ZipFile(stream) as archive:
                pickles = sorted(name for name in archive.namelist() if name.endswith(".pkl"))
                digest = hashlib.sha256(
                    b"".join(archive.open(name).read(MAX_BYTES) for name in pickles)
                )
                member = archive.testzip() if whole else None
                stream.seek(archive.start_dir)
                digest.update(stream.read(MAX_BYTES))
    except (
        OSError,
        KeyError,
        ValueError,
        RuntimeError,
        NotImplementedError,
        zipfile.BadZipFile,
    ) as error:
        return "", " ".join(str(error).split())[:80] or type(error).__name__
    return digest.hexdigest(), f"the checksum of {member[:80]} differs" if member else ""
