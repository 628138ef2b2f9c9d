"""What `r3 doctor` and `python -m r3_openrlhf.doctor` do."""

from __future__ import annotations

import sys

from r3_openrlhf.doctor.examination import examine
from r3_openrlhf.doctor.packages import Stack
from r3_openrlhf.doctor.table import end_of_progress, print_table, progress, to_json


def run(settings: tuple[str, ...], *, stack: Stack | None, as_json: bool) -> int:
    """Print the table to stdout. Returns the exit code: 1 where a line fails."""
    examination = examine(settings, stack=stack, tell=progress)
    end_of_progress()
    if as_json:
        sys.stdout.write(f"{to_json(examination)}\n")
    else:
        print_table(examination, sys.stdout)
    return 1 if examination.num_failed else 0
