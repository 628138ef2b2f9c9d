"""Public data sets as made-up rows in their published schema: do they load as they are, with which keys, or why not?"""

import base64
import json
import pickle
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.sources import Problems, load_problems
from tests.works_with import rows_of

NUM_ROWS = 40
STDIN = {"input": "1\n", "output": "2\n", "testtype": "stdin"}


# name on the hub -> a row that differs in more than numbers
ROWS = {
    "AI-MO/NuminaMath-1.5": lambda n: {
        "problem": f"Find {n}.",
        "solution": "Long.",
        "source": "olympiads",
        "answer": "proof" if n % 10 == 3 else "notfound" if n % 10 == 7 else str(n),
    },
    "AI-MO/NuminaMath-CoT": lambda n: {
        "source": "cn_k12",
        "problem": f"Find {n}.",
        "solution": f"So $\\boxed{{{n}}}$." if n % 8 else "Q.E.D.",
        "messages": [
            {"role": "user", "content": f"Find {n}."},
            {"role": "assistant", "content": "So."},
        ],
    },
    "POLARIS-Project/Polaris-Dataset-53K": lambda n: {
        "problem": f"Find {n}.",
        "answer": str(n),
        "difficulty": f"{n % 8}/8",
    },
    "TIGER-Lab/MMLU-Pro": lambda n: {
        "question": f"Which is {n}?",
        "options": ["1", "2", "3", "4"],
        "answer": "ABCD"[n % 4],
        "answer_index": n % 4,
    },
    "livecodebench/code_generation_lite": lambda n: {
        "question_content": f"Write {n}.",
        "starter_code": "",
        "public_test_cases": json.dumps([STDIN]),
        "metadata": "{}",
        "private_test_cases": base64.b64encode(
            zlib.compress(pickle.dumps(json.dumps([STDIN])))
        ).decode(),
    },
}


def filled(value: Any, n: int) -> Any:
    """Put a row's number into its template: <n>, <2n>, and INT where it is no text."""
    if isinstance(value, dict):
        return {key: filled(item, n) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, n) for item in value]
    if value == "INT":
        return n
    return (
        value.replace("<2n>", str(2 * n)).replace("<n>", str(n))
        if isinstance(value, str)
        else value
    )


# name on the hub -> (row n, the keys that it needs; None: it is refused)
DATA_SETS = {
    entry["name"]: (
        ROWS.get(entry["name"], lambda n, row=entry["row"]: filled(row, n)),
        entry["keys"],
    )
    for entry in map(
        json.loads,
        Path(__file__).with_name("data_sets.jsonl").read_text(encoding="utf-8").splitlines(),
    )
}


def load(name: str, directory: Path, **keys: str) -> Problems:
    """The problems of the stand-in. Raises DataError."""
    row, _ = DATA_SETS[name]
    path = directory / "train.jsonl"
    path.write_text("".join(json.dumps(row(n)) + "\n" for n in range(NUM_ROWS)))
    return load_problems(DataConfig(path=str(path), **keys))


def outcome(name: str, directory: Path) -> str:
    """A cell of the table."""
    keys = DATA_SETS[name][1] or {}
    try:
        problems = load(name, directory, **keys)
    except DataError as refusal:
        said = re.sub(", like '[^']*'", "", str(refusal)).replace(
            f"data.path {directory / 'train.jsonl'}", "data.path ..."
        )
        return f"refused: {said}"
    (counts,) = problems.sources
    how = [f"`{counts.problem_key}`, `{counts.answer_key}`"]
    how += [f"answer: {form}" for form in counts.forms if form != "as it is"]
    how += [f"left out: {reason}" for reason in counts.left_out]
    with_keys = " ".join(f"`data.{key}={value}`" for key, value in keys.items())
    return "; ".join([f"works with {with_keys}" if keys else "works as it is", *how])


def section() -> str:
    """The table of data sets."""
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of({name: outcome(name, Path(folder)) for name in DATA_SETS})
    text = f"""## Data sets

`data.path` takes a file, a directory, a pattern or a hub name; `data.sources` takes [several](usage.md#your-data). Columns are found by their
published names, or named with `data.problem_key` and `data.answer_key`; dots go into structures, lists and JSON texts
(`reward_model.ground_truth`). An answer is cut at the `####` of a last line, taken from a JSON text or what Python prints, after a last "The
answer is", or from the last `\\boxed{{}}`. A row with two boxes side by side, and one without an answer (`proof`, `notfound`), is left out. Of
messages the user's last turn is the problem; only earlier turns are kept. Your own grader gets the cell as it is. With `data.task=code` the
answer is the [tests of a program](rewards.md#training-on-code-and-isolation). With {NUM_ROWS} rows in its schema each does this:

"""
    return text + rows
