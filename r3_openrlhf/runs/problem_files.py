"""The problems of a run: data/problems.jsonl and data/held_out.jsonl, one line each."""

from pathlib import Path

import msgspec

from r3_openrlhf.runs.files import lines_of, open_regular

UNREADABLE = (ValueError, RecursionError)  # no JSON, no UTF-8, not ours, too deep


class ShownLabel(msgspec.Struct, frozen=True):
    """The parts of problems/label.py that people read; tests and rows of a problem can be large."""

    uid: str
    problem: str
    references: list[str]
    task: str


class Problem(msgspec.Struct, frozen=True):
    """A problem of the run, and the prompt that was made of it."""

    label: ShownLabel
    prompt: str


class _ProblemLine(msgspec.Struct):
    label: str
    input: str = ""


def problems_in(file: Path) -> tuple[dict[str, Problem], str | None]:
    """uid -> problem; and a sentence about the first unreadable line. No file: no problems."""
    decoder, label_decoder = (
        msgspec.json.Decoder(_ProblemLine),
        msgspec.json.Decoder(ShownLabel),
    )
    problems: dict[str, Problem] = {}
    fault = None
    try:
        with open_regular(file) as lines:
            for number, text in enumerate(lines_of(lines), start=1):
                try:
                    line = decoder.decode(text)
                    label = label_decoder.decode(line.label)
                except UNREADABLE as error:
                    fault = (
                        fault
                        or f"{file}, line {number} is damaged: {error}; restore the file from a copy"
                    )
                else:
                    problems[label.uid] = Problem(label, line.input)
    except FileNotFoundError:
        pass
    except OSError as error:
        fault = f"{file} cannot be read: {error.strerror}"
    return problems, fault
