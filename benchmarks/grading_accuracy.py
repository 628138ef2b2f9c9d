"""Our verdicts against those of others, beside math-verify (its reference as it stands, and as $reference$) and OpenRLHF's grade_answer.

    python benchmarks/grading_accuracy.py [--data ../shared/data/grader] [--files vectors,field_cases] [--list]

Prints one line per file: rows, and the share of rows on which each grader agrees with the file's own verdict. With
--list every row on which ours does not agree. An ungraded row agrees with nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
from importlib.metadata import version
from pathlib import Path

ASKED = {"task", "problem", "truncated"}
FILES = ("vectors", "outputs_gsm8k_openai", "outputs_rho_math500", "field_cases")


def rows_of(path: Path) -> list[tuple[str, str, str, bool, dict]]:
    """(id, first reference, response, verdict, further fields of our request) of every row."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if "references" in rows[0]:
        return [
            (
                f"{i}: {row.get('kind') or row['family']}",
                row["references"][0],
                row["response"],
                row["verdict"] == "correct",
                {
                    "references": tuple(row["references"]),
                    **{key: row[key] for key in ASKED & row.keys()},
                },
            )
            for i, row in enumerate(rows)
        ]
    return [
        (
            row["id"],
            row["gold"],
            row.get("prediction", row.get("response")),
            row.get("expected", row.get("correct")),
            {},
        )
        for row in rows
    ]


async def grade_ours(rows: list) -> list:
    from r3_openrlhf.config import RewardConfig
    from r3_openrlhf.rewards.answers.request import GradeRequest
    from r3_openrlhf.rewards.client import make_grader

    grader = make_grader(RewardConfig(timeout_s=20.0))
    requests = [
        GradeRequest(
            **{"references": (gold,), "task": "math", "truncated": False} | more,
            response=text,
            num_tokens=0,
        )
        for _, gold, text, _, more in rows
    ]
    grades = await asyncio.gather(*map(grader.grade, requests))
    grader.close()
    return grades


def with_math_verify_bare(row: tuple) -> bool:
    """Its reference as it stands."""
    from math_verify import parse, verify

    _, gold, text, *_ = row
    return verify(parse(gold), parse(text))


def with_math_verify_wrapped(row: tuple) -> bool:
    """As $reference$, where there is no mathematics in it yet: its best form."""
    from math_verify import parse, verify

    _, gold, text, *_ = row
    has_mathematics = any(
        sign in gold.replace("\\$", "") for sign in ("$", "\\boxed", "\\(", "\\[")
    )
    return verify(parse(gold if has_mathematics else f"${gold}$"), parse(text))


def with_openrlhf(row: tuple) -> bool:
    from openrlhf.utils.math_utils import extract_boxed_answer, grade_answer

    _, gold, text, *_ = row
    return bool(
        grade_answer(extract_boxed_answer(text) or text, extract_boxed_answer(gold) or gold)
    )


def share(verdicts: list[bool], rows: list) -> float:
    return sum(verdict == row[3] for verdict, row in zip(verdicts, rows, strict=True)) / len(
        rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/grader"))
    parser.add_argument(
        "--files", default=",".join(FILES), help="which of them, with commas between"
    )
    parser.add_argument(
        "--list", action="store_true", help="print every row on which ours does not agree"
    )
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(
            f"{options.data} does not exist; give the directory of the grader data with --data"
        )
    print(f"math-verify {version('math-verify')}, antlr {version('antlr4-python3-runtime')}")
    print(
        f"{'file':24} {'rows':>5} {'ours':>8} {'ungraded':>9} {'math-verify':>12} {'$reference$':>12} {'grade_answer':>13}"
    )
    for name in options.files.split(","):
        rows = rows_of(options.data / f"{name}.jsonl")
        grades = asyncio.run(grade_ours(rows))
        # others' graders: away from this process
        with multiprocessing.get_context("spawn").Pool(2) as processes:
            others = [
                share(processes.map(grader, rows, chunksize=25), rows)
                for grader in (with_math_verify_bare, with_math_verify_wrapped, with_openrlhf)
            ]
        ours = [
            grade.verdict.value == "correct" if grade.score is not None else None
            for grade in grades
        ]
        print(
            f"{name:24} {len(rows):5} {share(ours, rows):8.2%} {ours.count(None):9} {others[0]:12.2%} {others[1]:12.2%} {others[2]:13.2%}"
        )
        if options.list:
            for (key, gold, text, verdict, _), grade in zip(rows, grades, strict=True):
                if (grade.verdict.value == "correct") != verdict or grade.score is None:
                    print(
                        f"  {key}: they say {'correct' if verdict else 'wrong'}, we {grade.verdict.value}"
                        f" ({grade.reason}); reference {gold[-60:]!r}, found {grade.extracted!r}, end {text[-60:]!r}"
                    )


if __name__ == "__main__":
    main()
