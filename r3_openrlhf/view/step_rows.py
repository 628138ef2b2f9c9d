"""The rollouts of one step as the index keeps them: their numbers, the ends of their texts, and what the curves count."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.problem_files import labels_in
from r3_openrlhf.view.curves import counts_of
from r3_openrlhf.view.run_reader import Row, read_rows

HEAD_CHARS = 400  # of a response, from its beginning
TAIL_CHARS = 800  # and from its end, where answers are
ANSWER_CHARS = 200
_BATCH_ROWS = 64  # texts read at a time: what bounds the memory of an update
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")  # no text, and marks of search_index.py

Identity = tuple[int, int]  # size and mtime_ns of a file
Text = tuple[
    str, str, str
]  # head, tail (what follows the head, or the end of it) and answer, without control characters


@dataclass(slots=True, kw_only=True)
class IndexedStep:
    """A step, or the sentence that says why it cannot be read."""

    identity: Identity  # of the file that was read
    rows: list[Row] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)  # one per row
    counts: dict[str, int] = field(default_factory=dict)  # curves.counts_of
    problem: str | None = None


def files_of(run: RunDirectory) -> dict[int, tuple[Path, Identity]]:
    """The file of each step that has rollouts, and what tells it from another one. Reads no rollout."""
    files = ((step, file, identity_of(file)) for step, file in rollout_files.steps_in(run.rollouts).items())
    return {step: (file, identity) for step, file, identity in files if identity is not None}


def identity_of(file: Path) -> Identity | None:
    """None: it is not there."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def read_step(file: Path, step: int) -> IndexedStep | None:
    """The rollouts of a step; None: the file is gone meanwhile."""
    identity = identity_of(
        file
    )  # before it is read: when another file takes its name meanwhile, the next update sees that
    if identity is None:
        return None
    try:
        rows = read_rows(file)
        found = IndexedStep(identity=identity, rows=rows, texts=_texts_of(file))
        found.counts = counts_of(rows, step=step)
        if len(found.texts) != len(rows):
            raise R3Error(f"{file} has changed while it was read")
    except R3Error as error:
        return IndexedStep(identity=identity, problem=str(error))
    return found


def _texts_of(file: Path) -> list[Text]:
    """The values of every row, without many whole texts at a time."""
    import pyarrow as pa

    found, size = [], 0
    try:
        with rollout_files.opened(file) as parquet:
            for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=["text", "answer"]):
                size = rollout_files.unpacked_bytes(pa.Table.from_batches([batch]), before=size)
                texts, answers = (column.to_pylist() for column in batch.columns)
                found += [_ends(text or "", answer or "") for text, answer in zip(texts, answers, strict=True)]
    except (pa.ArrowException, ValueError, OSError) as error:
        raise R3Error(
            f"{file} is damaged: {' '.join(str(error).split())[:200]}; restore it from a copy, or remove it"
        ) from error
    return found


def _ends(text: str, answer: str) -> Text:
    tail = text[max(HEAD_CHARS, len(text) - TAIL_CHARS) :]
    return _clean(text[:HEAD_CHARS]), _clean(tail), _clean(answer[:ANSWER_CHARS])


def problems_of(run: RunDirectory) -> list[tuple[str, str, str]]:
    """(uid, text, references) of each line of the training file that can be read."""
    labels = (label for _, label in labels_in(run.data) if not isinstance(label, R3Error))
    try:
        return [(one.uid, _clean(one.problem), _clean("\n".join(one.references))) for one in labels]
    except OSError:  # RunReader.faults says it
        return []


def _clean(text: str) -> str:
    """Control characters become the sign for what cannot be shown; lone surrogates too, which SQLite does not take."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return _CONTROL.sub("\ufffd", text)
