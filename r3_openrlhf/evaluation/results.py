"""samples.jsonl -> results.json (plain data) and results.md (tables). Reads nothing and writes
nothing. An ungraded response is counted, and takes no part in any accuracy."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.evaluation.pass_rates import estimate, ks_up_to, majority_at_k, pass_at_k
from r3_openrlhf.evaluation.sample_file import SampledProblem, SampledResponse
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.answers.amounts.comparison import normalise

HARD_AT_MOST = 1  # correct responses of the base model, the paper's hard subset
Rows = Sequence[SampledResponse]


def vote_of(response: SampledResponse) -> str | None:
    """Return the extracted answer in the grader's plain spelling; equal values may stay apart."""
    return (normalise(response.extracted) or None) if response.extracted else None


def num_correct(rows: Rows) -> int:
    """Count the correct ones of these responses."""
    return sum(row.verdict is Verdict.CORRECT for row in rows)


def summarise_benchmark(
    problems: Iterable[SampledProblem], options: BenchmarkConfig
) -> dict[str, Any]:
    """Summarize a benchmark as plain data: estimates, reasons of ungraded responses, counts by problem."""
    sampled = {problem.uid: problem.responses for problem in problems}
    graded = {
        uid: [row for row in rows if row.verdict is not Verdict.UNGRADED]
        for uid, rows in sampled.items()
    }
    ungraded = {
        uid: [row for row in rows if row.verdict is Verdict.UNGRADED]
        for uid, rows in sampled.items()
    }

    def over(
        rate: Callable[[Rows], float | None], of: Mapping[str, Rows] = sampled
    ) -> dict[str, Any]:
        return estimate([rate(rows) for rows in of.values()], seed=options.seed)

    def pass_at(k: int) -> dict[str, Any]:
        return over(
            lambda rows: (
                pass_at_k(len(rows), num_correct(rows), k=k) if len(rows) >= k else None
            ),
            graded,
        )

    def majority_at(k: int) -> dict[str, Any]:
        votes = {
            uid: [(vote_of(row), row.verdict is Verdict.CORRECT) for row in rows]
            for uid, rows in graded.items()
        }
        rates = [
            majority_at_k(rows, k=k, seed=options.seed) if len(rows) >= k else None
            for rows in votes.values()
        ]
        return estimate(rates, seed=options.seed)

    ks = ks_up_to(options.n_samples)
    return {
        "num_problems": len(sampled),
        "num_responses": sum(map(len, sampled.values())),
        "num_ungraded": sum(map(len, ungraded.values())),
        "num_problems_without_grade": sum(not rows for rows in graded.values()),
        "pass_at_1": pass_at(1),
        "pass_at_k": {str(k): pass_at(k) for k in ks},
        "majority_at_k": {str(k): majority_at(k) for k in ks},
        "response_tokens_mean": over(lambda rows: fmean([row.num_tokens for row in rows])),
        "truncated_rate": over(lambda rows: fmean([row.truncated for row in rows])),
        "ungraded_reasons": dict(
            Counter(row.reason for rows in ungraded.values() for row in rows)
        ),
        "problems": {
            uid: {"correct": num_correct(rows), "ungraded": len(ungraded[uid])}
            for uid, rows in sampled.items()
        },
    }


def hard_uids(problems: Iterable[SampledProblem], benchmark: str) -> tuple[set[str], set[str]]:
    """(hard, all) uids of a benchmark in a base model's evaluation: right at most HARD_AT_MOST
    times.

    A response without a grade counts as right here: what may have been solved is not hard."""
    not_wrong = {
        problem.uid: sum(
            response.verdict is not Verdict.WRONG for response in problem.responses
        )
        for problem in problems
        if problem.benchmark == benchmark
    }
    return {uid for uid, count in not_wrong.items() if count <= HARD_AT_MOST}, set(not_wrong)


def headline(summary: dict[str, Any], n_samples: int) -> dict[str, dict[str, Any]]:
    """Return the estimates of a benchmark that tables show, by name."""
    last = str(n_samples)
    return {
        "pass_at_1": summary["pass_at_1"],
        f"pass_at_{last}": summary["pass_at_k"][last],
        f"majority_at_{last}": summary["majority_at_k"][last],
        "response_tokens_mean": summary["response_tokens_mean"],
        "truncated_rate": summary["truncated_rate"],
    }


def mean_over_benchmarks(
    summaries: dict[str, dict[str, Any]], n_samples: int
) -> dict[str, float | None]:
    """Unweighted means, as tables of papers have them; None where a benchmark has no value."""
    rows = [headline(summary, n_samples) for summary in summaries.values()]
    values = {
        name: [row[name]["value"] for row in rows]
        for name in rows[0]
        if name != "truncated_rate"
    }
    return {name: None if None in column else fmean(column) for name, column in values.items()}


# ── tables ──

CURVES = {"Pass@k": "pass_at_k", "maj@k": "majority_at_k"}


def markdown(results: dict[str, Any]) -> str:
    """Write the compared part of results.json as Markdown. Percentages with 95% bootstrap intervals."""
    settings, n = results["settings"], results["settings"]["n_samples"]
    lines = [
        f"# {results['model']['name']}",
        "",
        f"{n} responses per problem, temperature {settings['temperature']}, top_p {settings['top_p']}, up to "
        f"{settings['max_new_tokens']} tokens, seed {settings['seed']}. 95% bootstrap intervals over problems.",
        "",
        *_overview("benchmark", results["benchmarks"], n, results["mean"]),
    ]
    for name, summary in results["benchmarks"].items():
        lines += ["", f"## {name}", "", *_origin(summary), ""]
        curves = [
            [label, *(_cell(key, one) for one in summary[key].values())]
            for label, key in CURVES.items()
        ]
        lines += _table(["k", *summary["pass_at_k"]], curves)
        if summary["lengths"]:
            lines += ["", *_overview("token limit", summary["lengths"], n)]
    return "\n".join(lines) + "\n"


def _overview(
    first: str, summaries: dict[str, Any], n: int, means: dict[str, Any] | None = None
) -> list[str]:
    header = [
        first,
        "problems",
        f"Pass@1 (avg@{n})",
        f"Pass@{n}",
        f"maj@{n}",
        "tokens",
        "truncated",
        "ungraded",
    ]
    rows = [
        [
            name,
            str(one["num_problems"]),
            *map(_cell, *zip(*headline(one, n).items(), strict=True)),
            str(one["num_ungraded"]),
        ]
        for name, one in summaries.items()
    ]
    if means and len(rows) > 1:
        cells = [_cell(name, {"value": value, "low": None}) for name, value in means.items()]
        rows.append(["mean", "", *cells, "", ""])
    return _table(header, rows)


def _cell(name: str, estimate: dict[str, Any]) -> str:
    """Write a share in percent with its interval, "41.2 [38.0, 44.4]", or a number of tokens; "-": none."""
    if estimate["value"] is None or name == "response_tokens_mean":
        return "-" if estimate["value"] is None else f"{estimate['value']:.0f}"
    text = f"{100 * estimate['value']:.1f}"
    return (
        text
        if estimate["low"] is None
        else f"{text} [{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"
    )


def _origin(summary: dict[str, Any]) -> list[str]:
    text = f"{summary['num_problems']} problems of {summary['source']}"
    if summary["hard_of"]:
        text += f", those that {summary['hard_of']} got right at most {HARD_AT_MOST} time"
    if summary.get("num_trained_on"):
        others = _cell("pass_at_1", summary["pass_at_1_of_others"])
        text += f", {summary['num_trained_on']} of which were trained on (Pass@1 of the others: {others})"
    if summary["num_duplicates"] or summary["num_unusable"]:
        text += f"; left out: {summary['num_duplicates']} repeated, {summary['num_unusable']} unusable rows"
    if summary["num_ungraded"]:
        reasons = ", ".join(
            f"{count} {reason}" for reason, count in sorted(summary["ungraded_reasons"].items())
        )
        text += f". {summary['num_ungraded']} of {summary['num_responses']} responses could not be graded ({reasons}) and take no part"
    return [text + "."]


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    align = ["---"] + ["---:"] * (len(header) - 1)
    return [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
        for row in (header, align, *rows)
    ]
