"""The rollouts of a run: one compressed Parquet file per step, RUN/rollouts/step_000123.parquet.

`datasets.load_dataset("parquet", data_files="RUN/rollouts/*.parquet")` loads them. A file is there whole or not at all, and
going on from a checkpoint deletes the files of the steps behind it. Runs of earlier versions have one rollouts.jsonl.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from r3_openrlhf.errors import R3Error
from r3_openrlhf.runs.files import RolloutLine

if TYPE_CHECKING:
    import pyarrow

REQUIRED = {"step", "uid", "context", "verdict", "num_tokens", "truncated"}  # never null
TEXT, COUNT, NUMBER, TRUTH = "string", "int64", "float64", "bool"
COLUMNS = {
    "step": COUNT,
    "uid": TEXT,
    "context": TEXT,
    "group": COUNT,  # within the step; null: in no group
    "verdict": TEXT,
    "reason": TEXT,
    "outcome_reward": NUMBER,  # null: ungraded
    "reward": NUMBER,
    "ranked": TRUTH,
    "advantage": NUMBER,  # null: not trained on
    "recalled_from": COUNT,  # the step that sampled it; null: this one
    "truncated": TRUTH,
    "num_tokens": COUNT,
    "entropy_peak": NUMBER,  # nats per token
    "entropy_global": NUMBER,
    "entropy_source": TEXT,
    "entropy_peak_lower": NUMBER,
    "entropy_peak_upper": NUMBER,
    "entropy_global_lower": NUMBER,
    "entropy_global_upper": NUMBER,
    "text": TEXT,  # null with logging.rollout_text=false
}
_NAME = re.compile(r"step_(\d+)\.parquet")


def schema() -> pyarrow.Schema:
    """The same for every step and run, whatever a step's values are: a column of nulls keeps its type."""
    import pyarrow as pa

    types = {TEXT: pa.string(), COUNT: pa.int64(), NUMBER: pa.float64(), TRUTH: pa.bool_()}
    return pa.schema([pa.field(name, types[kind], nullable=name not in REQUIRED) for name, kind in COLUMNS.items()])


def write_step(directory: Path, step: int, rollouts: Iterable[dict[str, Any]]) -> Path:
    """The rollouts of one step, on disk when this returns. A file of the same step gives way.

    A key that is left out is null. Raises ValueError for an unknown key, a value of another type, NaN, infinity, and a row
    of another step.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rollouts)
    for row in rows:
        if unknown := row.keys() - COLUMNS.keys():
            raise ValueError(f"a rollout has no {', '.join(sorted(unknown))}; its columns are {', '.join(COLUMNS)}")
        if row.get("step") != step:
            raise ValueError(f"a rollout of step {row.get('step')} among those of step {step}")
        for key, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{key} is {value}, which is not finite, in a rollout of step {step}")
    table = pa.Table.from_pylist(rows, schema=schema())
    directory.mkdir(parents=True, exist_ok=True)
    file = file_of(directory, step)
    unfinished = file.with_name(f".{file.name}.new")
    with unfinished.open("wb") as stream:
        pq.write_table(table, stream, compression="zstd")
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)
    _sync(directory)
    return file


def file_of(directory: Path, step: int) -> Path:
    """Where the rollouts of a step are, or will be."""
    return directory / f"step_{step:06d}.parquet"


def steps_in(directory: Path) -> dict[int, Path]:
    """The file of each step that is there, in order."""
    if not directory.is_dir():
        return {}
    found = {int(match[1]): path for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))}
    return dict(sorted(found.items()))


def read_step(file: Path, *, uid_start: str = "", without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Every rollout of one file whose problem begins with `uid_start`. The columns in `without` are not read: the texts are
    most of a file.

    Raises R3Error for a file that cannot be read or that no run has written.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    damaged = "restore it from a copy, or remove it"
    try:
        table = pq.read_table(
            file,
            schema=schema(),
            columns=[name for name in COLUMNS if name not in without],
            filters=pc.starts_with(pc.field("uid"), uid_start) if uid_start else None,
        )
    except (pa.ArrowException, ValueError) as error:
        raise R3Error(f"{file} is damaged: {' '.join(str(error).split())[:200]}; {damaged}") from error
    except OSError as error:
        raise R3Error(f"{file} cannot be read: {' '.join(str(error).split())[:200]}") from error
    for row in table.to_pylist():
        try:
            msgspec.convert(row, RolloutLine, strict=True)
        except msgspec.ValidationError as error:
            raise R3Error(f"{file} is damaged: it is not what a run writes ({error}); {damaged}") from error
        yield row


def forget_after(directory: Path, step: int) -> None:
    """Delete the files of every step after `step`, unread, and what a killed writer left."""
    if not directory.is_dir():
        return
    for unfinished in directory.glob(".step_*.parquet.new"):
        unfinished.unlink()
    for number, file in steps_in(directory).items():
        if number > step:
            file.unlink()
    _sync(directory)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
