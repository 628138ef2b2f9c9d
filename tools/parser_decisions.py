"""Writes what the parser learns from the warm-up of a grading process: r3_openrlhf/grading/answers/parser_decisions.bin.

    python tools/parser_decisions.py

Needed when the forms of the warm-up change, or a version of latex2sympy2_extended or ANTLR; a test says so.
"""

import zlib

from r3_openrlhf.grading.answers.parser_decisions import FILE, learned_here
from r3_openrlhf.grading.processes.worker import warm_up

if __name__ == "__main__":
    warm_up(from_file=False)
    FILE.write_bytes(zlib.compress(learned_here(), 9))
    print(f"{FILE}: {FILE.stat().st_size} bytes")
