"""The rollouts of a run: one compressed Parquet file per step, RUN/rollouts/step_000123.parquet.

`datasets.load_dataset("parquet", data_files="RUN/rollouts/*.parquet")` loads them. A file is there
whole or not at all, and continuing from a checkpoint deletes the files of later steps.
"""

from __future__ import annotations

import contextlib
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.files import open_regular, replacing, sync_directory

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

REQUIRED = {"step", "uid", "context", "verdict", "num_tokens", "truncated"}  # never null
TEXT, COUNT, NUMBER, TRUTH = "string", "int64", "float64", "bool"
COUNTS, NUMBERS = "list<uint16>", "list<float16>"  # one value per token
_TABLE = tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))
COLUMNS: dict[str, str] = _TABLE["columns"]
TOKEN_COLUMNS: dict[str, str] = _TABLE["tokens"]
# A group is in one or two of them, so that it is read without the rest of the step.
ROW_GROUP_ROWS = 64
MAX_ROWS = 2**18  # of a step: what a page, and a reader's memory, can take
MAX_TABLE_BYTES = 4 * 10**9
MAX_TEXT_BYTES = 64 * 10**6  # of one response
_NAME = re.compile(r"step_(\d+)\.parquet")


def schema() -> pyarrow.Schema:
    """Return the columns, the same for every step and run: a column of nulls keeps its type."""
    import pyarrow as pa

    types = {
        TEXT: pa.string(),
        COUNT: pa.int64(),
        NUMBER: pa.float64(),
        TRUTH: pa.bool_(),
        COUNTS: pa.list_(pa.uint16()),
        NUMBERS: pa.list_(pa.float16()),
    }
    columns = COLUMNS | TOKEN_COLUMNS
    return pa.schema(
        [
            pa.field(name, types[kind], nullable=name not in REQUIRED)
            for name, kind in columns.items()
        ]
    )


def write_step(directory: Path, step: int, rollouts: Iterable[dict[str, Any]]) -> Path:
    """Write the rollouts of one step; they are on disk when this returns. Replaces a file of the same step.

    A key that is left out is null. Raises ValueError for an unknown key, a value of another type,
    NaN, infinity, a row of another step, and as many values per token as there are not tokens.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rollouts)
    for row in rows:
        if unknown := row.keys() - COLUMNS.keys() - TOKEN_COLUMNS.keys():
            known = ", ".join(COLUMNS | TOKEN_COLUMNS)
            raise ValueError(
                f"a rollout has no {', '.join(sorted(unknown))}; its columns are {known}"
            )
        if row.get("step") != step:
            raise ValueError(f"a rollout of step {row.get('step')} among those of step {step}")
        for key, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(
                    f"{key} is {value}, which is not finite, in a rollout of step {step}"
                )
            if key in TOKEN_COLUMNS and value is not None:
                if len(value) != row.get("num_tokens"):
                    raise ValueError(
                        f"{key} has {len(value)} values in a rollout of {row.get('num_tokens')} tokens"
                    )
                if not np.isfinite(np.asarray(value)).all():
                    raise ValueError(
                        f"{key} holds a value that is not finite, in a rollout of step {row['step']}"
                    )
    table = pa.Table.from_pylist(rows, schema=schema())
    directory.mkdir(parents=True, exist_ok=True)
    file = file_of(directory, step)
    with replacing(file) as stream:
        pq.write_table(
            table,
            stream,
            compression="zstd",
            row_group_size=ROW_GROUP_ROWS,
            # a dictionary of float16 numbers is longer than the numbers
            use_dictionary=[
                *COLUMNS,
                *(
                    f"{name}.list.element"
                    for name, kind in TOKEN_COLUMNS.items()
                    if kind == COUNTS
                ),
            ],
        )
    return file


def file_of(directory: Path, step: int) -> Path:
    """Return where the rollouts of a step are, or will be."""
    return directory / f"step_{step:06d}.parquet"


def steps_in(directory: Path) -> dict[int, Path]:
    """Return the file of each step that has one, in order."""
    if not directory.is_dir():
        return {}
    found = {
        int(match[1]): path
        for path in directory.iterdir()
        if (match := _NAME.fullmatch(path.name))
    }
    return dict(sorted(found.items()))


def read_step(
    file: Path, *, uid_start: str = "", without: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """Every rollout of one file whose problem begins with `uid_start`. The columns in `without` are
    not read (the texts are most of a file), nor are those of TOKEN_COLUMNS.

    Raises R3Error for a file that cannot be read or that no run has written.
    """
    columns = [name for name in COLUMNS if name not in without]
    yield from _read(file, uid_start=uid_start, columns=columns).to_pylist()


def read_columns(file: Path, names: Collection[str]) -> list[dict[str, Any]]:
    """Read these columns of every rollout of one file. Raises R3Error as `read_step` does."""
    return _read(file, uid_start="", columns=list(names)).to_pylist()


def read_types(file: Path) -> dict[str, str]:
    """Return the type of each of COLUMNS that one file has. Raises R3Error as `read_step` does."""
    import pyarrow as pa

    try:
        with opened(file) as parquet:
            fields = list(parquet.schema_arrow)
    except (pa.ArrowException, ValueError) as error:
        raise _damaged(file, " ".join(str(error).split())[:200]) from error
    except OSError as error:
        raise R3Error(f"{file} cannot be read: {' '.join(str(error).split())[:200]}") from error
    return {field.name: str(field.type) for field in fields if field.name in COLUMNS}


def read_tokens(file: Path, *, uid_start: str = "") -> Iterator[dict[str, np.ndarray | None]]:
    """TOKEN_COLUMNS of the rollouts that `read_step` gives, in the same order: arrays of uint16 or
    float16 [T], or None.

    Raises R3Error as `read_step` does, and for a row without as many values as it has tokens."""
    table = _read(file, uid_start=uid_start, columns=["num_tokens", *TOKEN_COLUMNS])
    lengths = table.column("num_tokens").to_pylist()
    columns = {name: table.column(name) for name in TOKEN_COLUMNS}
    for place, length in enumerate(lengths):
        found: dict[str, np.ndarray | None] = {}
        for name, column in columns.items():
            value = column[place].values  # a ListScalar: None, or an array of Arrow
            found[name] = None if value is None else value.to_numpy(zero_copy_only=False)
            if value is not None and (len(value) != length or value.null_count):
                raise _damaged(
                    file,
                    f"{name} of a rollout of {length} tokens has {len(value) - value.null_count} values",
                )
        yield found


def _read(file: Path, *, uid_start: str, columns: list[str]) -> pyarrow.Table:
    """Read columns; one not in the file is null. Reads only row groups with a wanted problem."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = schema()
    try:
        with opened(file) as parquet:
            if missing := REQUIRED - set(parquet.schema_arrow.names):
                raise ValueError(f"it has no {', '.join(sorted(missing))}")
            there = [name for name in columns if name in parquet.schema_arrow.names]
            parts, bytes_so_far = [], 0
            for number in range(parquet.num_row_groups):
                wanted = None
                if uid_start:
                    uids = parquet.read_row_group(number, columns=["uid"])
                    unpacked_bytes(uids)
                    wanted = pc.starts_with(uids.column("uid").cast(pa.string()), uid_start)
                    if not pc.any(wanted).as_py():
                        continue
                part = parquet.read_row_group(number, columns=there)
                parts.append(part if wanted is None else part.filter(wanted))
                bytes_so_far = unpacked_bytes(parts[-1], before=bytes_so_far)
            table = (
                pa.concat_tables(parts)
                if parts
                else parquet.schema_arrow.empty_table().select(there)
            )
        for name in columns:
            if name not in there:
                table = table.append_column(
                    types.field(name), pa.nulls(len(table), types.field(name).type)
                )
        table = table.select(columns).cast(pa.schema([types.field(name) for name in columns]))
        import pyarrow.compute as pc

        for name in set(table.column_names) & (REQUIRED | {"recalled_from"}):
            column = table.column(name)
            if name in REQUIRED and column.null_count:
                raise ValueError(f"it is not what a run writes (a null in {name})")
            if (
                COLUMNS[name] == COUNT
                and not 0
                <= (pc.min(column).as_py() or 0)
                <= (pc.max(column).as_py() or 0)
                <= 2**53
            ):
                raise ValueError(
                    f"it is not what a run writes ({name} is not from 0 to {2**53})"
                )
        return table
    except (pa.ArrowException, ValueError, MemoryError) as error:
        raise _damaged(
            file, " ".join(str(error).split())[:200] or "it does not fit into memory"
        ) from error
    except OSError as error:
        raise R3Error(f"{file} cannot be read: {' '.join(str(error).split())[:200]}") from error


@contextlib.contextmanager
def opened(file: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """Open a file of rollouts. The columns of texts come as dictionaries, for `unpacked_bytes`.

    Raises:
        OSError: no regular file. ValueError: one whose few MB would fill the memory.
            ArrowException."""
    import pyarrow.parquet as pq

    open_regular(file).close()
    metadata = pq.read_metadata(file)
    groups = [
        metadata.row_group(number) for number in range(min(metadata.num_row_groups, MAX_ROWS))
    ]
    if metadata.num_rows > MAX_ROWS or sum(group.num_rows for group in groups) > MAX_ROWS:
        raise ValueError(f"it has {metadata.num_rows} rows; a step has at most {MAX_ROWS}")
    size = sum(group.total_byte_size for group in groups)
    # equal numbers in a row take no room in the file
    values = sum(
        group.column(place).num_values for group in groups for place in range(group.num_columns)
    )
    _check_bytes(max(size, 2 * values))
    # only those that it has: any other name is a KeyError
    texts = [
        name for name in metadata.schema.to_arrow_schema().names if COLUMNS.get(name) == TEXT
    ]
    with pq.ParquetFile(file, metadata=metadata, read_dictionary=texts) as parquet:
        yield parquet


def unpacked_bytes(part: pyarrow.Table, *, before: int = 0) -> int:
    """`before`, and the bytes of the part's texts as Python will have them: a dictionary has a text
    once that many rows may have. ValueError: they are more than MAX_TABLE_BYTES."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in part.columns:
        for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
            lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
            if (longest := pc.max(lengths).as_py() or 0) > MAX_TEXT_BYTES:
                raise ValueError(
                    f"it holds a text of {longest // 10**6} MB; one has at most {MAX_TEXT_BYTES // 10**6}"
                )
            before += pc.sum(lengths.take(chunk.indices)).as_py() or 0
    _check_bytes(before)
    return before


def _check_bytes(size: int) -> None:
    if size > MAX_TABLE_BYTES:
        raise ValueError(
            f"it unpacks to {size / 1e9:.0f} GB; a step has at most {MAX_TABLE_BYTES / 1e9:.0f}"
        )


def _damaged(file: Path, why: str) -> R3Error:
    return R3Error(f"{file} is damaged: {why}; restore it from a copy, or remove it")


def forget_after(directory: Path, step: int) -> None:
    """Delete the files of every step after `step`, unread, and what a killed writer left."""
    if directory.is_symlink() or not directory.is_dir():
        return
    for unfinished in directory.glob(".step_*.parquet.new"):
        unfinished.unlink()
    for number, file in steps_in(directory).items():
        if number > step:
            file.unlink()
    sync_directory(directory)
