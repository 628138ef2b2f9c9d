"""`r3 attack-rewards`: known ways around a grader, tried against a user's own problems."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from r3_openrlhf.config import DataConfig, RewardConfig
from r3_openrlhf.config.answer_tasks import DEFAULT_TASK, TASKS
from r3_openrlhf.config.reward_functions import reward_function
from r3_openrlhf.method.errors import ConfigError, DataError
from r3_openrlhf.method.open_table import is_import_path
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.sources import REASONING_GYM, Label, load_problems
from r3_openrlhf.rewards.exchange import in_group

if TYPE_CHECKING:
    from r3_openrlhf.evaluation.grading import Grading

TASK_OF_FUNCTIONS = DEFAULT_TASK  # whose references and attacks a function of yours gets
SHOWN = 10  # examples of each kind
MAX_CHARS = 110


class Attempt(NamedTuple):
    """A response to a problem and its grade. family: "" for the reference itself."""

    label: Label
    family: str
    response: str
    verdict: Verdict
    reason: str


@click.command("attack-rewards")
@click.option(
    "--task",
    default=DEFAULT_TASK,
    show_default=True,
    metavar="NAME | FUNCTION",
    help=f"A grader ({', '.join(TASKS)}), or your own function, as reward.function.",
)
@click.option(
    "--problems", required=True, help="A file, as data.path: .jsonl, .json, .parquet."
)
@click.option("--problem-key", default=None, help="As data.problem_key.")
@click.option("--answer-key", default=None, help="As data.answer_key.")
@click.option(
    "--limit",
    default=200,
    show_default=True,
    type=click.IntRange(min=1),
    help="Problems, from the first on.",
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    help="A reward server to be tried instead of local processes; may be repeated.",
)
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    help="Seconds for one response, without --url.",
)
@click.option(
    "--correct-from",
    default=RewardConfig.correct_from,
    show_default=True,
    help="Of your own function: the reward from which a response is correct, as reward.correct_from.",
)
def attack_rewards(
    task: str,
    problems: str,
    problem_key: str | None,
    answer_key: str | None,
    limit: int,
    urls: tuple[str, ...],
    timeout: float,
    correct_from: float,
) -> None:
    """Test your grader with known reward hacks on your problems, before a long run.

    Prints accepted attacks, and refused references. Exit code 1 when an attack was accepted.

    \b
    r3 attack-rewards --task math --problems train.jsonl
    r3 attack-rewards --task code --problems programs.jsonl --limit 20
    r3 attack-rewards --task my_reward.py:is_right --problems train.jsonl
    r3 attack-rewards --problems train.jsonl --url http://127.0.0.1:5000
    """
    from r3_openrlhf.evaluation.grading import Grading

    if problems.startswith(REASONING_GYM):
        name = problems.removeprefix(REASONING_GYM)
        raise DataError(
            f"--problems is {problems}; in a checkout, use python benchmarks/scorer_attacks.py {name}"
        )
    function = task if is_import_path(task) else None
    if function is not None and urls:
        raise ConfigError(
            f"--task is {function} and --url {urls[0]}; a server has its own reward, so leave one of them out"
        )
    reward = RewardConfig(
        urls=list(urls), function=function, correct_from=correct_from, timeout_s=timeout
    )
    if function is not None:
        reward_function(
            "--task", function
        )  # refuses what cannot be imported, before any process
    grading = Grading(reward)
    data = DataConfig(
        path=problems,
        task=TASK_OF_FUNCTIONS if function else task,
        problem_key=problem_key,
        answer_key=answer_key,
    )
    labels = load_problems(data, with_rows=reward.reads_rows).labels[:limit]
    if not all(label.references for label in labels):
        raise DataError(
            f"--problems is {problems}, whose rows have no answers, of which attacks are made; name their column by --answer-key"
        )
    click.echo(f"{len(labels)} problems of {problems}", err=True)
    attempts = attempt_all(labels, grading)
    attacks = [attempt for attempt in attempts if attempt.family]
    references = [attempt for attempt in attempts if not attempt.family]
    accepted, ungraded = (
        [attack for attack in attacks if attack.verdict is verdict]
        for verdict in (Verdict.CORRECT, Verdict.UNGRADED)
    )
    refused = [
        reference for reference in references if reference.verdict is not Verdict.CORRECT
    ]
    counts = [
        Counter(attack.family for attack in some) for some in (attacks, accepted, ungraded)
    ]
    click.echo(f"{'attack':36} {'tried':>7} {'accepted':>9} {'ungraded':>9}")
    for family in counts[0]:
        click.echo(
            f"{family:36} {counts[0][family]:7} {counts[1][family]:9} {counts[2][family]:9}"
        )
    click.echo(f"references: {len(references)}, of which refused: {len(refused)}")
    for kind, shown in (
        ("accepted", accepted),
        ("ungraded", ungraded),
        ("reference refused", refused),
    ):
        for label, family, response, _, reason in shown[:SHOWN]:
            texts = f"{response[:MAX_CHARS]!r} for {str(label.references[:1])[:MAX_CHARS]}"
            click.echo(
                f"{kind} ({family if kind == 'accepted' else reason}), {label.uid}: {texts}"
            )
    sys.exit(bool(accepted))


def attempt_all(labels: Sequence[Label], grading: Grading) -> list[Attempt]:
    """Grade references and attacks."""
    from r3_openrlhf.evaluation.attacks.generate import attacks_on

    attempts: list[Attempt] = []
    with grading:
        for label in labels:
            task = TASKS[label.task]
            tried = list(attacks_on(label))
            if label.references and not task.runs_programs:
                tried.insert(0, ("", task.answer_form % label.references[0]))
            requests = [
                grading.request(label, text, num_tokens=len(text), truncated=False)
                for _, text in tried
            ]
            grades = zip(tried, grading.grade(in_group(requests)), strict=True)
            attempts += [
                Attempt(label, *response, grade.verdict, grade.reason)
                for response, grade in grades
            ]
    return attempts
