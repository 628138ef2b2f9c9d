"""The rollouts of one step as the index keeps them: numbers, the ends of the text, and what its groups came to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from r3_openrlhf.errors import R3Error
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.files import RolloutLine
from r3_openrlhf.types import Context, Verdict
from r3_openrlhf.viewer.run_reader import UNREADABLE, AllColumns

HEAD_CHARS = 400  # of a response, from its beginning
TAIL_CHARS = 800  # and from its end, where answers stand
ANSWER_CHARS = 200
GROUP_COUNTS = ("rows", "correct", "wrong", "ungraded", "truncated", "recalled", "ranked", "left_out")
_BATCH_ROWS = 256  # read at a time: what bounds the memory of an update
_COLUMNS = (
    "uid", "context", "group", "verdict", "reason", "outcome_reward", "reward", "ranked", "advantage", "recalled_from", "truncated",
    "num_tokens", "entropy_peak", "entropy_global",
)  # fmt: skip
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")  # no text, and marks of search_index.py


@dataclass(slots=True, kw_only=True)
class IndexedRollout:
    """One row of a step's file. Texts without control characters."""

    uid: str
    context: str
    group: int | None
    verdict: str
    reason: str | None
    outcome_reward: float | None
    reward: float | None
    ranked: bool
    advantage: float | None
    recalled_from: int | None
    truncated: bool
    num_tokens: int
    entropy_peak: float | None
    entropy_global: float | None
    head: str = ""
    tail: str = ""  # what follows the head, or the end of it
    answer: str = ""

    @property
    def has_text(self) -> bool:
        """Does it stand in the index of words? Recalled rows do where they were sampled."""
        return self.recalled_from is None and bool(self.head or self.answer)

    @property
    def tags(self) -> str:
        """Words for what it is, so that a search need not look at rows that a filter leaves out."""
        return " ".join(
            (
                self.verdict,
                self.context,
                "truncated" if self.truncated else "untruncated",
                "ranked" if self.ranked else "unranked",
            )
        )


@dataclass(slots=True, kw_only=True)
class IndexedGroup:
    """Counts in the order of GROUP_COUNTS; search_index.GroupSummary says what each is."""

    group: int | None
    uid: str
    context: str
    counts: list[int]
    oldest_lag: int | None
    mean_tokens: float | None
    mean_reward: float | None
    abs_advantage: float


@dataclass(slots=True, kw_only=True)
class IndexedStep:
    """A step, or the sentence that says why it cannot be read."""

    identity: tuple[int, int]  # size and mtime_ns of the file that was read
    rollouts: list[IndexedRollout] = field(default_factory=list)
    groups: list[IndexedGroup] = field(default_factory=list)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a step is. `read` gives None when it is gone meanwhile."""

    identity: tuple[int, int]
    read: Callable[[], IndexedStep | None]


def sources_of(run: RunDirectory) -> dict[int, Source]:
    """Every step that has rollouts, by its number. Reads no rollout of a Parquet file.

    R3Error: a rollouts.jsonl of an earlier version that is damaged.
    """
    found: dict[int, Source] = {}
    identity = _identity(run.rollout_lines)
    if identity is not None:
        for step, (begin, end) in _steps_in_lines(run.rollout_lines, identity).items():
            found[step] = Source(identity, lambda begin=begin, end=end: _read_lines(run.rollout_lines, begin, end))  # type: ignore[misc]
    for step, file in rollout_files.steps_in(run.rollouts).items():
        identity = _identity(file)
        if identity is not None:
            found[step] = Source(identity, lambda file=file, step=step: _read_parquet(file, step))  # type: ignore[misc]
    return found


def problems_of(run: RunDirectory) -> Iterator[tuple[str, str, str]]:
    """(uid, text, references) of each line of the training file. R3Error: a damaged line."""
    with run.data.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                label = Label.from_json(msgspec.json.decode(line)["label"])
                yield label.uid, _clean(label.problem), _clean("\n".join(label.references))
            except (*UNREADABLE, TypeError, KeyError) as error:
                raise R3Error(
                    f"{run.data}, line {number} is damaged: {error}; restore the file from a copy"
                ) from error


def groups_of(rollouts: list[IndexedRollout], *, step: int) -> list[IndexedGroup]:
    """The groups of a step in the order of their rows. An ungraded rollout, which is in no group, counts at the one of its problem
    and context."""
    of_problem = {
        (one.uid, one.context): one.group
        for one in reversed(rollouts)
        if one.group is not None and one.recalled_from is None
    }
    members: dict[tuple[str, str, int | None], list[IndexedRollout]] = {}
    for one in rollouts:
        group = one.group if one.group is not None else of_problem.get((one.uid, one.context))
        context = one.context
        if group is not None and one.recalled_from is not None:  # it may come from another context than the group's
            context = next((key[1] for key in members if key[0] == one.uid and key[2] == group), context)
        members.setdefault((one.uid, context, group), []).append(one)
    return [_group(uid, context, group, rows, step=step) for (uid, context, group), rows in members.items()]


def _group(uid: str, context: str, group: int | None, rows: list[IndexedRollout], *, step: int) -> IndexedGroup:
    fresh = [one for one in rows if one.recalled_from is None]
    lags = [step - one.recalled_from for one in rows if one.recalled_from is not None]
    rewards = [one.reward for one in rows if one.reward is not None]
    return IndexedGroup(
        group=group,
        uid=uid,
        context=context,
        counts=[
            len(rows),
            sum(one.verdict == Verdict.CORRECT for one in fresh),
            sum(one.verdict == Verdict.WRONG for one in fresh),
            sum(one.verdict == Verdict.UNGRADED for one in fresh),
            sum(one.truncated for one in fresh),
            len(lags),
            sum(one.ranked for one in fresh),
            sum(one.advantage is None for one in fresh),
        ],
        oldest_lag=max(lags, default=None),
        mean_tokens=sum(one.num_tokens for one in fresh) / len(fresh) if fresh else None,
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        abs_advantage=sum(abs(one.advantage or 0.0) for one in rows),
    )


# ── files ──


def _identity(file: Path) -> tuple[int, int] | None:
    """None: it is not there."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _read_parquet(file: Path, step: int) -> IndexedStep | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        stream = file.open("rb")
    except FileNotFoundError:
        return None
    with stream:
        status = os.fstat(stream.fileno())  # of the very file that is read, whatever takes its name meanwhile
        found = IndexedStep(identity=(status.st_size, status.st_mtime_ns))
        try:
            parquet = pq.ParquetFile(stream)
            there = set(parquet.schema_arrow.names)
            wanted = [*_COLUMNS, *(name for name in ("text", "answer") if name in there)]
            if missing := set(_COLUMNS) - there:
                raise ValueError(f"it is not what a run writes: it has no {', '.join(sorted(missing))}")
            for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                found.rollouts += _rollouts_of(batch)
        except (pa.ArrowException, ValueError, TypeError, OSError) as error:
            found.rollouts = []
            found.problem = (
                f"{file} is damaged: {' '.join(str(error).split())[:200]}; restore it from a copy, or remove it"
            )
    found.groups = groups_of(found.rollouts, step=step)
    return found


def _rollouts_of(batch: Any) -> list[IndexedRollout]:
    """Of a pyarrow.RecordBatch. ValueError: a word that there is not, a null that must not be."""
    import pyarrow.compute as pc

    columns = {name: batch.column(name).to_pylist() for name in _COLUMNS}
    size = batch.num_rows
    heads = tails = answers = [None] * size
    lengths = [0] * size
    if "text" in batch.schema.names:
        text = batch.column("text")  # whole texts stay in Arrow; only their ends become strings of Python
        heads = pc.utf8_slice_codeunits(text, 0, HEAD_CHARS).to_pylist()
        tails = pc.utf8_slice_codeunits(text, -TAIL_CHARS).to_pylist()
        lengths = pc.utf8_length(text).to_pylist()
    if "answer" in batch.schema.names:
        answers = batch.column("answer").to_pylist()
    found = []
    for place in range(size):
        values = {name: column[place] for name, column in columns.items()}
        tail = tails[place] or ""
        overlap = HEAD_CHARS - max(0, (lengths[place] or 0) - TAIL_CHARS)  # what is in the head already
        found.append(
            _rollout(values, heads[place] or "", tail[overlap:] if overlap > 0 else tail, answers[place] or "")
        )
    return found


def _rollout(values: dict[str, Any], head: str, tail: str, answer: str) -> IndexedRollout:
    for name in ("uid", "num_tokens", "truncated"):
        if values[name] is None:
            raise ValueError(f"it is not what a run writes: a rollout has no {name}")
    values["context"] = Context.checked("context", values["context"]).value
    values["verdict"] = Verdict.checked("verdict", values["verdict"]).value
    values["ranked"] = bool(values["ranked"])
    return IndexedRollout(**values, head=_clean(head), tail=_clean(tail), answer=_clean(answer[:ANSWER_CHARS]))


def _clean(text: str) -> str:
    """Control characters become the sign for what cannot be shown; lone surrogates too, which SQLite does not take."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return _CONTROL.sub("\ufffd", text)


class _StepOf(msgspec.Struct):
    step: int


@lru_cache(maxsize=16)
def _steps_in_lines(file: Path, identity: tuple[int, int]) -> dict[int, tuple[int, int]]:  # noqa: ARG001 (the cache's key)
    """rollouts.jsonl of an earlier version: where the lines of each step begin and end, in bytes. A torn last line is not there."""
    found: dict[int, tuple[int, int]] = {}
    decoder = msgspec.json.Decoder(_StepOf)
    end = 0
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            begin, end = end, end + len(line)
            if not line.endswith(b"\n"):
                break
            try:
                step = decoder.decode(line).step
            except UNREADABLE as error:
                raise R3Error(f"{file}, line {number} is damaged: {error}; restore the file from a copy") from error
            found[step] = (found.get(step, (begin, end))[0], end)
    return found


def _read_lines(file: Path, begin: int, end: int) -> IndexedStep | None:
    try:
        stream = file.open("rb")
    except FileNotFoundError:
        return None
    with stream:
        status = os.fstat(stream.fileno())
        stream.seek(begin)
        lines = stream.read(end - begin).splitlines()
    found = IndexedStep(identity=(status.st_size, status.st_mtime_ns))
    step = 0
    try:
        for line in lines:
            row = msgspec.json.decode(line)
            step = msgspec.convert(row, RolloutLine, strict=True)["step"]
            msgspec.convert(row, AllColumns, strict=True)
            text = row.get("text") or ""
            tail = text[max(HEAD_CHARS, len(text) - TAIL_CHARS) :]
            values = {name: row.get(name) for name in _COLUMNS}
            found.rollouts.append(_rollout(values, text[:HEAD_CHARS], tail, row.get("answer") or ""))
    except UNREADABLE as error:
        found.rollouts = []
        found.problem = f"{file} is damaged in step {step}: {error}; restore it from a copy"
    found.groups = groups_of(found.rollouts, step=step)
    return found
