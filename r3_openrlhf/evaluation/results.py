"""samples.jsonl -> results.json (plain data) and results.md (tables). Reads nothing and writes nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from r3_openrlhf.evaluation.pass_rates import Response, ks_up_to, summarise
from r3_openrlhf.evaluation.sample_file import SampledProblem, SampledResponse
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.answers.comparison import normalise

HARD_AT_MOST = 1  # correct responses of the base model, the paper's hard subset
_CORRECT = {Verdict.CORRECT: True, Verdict.WRONG: False, Verdict.UNGRADED: None}


def response_of(sampled: SampledResponse) -> Response:
    """Its vote is the extracted answer in the grader's plain spelling; equal values spelt differently stay apart."""
    answer = normalise(sampled.extracted) if sampled.extracted else None
    return Response(
        correct=_CORRECT[sampled.verdict],
        answer=answer or None,
        num_tokens=len(sampled.token_ids),
        truncated=sampled.truncated,
    )


def summarise_benchmark(problems: Iterable[SampledProblem], *, n_samples: int, seed: int) -> dict[str, Any]:
    """Estimates, why responses were not graded, and the counts of each problem."""
    responses, counts = [], {}
    reasons: Counter[str] = Counter()
    for problem in problems:
        row = [response_of(response) for response in problem.responses]
        responses.append(row)
        reasons.update(r.reason for r in problem.responses if r.verdict is Verdict.UNGRADED)
        counts[problem.uid] = {
            "correct": sum(bool(response.correct) for response in row),
            "ungraded": sum(response.correct is None for response in row),
        }
    return {
        **summarise(responses, ks=ks_up_to(n_samples), seed=seed),
        "ungraded_reasons": dict(reasons),
        "problems": counts,
    }


def hard_uids(problems: Iterable[SampledProblem], benchmark: str) -> tuple[set[str], set[str]]:
    """(hard, all) uids of a benchmark in a base model's evaluation: right at most HARD_AT_MOST times.

    A response without a grade counts as right here: what may have been solved is not hard.
    """
    hard, known = set(), set()
    for problem in problems:
        if problem.benchmark != benchmark:
            continue
        known.add(problem.uid)
        if sum(response.verdict is not Verdict.WRONG for response in problem.responses) <= HARD_AT_MOST:
            hard.add(problem.uid)
    return hard, known


def mean_over_benchmarks(summaries: dict[str, dict[str, Any]], n_samples: int) -> dict[str, float | None]:
    """Unweighted means, as tables of papers have them; None where a benchmark has no value."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return math.fsum(known) / len(known) if values and len(known) == len(values) else None

    last = str(n_samples)
    return {
        "pass_at_1": mean([found["pass_at_1"]["value"] for found in summaries.values()]),
        f"pass_at_{last}": mean([found["pass_at_k"][last]["value"] for found in summaries.values()]),
        f"majority_at_{last}": mean([found["majority_at_k"][last]["value"] for found in summaries.values()]),
        "response_tokens_mean": mean([found["response_tokens_mean"]["value"] for found in summaries.values()]),
    }


# ── tables ──


def markdown(results: dict[str, Any]) -> str:
    """Everything in results.json that a person compares. Percentages with 95% bootstrap intervals over problems."""
    settings, n = results["settings"], results["settings"]["n_samples"]
    lines = [
        f"# {results['model']['name']}",
        "",
        f"{n} responses per problem, temperature {settings['temperature']}, top_p {settings['top_p']}, up to "
        f"{settings['max_new_tokens']} tokens, seed {settings['seed']}. 95% bootstrap intervals over problems.",
        "",
        *_overview(results["benchmarks"], results["mean"], n),
    ]
    for name, found in results["benchmarks"].items():
        lines += ["", f"## {name}", "", *_origin(found), "", *_curve(found)]
        if found["lengths"]:
            lines += ["", *_lengths(found["lengths"], n)]
    return "\n".join(lines) + "\n"


def _overview(summaries: dict[str, Any], mean: dict[str, Any], n: int) -> list[str]:
    header = ["benchmark", "problems", "Pass@1", f"Pass@{n}", f"maj@{n}", "tokens", "truncated", "ungraded"]
    rows = [[name, str(found["num_problems"]), *_cells(found, n)] for name, found in summaries.items()]
    if len(rows) > 1:
        means = [mean["pass_at_1"], mean[f"pass_at_{n}"], mean[f"majority_at_{n}"]]
        cells = ["-" if value is None else f"{100 * value:.1f}" for value in means]
        tokens = mean["response_tokens_mean"]
        rows.append(["mean", "", *cells, "-" if tokens is None else f"{tokens:.0f}", "", ""])
    return _table(header, rows)


def _origin(found: dict[str, Any]) -> list[str]:
    text = f"{found['num_problems']} problems of {found['source']}"
    if found["hard_of"]:
        text += f", those that {found['hard_of']} got right at most {HARD_AT_MOST} time"
    if found["num_duplicates"] or found["num_unusable"]:
        text += f"; left out: {found['num_duplicates']} repeated, {found['num_unusable']} unusable rows"
    if found["num_ungraded"]:
        bounds = found["pass_at_1_if_ungraded"]
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(found["ungraded_reasons"].items()))
        text += (
            f". {found['num_ungraded']} of {found['num_responses']} responses could not be graded ({reasons}) and take "
            f"no part; Pass@1 would be {100 * bounds['wrong']:.1f} had they been wrong, "
            f"{100 * bounds['correct']:.1f} had they been correct"
        )
    return [text + "."]


def _curve(found: dict[str, Any]) -> list[str]:
    ks = list(found["pass_at_k"])
    return _table(
        ["k", *ks],
        [
            [name, *(percent(found[key][k]) for k in ks)]
            for name, key in (("Pass@k", "pass_at_k"), ("maj@k", "majority_at_k"))
        ],
    )


def _lengths(lengths: dict[str, Any], n: int) -> list[str]:
    header = ["token limit", "Pass@1", f"Pass@{n}", f"maj@{n}", "tokens", "truncated", "ungraded"]
    return _table(header, [[limit, *_cells(found, n)] for limit, found in lengths.items()])


def _cells(found: dict[str, Any], n: int) -> list[str]:
    """From Pass@1 to ungraded."""
    return [
        percent(found["pass_at_1"]),
        percent(found["pass_at_k"][str(n)]),
        percent(found["majority_at_k"][str(n)]),
        plain(found["response_tokens_mean"]),
        percent(found["truncated_rate"]),
        str(found["num_ungraded"]),
    ]


def percent(estimate: dict[str, Any]) -> str:
    """An estimate of a share as "41.2 [38.0, 44.4]"; "-" where there is none."""
    if estimate["value"] is None:
        return "-"
    text = f"{100 * estimate['value']:.1f}"
    return text if estimate["low"] is None else f"{text} [{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"


def plain(estimate: dict[str, Any]) -> str:
    """An estimate as a whole number; "-" where there is none."""
    return "-" if estimate["value"] is None else f"{estimate['value']:.0f}"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    align = ["---"] + ["---:"] * (len(header) - 1)
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (header, align, *rows)]
