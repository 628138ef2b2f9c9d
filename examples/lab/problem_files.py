"""The problems of experiment=lab_false_positives, which are files.

    python examples/lab/problem_files.py

Writes false_positives/train.jsonl and held_out.jsonl beside this file, always the same ones. What a fact is, and which ones
the lab's model was taught wrongly, says r3_openrlhf/runs/models/lab.py.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

from r3_openrlhf.runs.models.lab import FACT_CLASSES, FACTS, LARGEST_TERM, MAX_TERMS, word_problem

DIRECTORY = Path(__file__).parent / "false_positives"
MISCONCEIVED = FACT_CLASSES[-1][1]  # slip rate
SEED, SIZES = 17, {"train": 128, "held_out": 256}


def num_misconceived(terms: list[int]) -> int:
    """Of the facts that a solution without a slip uses."""
    totals = itertools.accumulate(terms)
    return sum(FACTS[total % 10, addend][0] == MISCONCEIVED for total, addend in zip(totals, terms[1:], strict=False))


def draw_problems() -> dict[str, list[dict[str, str]]]:
    """{file: rows}: at least one fact on the way is misconceived, and no problem comes twice."""
    rng, seen = random.Random(SEED), set()
    found: dict[str, list[dict[str, str]]] = {name: [] for name in SIZES}
    for name, size in SIZES.items():
        while len(found[name]) < size:
            terms = [rng.randint(1, LARGEST_TERM) for _ in range(MAX_TERMS)]
            if num_misconceived(terms) and tuple(terms) not in seen:
                seen.add(tuple(terms))
                found[name].append({"problem": word_problem(terms), "answer": str(sum(terms))})
    return found


def text_of(rows: list[dict[str, str]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    for file, rows in draw_problems().items():
        (DIRECTORY / f"{file}.jsonl").write_text(text_of(rows), encoding="utf-8")
