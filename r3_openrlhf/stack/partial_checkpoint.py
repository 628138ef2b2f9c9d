"""What is in flight between two steps, as a checkpoint keeps it: checkpoints/_partial/global_stepN.msgpack.

A SHA-256 digest, then MessagePack of fixed types: no pickle. It is written before the checkpoint of its
step, so that there is none without it. A folder of its own: OpenRLHF counts those in _actor as
checkpoints (utils/deepspeed/deepspeed.py), and one that is begun too early costs an older one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Context, EntropyBounds
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.runs.files import open_regular, replacing
from r3_openrlhf.stack.partial_rollouts import Group, PartialSampler, Piece, Response, Sample

FOLDER = "_partial"  # next to _actor
DIGEST_BYTES = 32


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    ids: bytes  # int32 [T]
    logprobs: bytes  # float32 [T, 1 + k]
    policy_step: int


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    """A whole response (convert.py: response_of)."""

    tokens: bytes  # int32, of prompt and response
    logprobs: bytes  # float32, as many
    action_ranges: list[tuple[int, int]]
    truncated: bool
    grade: Grade | None
    request: GradeRequest | None  # where the group is graded when it is whole
    prompt_tokens: int
    text: bytes
    finish_reason: str
    entropy_bounds: EntropyBounds | None
    seconds: float
    policy_step: int
    pieces: list[tuple[int, int]]
    fault: str


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    prompt: bytes
    label: bytes
    context: Context
    is_plain: bool
    pauses: int
    # of each response: whole, or its pieces
    whole: list[_Response | None]
    pieces: list[list[_Piece]]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """is_drawn_out, num_drawn: of PartialSampler. n_samples: responses of a group."""

    is_drawn_out: bool
    num_drawn: int
    n_samples: int
    groups: list[_Group]


def encoded(sampler: PartialSampler, *, n_samples: int) -> bytes:
    """Return what is in flight between two steps."""
    return msgspec.msgpack.encode(
        _File(
            is_drawn_out=sampler.is_drawn_out,
            num_drawn=sampler.num_drawn,
            n_samples=n_samples,
            groups=[_group_of(group) for group in sampler.groups],
        )
    )


def decode_into(sampler: PartialSampler, data: bytes, *, n_samples: int) -> None:
    """Put in flight what `encoded` returned. ConfigError: damaged, or groups of another size."""
    found = _decoded(data)
    if found.groups and found.n_samples != n_samples:
        raise ConfigError(
            f"rollout.n_samples_per_prompt is {n_samples}, but the checkpoint holds paused groups of "
            f"{found.n_samples} responses; use rollout.n_samples_per_prompt={found.n_samples}"
        )
    try:
        groups = [_read_group(group) for group in found.groups]
    except ValueError as error:
        raise _damaged(error) from error
    sampler.groups = groups
    sampler.is_drawn_out = found.is_drawn_out
    sampler.num_drawn = found.num_drawn


def file_of(checkpoints: Path, step: int) -> Path:
    """Return where the groups in flight of a step are, or will be."""
    return checkpoints / FOLDER / f"global_step{step}.msgpack"


def write(checkpoints: Path, data: bytes, *, step: int) -> None:
    """Write what `encoded` returned, durably."""
    file = file_of(checkpoints, step)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file, mode=0o600) as stream:
        stream.write(hashlib.sha256(data).digest())
        stream.write(data)


def read(checkpoints: Path, *, step: int) -> bytes | None:
    """Return None where the checkpoint of a step has no such file: its run paused nothing.
    ConfigError: it cannot be read, or is damaged."""
    file = file_of(checkpoints, step)
    if not file.exists():
        return None
    try:
        with open_regular(file) as stream:
            digest, data = stream.read(DIGEST_BYTES), stream.read()
    except OSError as error:
        raise _damaged(error) from error
    if hashlib.sha256(data).digest() != digest:
        raise _damaged(ValueError("its checksum differs"))
    return data


def check_nothing_is_paused(checkpoints: Path, *, step: int) -> None:
    """ConfigError: a run without rollout.partial would lose what its checkpoint holds."""
    data = read(checkpoints, step=step)
    number = 0 if data is None else len(_decoded(data).groups)
    if number:
        raise ConfigError(
            f"rollout.partial is 0, but the checkpoint of step {step} holds {number} groups that are not trained yet; "
            "use rollout.partial as the run had it"
        )


def forget_superseded(checkpoints: Path) -> None:
    """Delete the files whose checkpoints are gone."""
    for file in (checkpoints / FOLDER).glob("global_step*.msgpack"):
        if not (checkpoints / "_actor" / file.stem).is_dir():
            file.unlink()


def _decoded(data: bytes) -> _File:
    try:
        return msgspec.msgpack.decode(data, type=_File)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise _damaged(error) from error


def _damaged(error: Exception) -> ConfigError:
    return ConfigError(
        f"the paused responses of the checkpoint (checkpoints/{FOLDER}) are damaged: {str(error)[:80]}; restore it from a copy, or choose another run_dir"
    )


# ── groups ──


def _group_of(group: Group) -> _Group:
    return _Group(
        number=group.number,
        prompt=_bytes_of(group.prompt),
        label=_bytes_of(group.label),
        context=group.context,
        is_plain=group.is_plain,
        pauses=group.pauses,
        whole=[
            None if isinstance(sample, list) else _response_of(sample)
            for sample in group.samples
        ],
        pieces=[
            list(map(_piece_of, sample)) if isinstance(sample, list) else []
            for sample in group.samples
        ],
    )


def _read_group(group: _Group) -> Group:
    prompt, label = _text_of(group.prompt), _text_of(group.label)
    samples: list[Sample] = []
    for whole, pieces in zip(group.whole, group.pieces, strict=True):
        if whole is None:
            samples.append(list(map(_read_piece, pieces)))
        else:
            samples.append(_read(whole) | {"prompt": prompt, "label": label})
    return Group(
        number=group.number,
        prompt=prompt,
        label=label,
        context=group.context,
        is_plain=group.is_plain,
        pauses=group.pauses,
        samples=samples,
    )


def _piece_of(piece: Piece) -> _Piece:
    return _Piece(
        ids=np.array(piece.ids, dtype="<i4").tobytes(),
        logprobs=piece.logprobs_TK.astype("<f4").tobytes(),
        policy_step=piece.policy_step,
    )


def _read_piece(piece: _Piece) -> Piece:
    ids = np.frombuffer(piece.ids, dtype="<i4").tolist()
    logprobs = np.frombuffer(piece.logprobs, dtype="<f4").reshape(len(ids), -1)
    return Piece(ids=ids, logprobs_TK=logprobs, policy_step=piece.policy_step)


def _response_of(response: Response) -> _Response:
    payload = response["r3"]
    grade = payload["grade"]
    is_graded = isinstance(grade, Grade)
    return _Response(
        tokens=np.asarray(response["observation_tokens"], dtype="<i4").tobytes(),
        logprobs=np.asarray(response["rollout_log_probs"], dtype="<f4").tobytes(),
        action_ranges=response["action_ranges"],
        truncated=bool(response["truncated"]),
        grade=grade if is_graded else None,
        request=None if is_graded else grade,
        prompt_tokens=payload["prompt_tokens"],
        text=_bytes_of(payload["text"]),
        finish_reason=payload["finish_reason"],
        entropy_bounds=payload["entropy_bounds"],
        seconds=payload["seconds"],
        policy_step=payload["policy_step"],
        pieces=payload["pieces"],
        fault=payload["fault"],
    )


def _read(found: _Response) -> Response:
    grade = found.request if found.grade is None else found.grade
    return {
        "images": None,
        "mm_train_inputs": None,
        "observation_tokens": np.frombuffer(found.tokens, dtype="<i4"),
        "action_ranges": found.action_ranges,
        "rollout_log_probs": np.frombuffer(found.logprobs, dtype="<f4"),
        "truncated": found.truncated,
        "reward": getattr(grade, "reward", None),
        "scores": getattr(grade, "score", None),
        "extra_logs": {},
        "r3": {
            "grade": grade,
            "prompt_tokens": found.prompt_tokens,
            "text": _text_of(found.text),
            "finish_reason": found.finish_reason,
            "entropy_bounds": found.entropy_bounds,
            "seconds": found.seconds,
            "policy_step": found.policy_step,
            "pieces": found.pieces,
            "tools": {},
            "fault": found.fault,
        },
    }


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
