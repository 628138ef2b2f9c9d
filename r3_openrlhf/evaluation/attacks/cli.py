"""`r3 attack-rewards`."""

from __future__ import annotations

import sys
from collections import Counter

import click

from r3_openrlhf.config import DataConfig, RewardConfig
from r3_openrlhf.config.answer_tasks import DEFAULT_TASK, TASKS

SHOWN = 10  # examples of each kind
MAX_CHARS = 110
MAX_WORDS = 8  # of a reference that is nothing but an answer


@click.command("attack-rewards")
@click.option("--task", type=click.Choice(list(TASKS)), default=DEFAULT_TASK, show_default=True)
@click.option(
    "--problems", required=True, help='A file, as data.path: .jsonl, .json, .parquet, or "reasoning_gym:TASK".'
)
@click.option("--problem-key", default=None, help="As data.problem_key.")
@click.option("--answer-key", default=None, help="As data.answer_key.")
@click.option(
    "--limit", default=200, show_default=True, type=click.IntRange(min=1), help="Problems, from the first on."
)
@click.option(
    "--url", "urls", multiple=True, help="A reward server to be tried instead of local processes; may be repeated."
)
@click.option("--timeout", default=10.0, show_default=True, help="Seconds for one response, without --url.")
def attack_rewards(
    task: str,
    problems: str,
    problem_key: str | None,
    answer_key: str | None,
    limit: int,
    urls: tuple[str, ...],
    timeout: float,
) -> None:
    """Try known ways to a full reward without a solution on your own problems, before a long run.

    Prints what was accepted, and references that were refused. Exit code 1 when an attack was accepted.

    \b
    r3 attack-rewards --task math --problems train.jsonl
    r3 attack-rewards --task code --problems programs.jsonl --limit 20
    r3 attack-rewards --task reasoning_gym --problems reasoning_gym:countdown --limit 20
    r3 attack-rewards --problems reasoning_gym:all --limit 2      every data set of the library
    r3 attack-rewards --problems train.jsonl --url http://127.0.0.1:5000
    """
    from r3_openrlhf.config.answer_tasks import check_data_set
    from r3_openrlhf.evaluation.attacks.run import attack
    from r3_openrlhf.problems.sources import REASONING_GYM, load_problems

    reward = RewardConfig(urls=list(urls), timeout_s=timeout)
    if problems == f"{REASONING_GYM}all":
        _attack_library(limit, reward)
        return
    from_library = problems.startswith(REASONING_GYM)
    if from_library:
        check_data_set(problems.removeprefix(REASONING_GYM))
    data = DataConfig(
        path=problems,
        task=None if from_library else task,
        problem_key=problem_key,
        answer_key=answer_key,
        reasoning_gym={"size": limit} if from_library else {},
    )
    labels = load_problems(data).labels[:limit]
    click.echo(f"{len(labels)} problems of {problems}", err=True)
    findings = attack(labels, reward)

    accepted = Counter(attempt.family for attempt in findings.accepted)
    ungraded = Counter(attempt.family for attempt, _ in findings.ungraded)
    click.echo(f"{'attack':22} {'tried':>7} {'accepted':>9} {'ungraded':>9}")
    for family, tried in findings.tried.items():
        click.echo(f"{family:22} {tried:7} {accepted[family]:9} {ungraded[family]:9}")
    click.echo(f"references: {findings.num_references}, of which refused: {len(findings.refused)}")
    if task == DEFAULT_TASK and not from_library:
        _show_readings([reference for label in labels for reference in label.references])
    _show("accepted", ((attempt, attempt.family) for attempt in findings.accepted))
    _show("ungraded", findings.ungraded)
    _show("reference refused", findings.refused)
    if findings.accepted:
        sys.exit(1)


def _attack_library(limit: int, reward: RewardConfig) -> None:
    """Every data set of reasoning_gym, with its state and the results of the attacks."""
    from reasoning_gym.factory import DATASETS

    from r3_openrlhf.config.answer_tasks import REFUSED_DATA_SETS
    from r3_openrlhf.evaluation.attacks.run import attack
    from r3_openrlhf.problems.sources import REASONING_GYM, load_problems
    from r3_openrlhf.rewards.answers.scorer_guards import GUARDED_DATA_SETS

    any_accepted = False
    click.echo(f"{'data set':26} {'scorer':9} {'tried':>6} {'accepted':>9} {'ungraded':>9} {'own answer refused':>19}")
    for name in sorted(DATASETS):
        if name in REFUSED_DATA_SETS:
            click.echo(f"{name:26} refused: {REFUSED_DATA_SETS[name]}")
            continue
        options = {"size": limit}
        labels = load_problems(DataConfig(path=REASONING_GYM + name, reasoning_gym=options)).labels
        found = attack(labels, reward)
        any_accepted |= bool(found.accepted)
        standing = "guarded" if name in GUARDED_DATA_SETS else "as it is"
        click.echo(
            f"{name:26} {standing:9} {found.tried.total():6} {len(found.accepted):9} {len(found.ungraded):9} {len(found.refused):19}"
        )
        _show("accepted", ((attempt, attempt.family) for attempt in found.accepted))
    if any_accepted:
        sys.exit(1)


def _show_readings(references: list[str]) -> None:
    """References that cannot be compared, and long ones of which the grader takes every word."""
    from r3_openrlhf.rewards.answers.references import read_reference

    readings = {reference: read_reference(reference) for reference in references}
    unusable = {reference: read.unusable for reference, read in readings.items() if read.unusable}
    whole = {
        reference: "taken whole: only its own words are right"
        for reference, read in readings.items()
        if not read.unusable and read.text == reference.strip() and len(reference.split()) > MAX_WORDS
    }
    click.echo(f"references that are no answer: {len(unusable)}, taken whole: {len(whole)}")
    for reference, why in [*list(unusable.items())[:SHOWN], *list(whole.items())[:SHOWN]]:
        click.echo(f"reference {reference[:MAX_CHARS]!r}: {why}")


def _show(kind: str, found) -> None:
    for attempt, why in list(found)[:SHOWN]:
        reference = attempt.label.references[0] if attempt.label.references else "-"
        line = f"{kind} ({why}), {attempt.label.uid}: {attempt.response[:MAX_CHARS]!r} for {reference[:MAX_CHARS]!r}"
        click.echo(line)
