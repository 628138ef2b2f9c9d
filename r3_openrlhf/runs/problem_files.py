"""The problems of a run: data/problems.jsonl and data/held_out.jsonl, one line each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.problems.label import Label
from r3_openrlhf.runs.files import lines_of, open_regular

UNREADABLE = (ValueError, RecursionError)  # a line that is no JSON, no UTF-8, not ours or nested too deeply


class _ProblemLine(msgspec.Struct):
    label: str
    input: str = ""


class Problem(msgspec.Struct, frozen=True):
    """A problem of the run, and the prompt that was made of it."""

    label: Label
    prompt: str


def read_problem(file: Path, place: int) -> Problem:
    """The problem whose line begins at this byte (`places_of_problems`)."""
    with open_regular(file) as lines:
        lines.seek(place)
        line = msgspec.json.decode(lines.readline(), type=_ProblemLine)
    return Problem(msgspec.json.decode(line.label, type=Label), line.input)


def labels_in(file: Path) -> Iterator[tuple[int, Label | R3Error]]:
    """(first byte, label) of each line of a file of problems, or the sentence about a line that cannot be read. OSError."""
    decoder, label_decoder = msgspec.json.Decoder(_ProblemLine), msgspec.json.Decoder(Label)
    place = 0
    with open_regular(file) as lines:
        for number, line in enumerate(lines_of(lines), start=1):
            try:
                yield place, label_decoder.decode(decoder.decode(line).label)
            except UNREADABLE as error:
                yield place, R3Error(f"{file}, line {number} is damaged: {error}; restore the file from a copy")
            place += len(line)


def places_of_problems(file: Path) -> tuple[dict[str, int], str | None]:
    """uid -> first byte of its line; and a sentence about the first line that cannot be read, which is left out."""
    places: dict[str, int] = {}
    fault = None
    try:
        for place, label in labels_in(file):
            if isinstance(label, R3Error):
                fault = fault or str(label)
            else:
                places[label.uid] = place
    except FileNotFoundError:
        return places, None
    except OSError as error:
        fault = f"{file} cannot be read: {error.strerror}"
    return places, fault
