"""Prints the last section of docs/algorithms.md: how R³ treats every flag of the installed OpenRLHF.

python tools/openrlhf_flags.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

from r3_openrlhf.stack.arguments import own_flags  # noqa: E402
from r3_openrlhf.stack.flags import table  # noqa: E402
from r3_openrlhf.stack.upstream_parser import installed_flags  # noqa: E402

if __name__ == "__main__":
    sys.stdout.write(table(installed_flags(), own_flags()))
