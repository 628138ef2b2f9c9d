"""The problems of the lab's regimes that are files: hard_tail, mostly_solved and truncation_bound.

    python examples/lab/problem_files.py

Writes REGIME/train.jsonl and REGIME/held_out.jsonl beside this file, always the same ones. What a fact is, and which ones
the lab's model was taught wrongly, says r3_openrlhf/runs/models/lab.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from r3_openrlhf.runs.models.lab import FACT_CLASSES, FACTS, LARGEST_TERM, MAX_TERMS, word_problem

DIRECTORY = Path(__file__).parent
KNOWN, MISCONCEIVED = FACT_CLASSES[0][1], FACT_CLASSES[-1][1]  # slip rates
HARD_ONE_IN = 8  # of mostly_solved
# regime -> (seed, {file: problems})
SIZES = {
    "hard_tail": (17, {"train": 128, "held_out": 256}),
    "mostly_solved": (18, {"train": 64, "held_out": 192}),
    "truncation_bound": (19, {"train": 64, "held_out": 192}),
}


def slip_rates(terms: list[int]) -> list[float]:
    """Of the facts that a solution without a slip uses."""
    total, rates = terms[0], []
    for addend in terms[1:]:
        rates.append(FACTS[(total % 10, addend)][0])
        total += addend
    return rates


def num_misconceived(terms: list[int]) -> int:
    """Of the facts that a solution without a slip uses."""
    return slip_rates(terms).count(MISCONCEIVED)


def wanted(regime: str, place: int) -> tuple[int, Callable[[list[int]], bool]]:
    """How many numbers the problem at this place of its file has, and which sums will do."""
    if regime == "hard_tail":  # at least one fact on the way is misconceived
        return MAX_TERMS, lambda terms: num_misconceived(terms) > 0
    if regime == "truncation_bound":  # none is: what fails is too long, or slips
        return 5, lambda terms: num_misconceived(terms) == 0
    if place % HARD_ONE_IN == 0:
        return 3, lambda terms: num_misconceived(terms) > 0
    return 3, lambda terms: max(slip_rates(terms)) == KNOWN


def draw_problems(regime: str) -> dict[str, list[dict[str, str]]]:
    """{file: rows}, no problem twice."""
    seed, sizes = SIZES[regime]
    rng, seen = random.Random(seed), set()
    found: dict[str, list[dict[str, str]]] = {name: [] for name in sizes}
    for name, size in sizes.items():
        while len(found[name]) < size:
            num_terms, will_do = wanted(regime, len(found[name]))
            terms = [rng.randint(1, LARGEST_TERM) for _ in range(num_terms)]
            if will_do(terms) and tuple(terms) not in seen:
                seen.add(tuple(terms))
                found[name].append({"problem": word_problem(terms), "answer": str(sum(terms))})
    return found


def text_of(rows: list[dict[str, str]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    for regime in SIZES:
        (DIRECTORY / regime).mkdir(exist_ok=True)
        for file, rows in draw_problems(regime).items():
            (DIRECTORY / regime / f"{file}.jsonl").write_text(text_of(rows), encoding="utf-8")
