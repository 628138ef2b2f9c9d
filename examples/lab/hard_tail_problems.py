"""The problems of experiment=lab_hard_tail: sums of six numbers on whose right way at least one fact is misconceived.

    python examples/lab/hard_tail_problems.py

Writes hard_tail/train.jsonl and hard_tail/held_out.jsonl beside this file, always the same ones. What a fact is, and which
ones the lab's model was taught wrongly, says r3_openrlhf/models/lab.py.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from r3_openrlhf.models.lab import FACT_CLASSES, FACTS, LARGEST_TERM, MAX_TERMS, word_problem

DIRECTORY = Path(__file__).parent / "hard_tail"
SIZES = {"train": 128, "held_out": 256}
MISCONCEIVED = FACT_CLASSES[-1][1]  # the slip rate of these facts
SEED = 17


def num_misconceived(terms: list[int]) -> int:
    """Of the facts that a solution without a slip uses."""
    total, count = terms[0], 0
    for addend in terms[1:]:
        count += FACTS[(total % 10, addend)][0] == MISCONCEIVED
        total += addend
    return count


def draw_problems() -> dict[str, list[dict[str, str]]]:
    """{file: rows}, no problem twice."""
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
    DIRECTORY.mkdir(exist_ok=True)
    for file, rows in draw_problems().items():
        (DIRECTORY / f"{file}.jsonl").write_text(text_of(rows), encoding="utf-8")
