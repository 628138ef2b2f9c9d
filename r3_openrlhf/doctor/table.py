"""An examination as a table (rich, or plain columns where there is none), or as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TextIO

from r3_openrlhf.doctor.examination import Examination
from r3_openrlhf.doctor.line import FAIL, NOTE, OK, Line

WIDTH = 120  # where the terminal does not say


def to_json(examination: Examination) -> str:
    """One JSON object: the stack, how many lines fail, and the lines."""
    lines = [asdict(line) for line in examination.lines]
    return json.dumps({"stack": examination.stack, "failed": examination.num_failed, "lines": lines}, indent=1)


def print_table(examination: Examination, out: TextIO) -> None:
    """The table, and below it how many lines fail. Plain lines of text where rich is not installed."""
    title = f"r3 doctor: the {examination.stack.upper()} stack"
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        out.write(f"{title}\n")
        for line in examination.lines:
            out.write(f"{line.what}: {line.found}; wanted: {line.wanted}; {_verdict(line)}\n")
    else:
        table = Table(title=title, title_justify="left", show_lines=False)
        for column in ("what", "found", "wanted", "ok / remedy"):
            table.add_column(column, overflow="fold")
        style = {OK: "green", NOTE: "yellow", FAIL: "bold red"}
        for line in examination.lines:  # Text: what a path or an error holds is no markup
            cells = [Text(line.what), Text(line.found), Text(line.wanted), Text(_verdict(line), style[line.status])]
            table.add_row(*cells)
        Console(file=out, width=None if out.isatty() else WIDTH).print(table)
    count, total = examination.num_failed, len(examination.lines)
    out.write(f"{count} of {total} lines fail\n" if count else f"all {total} lines are fine\n")


def progress(name: str) -> None:
    """Importing takes seconds each: on a terminal one line that is written over, else nothing."""
    if sys.stderr.isatty():
        _overwrite(f"looking at {name}")


def end_of_progress() -> None:
    """Clear the line that `progress` has written; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        _overwrite("")


def _overwrite(text: str) -> None:
    """`text` in the place of the terminal's last line."""
    sys.stderr.write(f"\r\033[K{text}")
    sys.stderr.flush()


def _verdict(line: Line) -> str:
    return OK if line.status == OK else f"{line.status.upper()}: {line.remedy}"
