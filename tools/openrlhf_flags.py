"""Prints the last section of docs/algorithms.md: how R³ treats every flag of the installed OpenRLHF.

python tools/openrlhf_flags.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

from r3_openrlhf.stack.arguments import own_flags  # noqa: E402
from r3_openrlhf.stack.flags import fate  # noqa: E402
from r3_openrlhf.stack.upstream_parser import installed_flags  # noqa: E402


def table() -> str:
    """Format the last section of docs/algorithms.md."""
    own, alike = own_flags(), {}
    for name in sorted(installed_flags()):
        what, why = fate(name, own)
        if what == "refused":
            why = "the message says why"
        alike.setdefault(what, {}).setdefault(why, []).append(f"`--{name}`")
    lists = (
        f"\n**{what[0].upper()}{what[1:]}**\n\n"
        + "".join(f"- {' '.join(names)}: {why}\n" for why, names in reasons.items())
        for what, reasons in alike.items()
    )
    head = (
        "## OpenRLHF's flags\n\nHow R³ treats each flag of OpenRLHF 0.11.2 that is given as `openrlhf.FLAG=VALUE`. `python tools/openrlhf_flags.py`\n"
        "prints this section.\n"
    )
    return head + "".join(lists)


if __name__ == "__main__":
    sys.stdout.write(table())
