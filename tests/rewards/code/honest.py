"""Right solutions that weak harnesses call wrong: name -> program, call, and what comes back."""

import tomllib
from pathlib import Path

from r3_openrlhf.rewards.code.run import Call

_LINES = "".join(f"{i}\n" for i in range(100_000))


def _case(case: dict) -> tuple[str, Call, object]:
    if "value" in case:
        call = Call(function="f", arguments=tuple(case.get("arguments", ())))
        return case["program"], call, case["value"]
    call = Call(stdin=case.get("stdin", "4\n1 2 3 4\n"))
    return case["program"], call, case.get("stdout", "10\n")


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
# texts that are long, and values that TOML does not have
_TABLE |= {
    "much input": {
        "program": "import sys\nprint(sum(map(int, sys.stdin)))",
        "stdin": _LINES,
        "stdout": f"{sum(range(100_000))}\n",
    },
    "large output": {"program": "print('x' * 5_000_000)", "stdout": "x" * 5_000_000 + "\n"},
    "many lines": {"program": "for i in range(100_000): print(i)", "stdout": _LINES},
    "a tuple": {"program": "def f(): return 1, [2, (3,)]", "value": (1, [2, (3,)])},
    "None, bool, text": {"program": "def f(): return [None, True, 'é']", "value": [None, True, "é"]},
    "a dict of numbers": {
        "program": "def f(): return {1: [2], (3, 4): 5}",
        "value": {1: [2], (3, 4): 5},
    },
    "a named tuple": {
        "program": "from collections import namedtuple\ndef f(): return namedtuple('P', 'x y')(1, 2)",
        "value": (1, 2),
    },
    "a large integer": {"program": "def f(): return 7 ** 20000", "value": 7**20000},
}
HONEST = {name: _case(case) for name, case in _TABLE.items()}
