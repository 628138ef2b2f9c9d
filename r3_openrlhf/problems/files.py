"""data.path -> a table: file, pattern, directory, `save_to_disk`, or a data set on the hub."""

from __future__ import annotations

import functools
import glob
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError, R3Error, quoted
from r3_openrlhf.method.open_table import check_signature, is_import_path, load_object
from r3_openrlhf.problems.table import (
    MAX_CELL,
    PACKED,
    WHOLE,
    Row,
    Table,
    read_json,
    read_separated,
    refuse_foreign,
    table_of,
)

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder
    from pyarrow import Schema

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TYPED = {".parquet": "parquet", ".arrow": "arrow"}  # ending -> its reader in `datasets`
ENDINGS = (".jsonl", ".json", *SEPARATORS, *TYPED)
_ENDINGS = f"{', '.join(ENDINGS)} (texts also with {' or '.join(PACKED)})"
# without a slash: of old data sets
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+|[A-Za-z0-9][\w-]*")
_IS_COMMIT = re.compile(r"[0-9a-f]{7,40}")
# as of x.txt; of names on the hub only versions follow a dot
_IS_FILE = re.compile(r"\.[A-Za-z]{1,7}\Z")
_IS_PATTERN = re.compile(r"[*?\[]")


def ending(path: str | Path) -> str | None:
    """Return the one of ENDINGS that a file's name has, packed or not; None: another one."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    packed = suffixes[-1:] and suffixes[-1] in PACKED
    found = "".join(suffixes[-2:-1] if packed else suffixes[-1:])
    return found if found in ENDINGS and not (packed and found in TYPED) else None


def is_on_the_hub(path: str) -> bool:
    """Tell whether data.path names a data set on the hub: no file or directory that is here or should be."""
    is_named = ending(path) is None and _HUB_NAME.fullmatch(path) and not _IS_FILE.search(path)
    return (
        bool(is_named)
        and not Path(path).exists()
        and ("/" not in path or not Path(path).parent.is_dir())
    )


def hub_fault(parts: Iterable[DataConfig]) -> str | None:
    """Say why the hub does not give the data sets now; None: it, or its cache with HF_HUB_OFFLINE, does. Without a
    connection `datasets` tries again and again before it looks into the cache."""
    from huggingface_hub import HfApi, constants

    for part in parts:
        try:
            if is_on_the_hub(part.path):
                if not constants.HF_HUB_OFFLINE:
                    HfApi().dataset_info(part.path, revision=part.revision, timeout=10)
                load_table(part)
        except Exception as error:  # the hub's errors have no common class
            return f"{part.path}: {cause(error)}"
    return None


def load_table(data: DataConfig) -> Table:
    """Load the rows of data.path. DataError, also while they are read."""
    name = f"data.path {data.path}"
    path = Path(data.path).expanduser()
    if data.revision is not None and not is_on_the_hub(data.path):
        raise DataError(
            f"data.revision is {quoted(data.revision)}, and {name} is no data set on the hub; leave it out"
        )
    try:
        if is_import_path(data.path):
            return _generated(data, name)
        if path.is_dir() or is_on_the_hub(data.path):
            return _directory(data, path)
        if path.is_file():
            return _file(path, name)
        if _IS_PATTERN.search(data.path):
            files = sorted(
                filter(Path.is_file, map(Path, glob.glob(str(path), recursive=True)))
            )
            if not files:
                raise DataError(f"data.path is {data.path}, a pattern that no file fits")
            tables = [_file(file, f"{name}, {file.name}") for file in files]
            return replace(_joined(tables), files=_names(files))
    except R3Error:
        raise
    except Exception as error:  # loaders raise almost anything
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{name} cannot be read: {error.strerror}") from error
        raise DataError(f"{name} cannot be loaded: {cause(error)}") from error
    if "://" in data.path:
        raise DataError(
            f"data.path is {data.path}, an address; download the file and give its path, or a hub name (org/name)"
        )
    if ending(path) is not None or _IS_FILE.search(data.path):
        raise DataError(f"data.path is {data.path}, but there is no such file")
    raise DataError(
        f"data.path is {data.path}, which does not exist; use a file that ends in {_ENDINGS}, a pattern or a directory of such "
        "files, a hub name (org/name), reasoning_gym:TASK, or package.module:function"
    )


@functools.lru_cache(maxsize=4)
def _rows_of_function(path: str, options: str) -> list[Any]:
    """Call a function once in a process: what is checked is what is trained on. `options`: as JSON."""
    generate, given = load_object("data.path", path), json.loads(options)
    check_signature("data.path", path, generate, **given)
    return list(generate(**given))


def _generated(data: DataConfig, name: str) -> Table:
    rows = _rows_of_function(data.path, json.dumps(data.reasoning_gym))
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(
            f"{name} gives no rows, or rows that are no dictionaries; give one dictionary a problem"
        )
    columns = list(set.intersection(*map(set, rows)))
    return Table(
        columns,
        lambda wanted: [
            (f"{name}, problem {index + 1}", row) for index, row in enumerate(rows)
        ],
    )


def _file(path: Path, name: str) -> Table:
    found = ending(path)
    if found is None:
        raise DataError(
            f"{name} is there, but how it ends says nothing about its format; use one of {_ENDINGS}"
        )
    if found in SEPARATORS:
        return table_of(read_separated(path, name=name, separator=SEPARATORS[found]))
    if found not in TYPED:
        return table_of(read_json(path, name=name))
    import datasets

    refuse_foreign(path)
    return _table_of(
        datasets.load_dataset(TYPED[found], data_files=str(path), split="train"), name
    )


def _directory(data: DataConfig, path: Path) -> Table:
    """Load a directory or a hub data set; JSON and CSV files are read here."""
    import datasets
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.json.json import Json

    name = f"data.path {data.path}"
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        saved = datasets.load_from_disk(str(path))
        if isinstance(saved, datasets.DatasetDict):
            if data.split not in saved:
                raise DataError(
                    f"{name} has the splits {', '.join(saved)} and no {quoted(data.split)} (data.split)"
                )
            saved = saved[data.split]
        return _table_of(saved, name)
    builder = datasets.load_dataset_builder(str(path), name=data.subset, revision=data.revision)
    commit = builder.hash if is_on_the_hub(data.path) else None
    if (
        commit
        and _IS_COMMIT.fullmatch(data.revision or "")
        and not commit.startswith(data.revision or "")
    ):
        raise DataError(  # without the hub, `datasets` takes the latest of its cache
            f"data.revision is {data.revision}, and the cache has commit {commit} of {data.path}; load it once where the hub is"
        )
    if isinstance(builder, Json):
        table = _text_files(
            data, builder, functools.partial(read_json, field=builder.config.field)
        )
    elif isinstance(builder, Csv):
        table = _text_files(
            data,
            builder,
            functools.partial(read_separated, separator=builder.config.sep or ","),
        )
    else:
        files = itertools.chain(*(builder.config.data_files or {}).values())
        for file in filter(Path.is_file, map(Path, files)):
            refuse_foreign(file)
        if _has_several_schemas(builder):
            table = _files_apart(data, builder)
        else:
            found = datasets.load_dataset(
                str(path), name=data.subset, split=data.split, revision=data.revision
            )
            table = _table_of(found, name)
    read = [
        file
        for split, files in (builder.config.data_files or {}).items()
        if str(split) in data.split
        for file in files
    ]
    return replace(table, commit=commit, files=_names(read))


def _names(files: Iterable[str | Path]) -> tuple[str, ...]:
    return tuple(Path(file).name for file in files)


def _text_files(
    data: DataConfig, builder: DatasetBuilder, read: Callable[..., Iterable[Row]]
) -> Table:
    import datasets

    files = {
        str(split): datasets.DownloadManager().download_and_extract(list(names))
        for split, names in builder.config.data_files.items()
        if str(split) in data.split
    }
    rows = {
        split: [
            row
            for path in paths
            for row in read(Path(path), name=f"data.path {data.path}, {Path(path).name}")
        ]
        for split, paths in files.items()
    }
    parts = datasets.ReadInstruction.from_spec(data.split).to_absolute(
        {split: len(rows[split]) for split in rows}
    )
    return table_of(row for part in parts for row in rows[part.splitname][part.from_ : part.to])


def _schema_of_parquet(path: Path) -> Schema:
    import pyarrow.parquet

    return pyarrow.parquet.read_schema(path)


def _schema_of_arrow(path: Path) -> Schema:
    import pyarrow

    with path.open("rb") as file:
        try:
            return pyarrow.ipc.open_stream(file).schema
        except pyarrow.ArrowInvalid:
            return pyarrow.ipc.open_file(file).schema


# builder of `datasets` -> what reads the columns and types of its files
SCHEMAS = {"parquet": _schema_of_parquet, "arrow": _schema_of_arrow}


def _has_several_schemas(builder: DatasetBuilder) -> bool:
    """Tell whether the Parquet or Arrow files of a directory differ in their columns or types."""
    if builder.name not in SCHEMAS or builder.info.features is not None:
        return False
    names = itertools.chain(*(builder.config.data_files or {}).values())
    files = filter(Path.is_file, map(Path, names))
    schemas = list(map(SCHEMAS[builder.name], files))
    return any(not schema.equals(schemas[0]) for schema in schemas)


def _files_apart(data: DataConfig, builder: DatasetBuilder) -> Table:
    """Read each file with its own types: `datasets` casts all to those of the first, and True is 1."""
    import datasets

    files = {
        str(split): [
            (file, datasets.load_dataset(builder.name, data_files=str(file), split="train"))
            for file in names
        ]
        for split, names in builder.config.data_files.items()
        if str(split) in data.split
    }
    lengths = {split: sum(len(rows) for _, rows in files[split]) for split in files}
    tables = []
    for part in datasets.ReadInstruction.from_spec(data.split).to_absolute(lengths):
        begin = 0
        for file, rows in files[part.splitname]:
            first, last = max(part.from_ - begin, 0), min(part.to - begin, len(rows))
            if first < last:
                chosen = rows.select(range(first, last))
                tables.append(_table_of(chosen, f"data.path {data.path}, {Path(file).name}"))
            begin += len(rows)
    return _joined(tables)


def _joined(tables: list[Table]) -> Table:
    """Join the rows of tables, whose columns may differ."""
    columns = dict.fromkeys(column for table in tables for column in table.columns)
    rows = itertools.chain.from_iterable
    return Table(list(columns), lambda wanted: rows(table.rows(wanted) for table in tables))


def _table_of(dataset: Dataset, name: str) -> Table:

    def rows(wanted: Collection[str] | None) -> Iterator[Row]:
        kept = [column for column in dataset.column_names if wanted is None or column in wanted]
        each = itertools.chain(
            itertools.islice(dataset, WHOLE),
            itertools.islice(dataset.select_columns(kept), WHOLE, None),
        )
        return ((f"{name}, row {index + 1}", _of_size(row)) for index, row in enumerate(each))

    return Table(dataset.column_names, rows)


def _of_size(row: dict[str, Any]) -> dict[str, Any] | DataError:
    largest = max(
        (len(cell) for cell in row.values() if isinstance(cell, str | bytes)), default=0
    )
    return (
        row
        if largest <= MAX_CELL
        else DataError(f"it has a cell of {largest // 10**6} MB; none has more than 100")
    )


def cause(error: BaseException) -> str:
    """Return the first line of the innermost reason: what went wrong, not that something did."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__
