"""Right solutions that weak harnesses call wrong: name -> program, call, and what comes back."""

import tomllib
from pathlib import Path

from r3_openrlhf.rewards.code.run import Call


def _case(case: dict) -> tuple[str, Call, object]:
    """Make a case of its entry. Texts that are long, and values that TOML lacks, are written in Python, as `made`."""
    case = case | {name: eval(source) for name, source in case.get("made", {}).items()}
    if "value" in case:
        call = Call(function="f", arguments=tuple(case.get("arguments", ())))
        return case["program"], call, case["value"]
    call = Call(stdin=case.get("stdin", "4\n1 2 3 4\n"))
    return case["program"], call, case.get("stdout", "10\n")


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
HONEST = {name: _case(case) for name, case in _TABLE.items()}
