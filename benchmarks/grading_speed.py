"""Processor time of `grade` beside math-verify, row by row in one process, on long texts and on GSM8K as it is written.

    python benchmarks/grading_speed.py [--data ../shared/data] [--rows 60]

The long texts are 27,000 characters of worked solutions: `thinking` has them between marks of thinking, before a box; `box` without
such marks; `stated` without any box, before "The answer is ..."; `prose` is of GSM8K and ends with "**Answer:** 18". `gsm8k` are
whole solutions with "A: 18" as their last line, with and without the text of the problem. math-verify gets its best form, `$reference$`,
and no time limits of its own. Both have graded other rows before.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

LONG_CHARS = 27_000
Row = tuple[str, str, str]  # response, reference, problem


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def filled(texts: list[str], between: str, rng: random.Random) -> str:
    """Texts drawn one after another, up to LONG_CHARS."""
    whole = ""
    while len(whole) < LONG_CHARS:
        whole += rng.choice(texts) + between
    return whole[:LONG_CHARS]


def long_rows(data: Path, kind: str, count: int) -> list[Row]:
    """Every second row has the right answer, the others the answer of another problem."""
    rng = random.Random(3)
    prose = read(data / "grader/outputs_gsm8k_openai.jsonl")
    solutions = read(data / "grader/outputs_rho_math500.jsonl")
    problems = prose if kind == "prose" else read(data / "math/eval/math500.jsonl")
    answers = [row.get("answer", row.get("gold")) for row in problems]
    rows = []
    for i in range(count):
        reference = rng.choice(answers)
        answer = reference if i % 2 else rng.choice(answers)
        if kind == "prose":
            text = filled([row["response"].replace("\nA:", " so") for row in prose], " ", rng)
            rows.append((f"{text}\n\n**Answer:** {answer}", reference, ""))
            continue
        text = filled(
            [row["response"] for row in solutions], "\nWait, let me check that.\n", rng
        )
        end = f"So the answer is $\\boxed{{{answer}}}$."
        if kind == "stated":
            text, end = text.replace("\\boxed", ""), f"The answer is ${answer}$."
        if kind == "thinking":
            text = f"<think>{text}</think>"
        rows.append((f"{text}\n\n{end}", reference, ""))
    return rows


def gsm8k_rows(data: Path, *, with_problem: bool) -> list[Row]:
    return [
        (row["response"], row["gold"], row["problem"] if with_problem else "")
        for row in read(data / "grader/outputs_gsm8k_openai.jsonl")
    ]


def seconds(grader: Callable[[Row], object], row: Row) -> float:
    started = time.process_time()
    grader(row)
    return time.process_time() - started


def ours(row: Row) -> object:
    from r3_openrlhf import grade

    response, reference, problem = row
    return grade(response, reference, problem=problem)


def math_verify(row: Row) -> object:
    from math_verify import parse, verify

    response, reference, _ = row
    gold, answer = (parse(text, parsing_timeout=None) for text in (f"${reference}$", response))
    return verify(gold, answer, timeout_seconds=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=60, help="of each kind of long texts")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"{options.data} does not exist; give the directory of the data with --data")
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    sets = {
        kind: long_rows(options.data, kind, options.rows)
        for kind in ("thinking", "box", "stated", "prose")
    }
    sets["gsm8k"] = gsm8k_rows(options.data, with_problem=False)
    sets["gsm8k, problem"] = gsm8k_rows(options.data, with_problem=True)
    for response, reference, problem in long_rows(options.data, "box", 2 * options.rows):
        row = response[-200:], reference, problem
        ours(row)
        math_verify(row)
    print(f"{'rows':16} {'ours, ms':>9} {'math-verify, ms':>16} {'ratio':>6}")
    for name, rows in sets.items():
        mine = theirs = 0.0
        for row in rows:
            mine += seconds(ours, row)
            theirs += seconds(math_verify, row)
        print(
            f"{name:16} {mine / len(rows) * 1e3:9.2f} {theirs / len(rows) * 1e3:16.2f} {theirs / mine:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
