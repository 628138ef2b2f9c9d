"""The rows of a data set, with every answer as it was written.

JSON is read here, not by the reader of `datasets`: that one gives a column one type, so that a
single float turns 12345678901234567890123 into 1.2345678901234568e+22, and texts into dates."""

import csv
import gzip
import io
import itertools
import json
import math
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import zstandard

from r3_openrlhf.method.errors import DataError, quoted

PACKED = (".gz", ".zst")
WHOLE = 64  # rows at the beginning that have all columns
MOST_NAMES = 20  # in a sentence
# first bytes of files whose names do not say what they are -> what they are, and what to do
FOREIGN = tomllib.loads(Path(__file__).with_name("foreign.toml").read_text(encoding="utf-8"))
# characters of one cell, or bytes of one line; Python's own limit is 131,072
MAX_CELL = 100_000_000
MAX_UNPACKED, MAX_RATIO = 2**30, 100  # bytes of a packed file, or that many times its own


class Numeral(str):
    """A number of a JSON file, spelt as it is there."""


Row = tuple[str, dict[str, Any] | DataError]  # its place, and the row or why there is none


@dataclass(frozen=True, slots=True)
class Table:
    """columns: names that some of the first rows have. rows: all of them, once; after the first WHOLE
    they may have the wanted columns alone, None: all."""

    columns: list[str]
    rows: Callable[[Collection[str] | None], Iterable[Row]]
    commit: str | None = None  # of a data set on the hub
    files: tuple[str, ...] = ()  # the names of several that were read


def table_of(rows: Iterable[Row]) -> Table:
    """Make a table of rows that are read one by one."""
    rows = iter(rows)
    first = list(itertools.islice(rows, WHOLE))
    columns = dict.fromkeys(
        column for _, row in first if isinstance(row, dict) for column in row
    )
    return Table(list(columns), lambda wanted: itertools.chain(first, rows))


def read_json(path: Path, *, name: str, field: str | None = None) -> Iterator[Row]:
    """JSON Lines, one list of objects, or one object of columns; `field`: the key of a whole
    document that holds them.

    name: how sentences call the file. Raises DataError with file and line for what is not JSON or
    not UTF-8. A row that is no object is an unusable row."""
    for place, value in _values(path, name, field):
        yield (
            place,
            value
            if isinstance(value, dict)
            else DataError(f"it is {_kind(value)} and no row {{...}}"),
        )


def read_separated(path: Path, *, name: str, separator: str) -> Iterator[Row]:
    """CSV and TSV with a line of names. Every cell is the text that is there: 007 is not 7, and
    None is no gap.

    Raises DataError as `read_json` does."""
    csv.field_size_limit(MAX_CELL)
    with (
        _opened(path) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text,
    ):
        reader = csv.DictReader(text, delimiter=separator, strict=True)
        try:
            columns = list(reader.fieldnames or [])
            if len(columns) == 1 and (
                other := next((mark for mark in ";\t|," if mark in columns[0]), None)
            ):
                raise DataError(
                    f"{name} has {other!r} between its columns, not {separator!r}; write it with {separator!r}"
                )
            wrong = DataError(f"it has not the {len(columns)} cells that the first line names")
            for row in reader:
                yield (
                    f"{name}, line {reader.line_num}",
                    wrong if None in row or None in row.values() else row,
                )
        except csv.Error as error:
            raise DataError(
                f"{name}, line {reader.line_num} cannot be read: {error}"
            ) from error
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(
                f"{name} is not UTF-8 after line {reader.line_num}: byte {byte:#04x}; convert the file"
            ) from error


def refuse_foreign(path: Path) -> None:
    """DataError: the first bytes of the file are those of another format than its name says."""
    with path.open("rb") as file:
        begin = file.read(32)
    for magic, what in FOREIGN.items():
        if begin.lower().startswith(magic.encode("latin-1").lower()) and not what.endswith(
            f" {path.suffix.lower()}"
        ):
            raise DataError(f"{path} is {what}")
    if begin[1:2] == b"\0" and path.suffix.lower() in (".json", ".jsonl", ".csv", ".tsv"):
        raise DataError(f"{path} is UTF-16 or UTF-32; save it as UTF-8")


def _opened(path: Path) -> BinaryIO:
    """Open a stream of the bytes of a file, unpacked where its name ends in .gz or .zst.
    DataError: 8 MB may unpack to 8 GB."""
    if path.suffix not in PACKED:
        refuse_foreign(path)
        return path.open("rb")
    most = max(MAX_UNPACKED, MAX_RATIO * path.stat().st_size)
    with path.open("rb") as packed:
        unpack = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
        content = (gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else unpack).read(
            most + 1
        )
    if len(content) > most:
        raise DataError(
            f"{path} unpacks to more than {most // 2**20} MB; unpack it, and look at what it holds"
        )
    return io.BytesIO(content)


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    for number in itertools.count(1):
        line = file.readline(MAX_CELL + 1)
        if len(line) > MAX_CELL:
            raise DataError(
                f"{name}, line {number} has more than {MAX_CELL // 10**6} MB, which is no row; write one row a line"
            )
        if not line:
            return
        yield line


def _values(path: Path, name: str, field: str | None) -> Iterator[tuple[str, Any]]:
    with _opened(path) as file:
        whole = field is not None or _is_one_document(file, path, name)
        file.seek(0)
        if not whole:
            for number, line in enumerate(_lines(file, name), start=1):
                if line.strip():
                    place = f"{name}, line {number}"
                    yield (
                        place,
                        _parse(
                            line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, place
                        ),
                    )
            return
        document = _parse(file.read().removeprefix(b"\xef\xbb\xbf"), name)
    if field is not None:
        if not isinstance(document, dict) or field not in document:
            raise DataError(f"{name} has no {quoted(field)}, where its rows should be")
        document = document[field]
    for index, value in enumerate(_rows_of_document(document, name), start=1):
        yield f"{name}, row {index}", value


def _rows_of_document(document: object, name: str) -> Iterable[Any]:
    """Return the rows of one JSON document. DataError: several tables, or uneven columns."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict) or not document:
        return [document]
    parts = list(document.values())
    if all(_holds_rows(part) for part in parts):
        raise DataError(
            f"{name} is one object of {listed(list(document))}, each of which holds rows; write the rows alone, as a list or one a line"
        )
    rows = _only_list_of_rows(parts)
    if rows is not None:
        return rows
    if all(isinstance(part, list) for part in parts):
        return _rows_of_columns(document, name)
    return [document]


def _holds_rows(part: object) -> bool:
    """Return if this is an object, or a list that begins with one."""
    if isinstance(part, list):
        return bool(part) and isinstance(part[0], dict)
    return isinstance(part, dict)


def _only_list_of_rows(parts: list[Any]) -> list[Any] | None:
    """Return the rows of {"version": ..., "data": [rows]}; None: further parts are structures."""
    structures = [part for part in parts if isinstance(part, (list, dict))]
    if len(structures) != 1 or not isinstance(structures[0], list) or not structures[0]:
        return None
    rows = structures[0]
    return rows if all(isinstance(row, dict) for row in rows) else None


def _rows_of_columns(document: dict[str, list[Any]], name: str) -> list[dict[str, Any]]:
    """Return the rows of {column: [cells]}. DataError: the columns have different lengths."""
    columns = list(document.values())
    if len({len(column) for column in columns}) > 1:
        raise DataError(f"{name} holds columns of different lengths; use one line per row")
    return [dict(zip(document, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _is_one_document(file: BinaryIO, path: Path, name: str) -> bool:
    lines = (line.removeprefix(b"\xef\xbb\xbf").strip() for line in _lines(file, name))
    first = next(filter(None, lines), b"")
    is_open = first.startswith(b"{") and ".json" in path.suffixes
    return first.startswith(b"[") or (is_open and (not first.endswith(b"}") or not any(lines)))


def _parse(text: bytes, place: str) -> Any:
    try:
        return _decoder.decode(text.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place} is not UTF-8: byte {error.object[error.start]:#04x}; convert the file"
        ) from error
    except RecursionError as error:
        raise DataError(f"{place} is nested too deeply to be read") from error
    except ValueError as error:
        raise DataError(f"{place} is not JSON: {error}") from error


def parse_json(text: str) -> Any:
    """Parse a JSON text, its numbers as they are written. Raises ValueError."""
    try:
        return _decoder.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")


_decoder = json.JSONDecoder(parse_int=Numeral, parse_float=Numeral, parse_constant=_refuse)


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as plain JSON data: numbers are numbers; what JSON lacks is its text."""

    def plain(value: object) -> Any:
        if isinstance(value, Numeral):
            number = json.loads(value)
            return number if isinstance(number, int) or math.isfinite(number) else str(value)
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if isinstance(value, str):
            return value.encode("utf-8", "replace").decode()
        if (
            value is None
            or isinstance(value, (bool, int))
            or (isinstance(value, float) and math.isfinite(value))
        ):
            return value
        return str(value)

    return {str(key): plain(value) for key, value in row.items()}


def listed(names: Sequence[str]) -> str:
    """List the first names, and how many more there are."""
    return ", ".join(names[:MOST_NAMES]) + (
        f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    )


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return (
        "a list"
        if isinstance(value, list)
        else "a number"
        if isinstance(value, Numeral)
        else "a text"
    )
