"""Read and replace the files of a run. Their content is checked here, once for every command."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NotRequired, TypedDict

import msgspec

from r3_openrlhf.method.core.batch_metrics import OLDER_NAMES
from r3_openrlhf.method.errors import R3Error

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None


# of a file that is read as a whole, and of one line: no run writes a tenth of it
MAX_BYTES = 2**28
LARGEST = 2**63  # a longer whole number is no count, and no float either


class MetricsLine(TypedDict):
    """Any further key holds a number, or null where there is none."""

    step: Count
    not_finite: NotRequired[list[str]]


class EvaluationLine(TypedDict):
    """A line of evaluations.jsonl, as far as commands look at it."""

    step: Count
    pass_at_1: NotRequired[Share]
    pass_at_n: NotRequired[Share]
    generated_tokens: NotRequired[Count | None]
    num_problems: NotRequired[Count]
    n_samples: NotRequired[Count]
    name: NotRequired[str]


class AnyLine(TypedDict):
    """The fields of every line."""

    step: Count


class ProblemLine(TypedDict):
    """A line of data/problems.jsonl."""

    label: str


class DataCounts(TypedDict):
    """data/counts.json."""

    num_problems: Count
    num_dropped_overlong: Count
    num_duplicates: Count
    num_unusable: Count


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a stream for a file's new content, of this mode less the umask. After the block it is
    durable; readers, also after a crash, see the old content or the new one, whole."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)  # it could be a link, or have another mode
    with open(
        unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)
    ) as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)


def no_link(name: str, flags: int) -> int:
    """Open a file, but fail where it is a link: an `opener` for open()."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def not_ours(top: Path, *, uid: int) -> str | None:
    """Describe what makes writing below `top` dangerous: a link, a file that has another name
    elsewhere too, or one of another user than `uid`. None: nothing."""
    for folder, folders, files in os.walk(top):
        for path in (Path(folder), *(Path(folder, name) for name in (*folders, *files))):
            try:
                found = path.stat() if path == top else path.lstat()
            except FileNotFoundError:  # of a process that is writing
                continue
            if stat.S_ISLNK(found.st_mode):
                return f"{path} is a link"
            if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                return f"{path} is a hard link"
            if found.st_uid != uid:
                return f"{path} belongs to another user"
    return None


def sync_directory(path: Path) -> None:
    """Make the list of its files durable before this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: Path) -> BinaryIO:
    """Open for reading. OSError: not readable, a link, which may show another file of the reader's
    to those who get the page, or a pipe or a device, which may never end."""
    try:
        # no wait for a pipe
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(handle, "rb")


def read_bytes(path: Path) -> bytes:
    """Read a regular file of at most MAX_BYTES bytes. Raises OSError."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_BYTES // 2**20} MB", str(path))
        return file.read(MAX_BYTES)


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """OSError: a line of more than MAX_BYTES."""
    while line := file.readline(MAX_BYTES):
        if len(line) == MAX_BYTES:
            raise OSError(
                errno.EFBIG, f"it is damaged: a line has more than {MAX_BYTES // 2**20} MB"
            )
        yield line


@contextmanager
def _sentences(path: Path, line: int | None = None) -> Iterator[None]:
    """Turn what goes wrong in the block into an R3Error about the file, or its line."""
    where = f"{path}" if line is None else f"{path}, line {line}"
    try:
        yield
    except OSError as error:
        raise R3Error(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise R3Error(
            f"{where} is damaged: it is not UTF-8 text; restore the file from a copy"
        ) from error
    except ValueError as error:
        raise R3Error(f"{where} is damaged: {error}; restore the file from a copy") from error


def read_text(path: Path) -> str:
    """Read a text file. Raises R3Error for one that cannot be read or is no text."""
    with _sentences(path):
        return read_bytes(path).decode()


def read_json(path: Path, kind: type) -> dict[str, Any]:
    """One JSON object. Raises R3Error for what does not fit `kind`."""
    with _sentences(path):
        return _decode(read_bytes(path), kind)


def read_lines(path: Path, kind: type = AnyLine) -> Iterator[dict[str, Any]]:
    """Read every whole line, not a torn last one. R3Error, with the line's number: no `kind`."""
    if not path.exists():
        return
    with _sentences(path), open_regular(path) as file:
        for number, line in enumerate(lines_of(file), start=1):
            if not line.endswith(b"\n") and line.startswith(b"{"):
                return
            with _sentences(path, number):
                content = _decode(line, kind)
            yield content


def check_line(line: dict[str, Any], kind: type) -> None:
    """Raise ValueError for a line that `read_lines` would refuse. Called before it is written."""
    try:
        msgspec.convert(line, kind, strict=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"a line of a run's file cannot be written: {error}") from error


def _decode(text: bytes, kind: type) -> dict[str, Any]:
    """Read one JSON object of this kind. ValueError: what is wrong with the text."""
    value = _object_of(text, kind)
    for key, number in value.items():
        if isinstance(number, int) and abs(number) > LARGEST:
            raise ValueError(f"{key[:80]} has too many digits")
    if kind is MetricsLine:
        _check_numbers(value)
        _add_newer_names(value)
    return value


def _object_of(text: bytes, kind: type) -> dict[str, Any]:
    """Read one JSON object of this kind, its numbers unchecked. ValueError: it is none."""
    try:
        value: dict[str, Any] = msgspec.json.decode(text)
        msgspec.convert(value, kind, strict=True)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    except msgspec.ValidationError as error:
        raise ValueError(f"it is not what a run writes ({error})") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from error
    return value


def _check_numbers(line: dict[str, Any]) -> None:
    """ValueError: a metric is no number; null stands for one that is not finite."""
    for key, number in line.items():
        if key == "not_finite":
            continue
        if isinstance(number, bool) or not isinstance(number, int | float | None):
            raise ValueError(f"{key} is no number")


def _add_newer_names(line: dict[str, Any]) -> None:
    """Add the present names of metrics that an older version wrote under others."""
    for old, name in OLDER_NAMES.items():
        if old in line and name not in line:
            line[name] = line[old]
