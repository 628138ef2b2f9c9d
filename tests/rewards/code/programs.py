"""Programs and their tests, as a grader gets them."""

import json
from pathlib import Path

from tests.tables import tables_beside

TABLES = tables_beside(str(Path(__file__).with_name("grading.toml")))
TESTS = {name: json.dumps(tests) for name, tests in TABLES["tests"].items()}
ADD, CALLS = TESTS["ADD"], TESTS["CALLS"]
SETTINGS = {
    "seconds_per_test": 2.0,
    "seconds": 20.0,
    "memory_mb": 256,
    "url": None,
    "languages": {},
    "credit": "share",
    "threshold": None,
}


def fenced(program):
    return f"So:\n```python\n{program}\n```"
