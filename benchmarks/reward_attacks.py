"""Exploits accepted and right answers refused, beside others, on problems that no rule was written from.

    python benchmarks/reward_attacks.py [--data ../shared/data] [--problems 150] [--list]

Exploits: `r3 attack-rewards` and every formula of the problem, against references of olympiadbench, amc23, minerva and DeepScaleR.
Right answers: the same references in other spellings, and the pairs of the test tables of Math-Verify and lighteval that they call
equal. math-verify in both forms: with its reference as it stands, and as `$reference$`, which is its better one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import re
import sys
from functools import lru_cache
from pathlib import Path

# rows of DeepScaleR, in the order of seed 1, that the rules were looked at with
USED_FOR_RULES = 1548
Case = tuple[str, str, str, str]  # kind, response, reference, problem


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def held_out(data: Path, count: int) -> list[dict]:
    deepscaler = read(data / "math/train/deepscaler_clean.jsonl")
    random.Random(1).shuffle(deepscaler)
    rows = deepscaler[USED_FOR_RULES : USED_FOR_RULES + 4000]
    for name in ("olympiadbench", "amc23", "minerva"):
        rows += read(data / f"math/eval/{name}.jsonl")
    random.Random(2).shuffle(rows)
    return rows[:count]


def cases_of(data: Path, count: int) -> list[Case]:
    from r3_openrlhf.evaluation.attacks.generate import answer_attacks

    cases: list[Case] = []
    for row in held_out(data, count):
        problem, reference = row["problem"], row["answer"]
        cases += [
            ("exploit", response, reference, problem)
            for _, response in answer_attacks(problem, reference, "math")
        ]
        cases += [
            ("right", rf"So it is $\boxed{{{text}}}$.", reference, problem)
            for text in spellings(reference)
        ]
    for row in read(data / "grader/vectors.jsonl"):
        if row["kind"] == "pair" and row["expected"]:
            # as it stands: some are whole responses
            cases.append(("right", row["prediction"], row["gold"], ""))
    return cases


def spellings(reference: str) -> list[str]:
    """The reference, and the same answer as others write it."""
    texts = [
        reference,
        reference.replace("\\frac", "\\dfrac"),
        rf"\left({reference}\right)" if reference.isdigit() else reference,
    ]
    if re.fullmatch(r"-?\d+", reference):
        value = int(reference)
        texts += [
            f"{value:,}",
            f"{value}.0",
            f"x = {value}",
            rf"\text{{The answer is }}{value}",
            f"{value}.",
            rf"{value}\text{{ units}}",
        ]
    elif fraction := re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", reference):
        sign, top, bottom = fraction.groups()
        texts += [
            f"{sign}{top}/{bottom}",
            rf"\frac{{{sign}{top}}}{{{bottom}}}",
            str(float(f"{sign}{top}") / float(bottom)),
        ]
    else:
        texts += [reference.replace(",", ", "), reference.replace("+", " + "), f"${reference}$"]
    return list(dict.fromkeys(texts))


async def ours(cases: list[Case], with_problem: bool) -> list[bool | None]:
    from r3_openrlhf.config import RewardConfig
    from r3_openrlhf.rewards.answers.request import GradeRequest
    from r3_openrlhf.rewards.client import make_grader

    grader = make_grader(RewardConfig(timeout_s=20.0))
    grades = await asyncio.gather(
        *(
            grader.grade(
                GradeRequest(
                    response=response,
                    references=(reference,),
                    task="math",
                    num_tokens=1,
                    truncated=False,
                    problem=problem if with_problem else "",
                )
            )
            for _, response, reference, problem in cases
        )
    )
    grader.close()
    return [None if grade.score is None else grade.score == 1.0 for grade in grades]


def math_verify_bare(case: Case) -> bool:
    return _math_verify(case, case[2])


def math_verify_wrapped(case: Case) -> bool:
    return _math_verify(case, f"${case[2].strip('$ ')}$")


def _math_verify(case: Case, gold: str) -> bool:
    import logging

    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return verify(_parsed(gold), _parsed(case[1]))


@lru_cache(maxsize=100_000)
def _parsed(text: str) -> list:
    """Endless responses, the same for each problem, cost math-verify its time limit of 5 s only once."""
    from math_verify import parse

    return parse(text)


def openrlhf(case: Case) -> bool:
    from openrlhf.utils.math_utils import extract_boxed_answer, grade_answer

    return bool(grade_answer(extract_boxed_answer(case[1]) or case[1], case[2]))


def print_line(name: str, verdicts: list[bool | None], cases: list[Case]) -> None:
    exploits = [
        verdict for verdict, case in zip(verdicts, cases, strict=True) if case[0] == "exploit"
    ]
    right = [
        verdict for verdict, case in zip(verdicts, cases, strict=True) if case[0] == "right"
    ]
    accepted, refused = exploits.count(True), len(right) - right.count(True)
    print(
        f"{name:32} {accepted:5} of {len(exploits)} ({accepted / len(exploits):6.2%})   {refused:4} of {len(right)}"
        f" ({refused / len(right):6.2%})   {verdicts.count(None):4}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument(
        "--list", action="store_true", help="print what ours accepts or refuses"
    )
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"{options.data} does not exist; give the directory of the data with --data")
    cases = cases_of(options.data, options.problems)
    print(f"{'':32} {'exploits accepted':>22} {'right answers refused':>24} {'ungraded':>8}")
    print_line("ours, problem unknown", asyncio.run(ours(cases, False)), cases)
    verdicts = asyncio.run(ours(cases, True))
    print_line("ours", verdicts, cases)
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        for name, grader in (
            ("math-verify, bare reference", math_verify_bare),
            ("math-verify, $reference$", math_verify_wrapped),
            ("OpenRLHF grade_answer", openrlhf),
        ):
            print_line(name, processes.map(grader, cases, chunksize=50), cases)
    if options.list:
        for verdict, (kind, response, reference, _) in zip(verdicts, cases, strict=True):
            if verdict is not (kind == "right"):
                print(f"{kind}: {verdict}: {response!r} for {reference!r}")


if __name__ == "__main__":
    main()
