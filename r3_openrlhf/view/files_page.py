"""The other files of a run directory: phases, settings, error, log and code."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from r3_openrlhf.config.loading import config_to_yaml
from r3_openrlhf.method.errors import without_secrets
from r3_openrlhf.runs.files import open_regular
from r3_openrlhf.runs.problem_files import UNREADABLE
from r3_openrlhf.view.first_page import first_page_of
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render

END_BYTES = 60_000  # of a file that is shown
MAX_EVENTS_BYTES = 4_000_000
SHOWN_EVENTS = 300
PAST = 4102444800.0  # a clock that shows the year 2100 is wrong
Value = TypeVar("Value")


class Event(msgspec.Struct):
    """A line of events.jsonl: a phase begins."""

    time: float
    phase: str
    step: int | None = None
    warning: str | None = None

    @property
    def began(self) -> str:
        """The time, UTC."""
        return datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%d %H:%M:%S")


def files_page(library: Library, name: str) -> str:
    """Render phases, settings, first page, error, log and code of a run."""
    run = library.run(name)
    directory = run.directory
    texts = {
        "error.txt": directory.error,
        "train.log": directory.log,
        "code_state.txt": directory.code_state,
    }
    return render(
        "files.html",
        run=run,
        events=events_in(directory.events)[: -SHOWN_EVENTS - 1 : -1],
        changes=_decoded(
            (end_of(directory.changes) or "").splitlines(), msgspec.json.Decoder(dict[str, Any])
        ),
        first_page=first_page_of(directory),
        settings=None if run.config is None else without_secrets(config_to_yaml(run.config)),
        texts={file: text for file, path in texts.items() if (text := end_of(path))},
    )


def end_of(file: Path) -> str | None:
    """Read the last END_BYTES of a text file without passwords; None: missing, or unreadable."""
    content, is_whole = _tail(file, END_BYTES)
    if content is None:
        return None
    text = content.decode("utf-8", "replace")
    return without_secrets(text if is_whole else "[…]" + text.partition("\n")[2])


def _tail(file: Path, num_bytes: int) -> tuple[bytes | None, bool]:
    """Read the last bytes of a file, None where it cannot be read; and whether that is all of it."""
    try:
        with open_regular(file) as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - num_bytes))
            return stream.read(num_bytes), size <= num_bytes
    except OSError:
        return None, False


def _decoded(lines: Iterable[str | bytes], decoder: msgspec.json.Decoder[Value]) -> list[Value]:
    """Decode the lines that can be read."""
    values = []
    for line in lines:
        with suppress(*UNREADABLE):
            values.append(decoder.decode(line))
    return values


def events_in(file: Path) -> list[Event]:
    """Read the lines that can be read, of the last MAX_EVENTS_BYTES."""
    lines = (_tail(file, MAX_EVENTS_BYTES)[0] or b"").splitlines()
    return [
        event
        for event in _decoded(lines, msgspec.json.Decoder(Event))
        if 0 <= event.time < PAST
    ]
