"""Task `code` on the whole stack: programs that a tiny model writes are run, and their verdicts train it."""

import re

import pytest

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.problems.sources import problem_uid
from r3_openrlhf.rewards.code.extraction import last_program
from r3_openrlhf.runs.models.tiny_code import ARGUMENTS, problems, value_of
from tests.stack.training import lines, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.soak]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "code"
    train(run_dir, experiment="code_smoke")
    return run_dir


def test_every_step_is_there_once_and_everything_is_graded(trained):
    metrics = lines(trained / "metrics.jsonl")
    assert [step["step"] for step in metrics] == list(range(1, 9))
    assert sum(step["r3/grading/ungraded"] for step in metrics) == 0
    assert (trained / "final_model").is_dir()


def test_every_mechanism_fires(trained):
    metrics = lines(trained / "metrics.jsonl")
    for key in (
        "r3/replay/recalled",
        "r3/reflection/groups",
        "r3/ranking/groups",
        "r3/groups/mixed",
    ):
        assert sum(step[key] for step in metrics) > 0, key


def test_verdicts_are_those_of_the_programs(trained):
    """Beside a reading of the programs that runs none of them: what the tests ask for is one expression of x."""
    expected = {problem_uid(row["problem"]): row["tests"]["outputs"] for row in problems(32, 1)}
    seen = set()
    for row in rollouts_of(trained):
        if row["recalled_from"] is not None or row["context"] == "reflection":
            continue
        program = last_program(row["text"])
        verdict = "wrong" if program is None else verdict_of(program, expected[row["uid"]])
        if verdict is not None:
            seen.add(verdict)
            assert row["verdict"] == verdict, row
    assert seen == {"correct", "wrong"}


ONE_LINE = re.compile(r"def f\(x\): return (?:x([+*-])(\d)|\(x([+*-])(\d)\)([+*-])(\d))")


def verdict_of(program: str, outputs: list[int]) -> str | None:
    """Of `def f(x): return x+3` and `return (x+3)*2`; None: of another form."""
    found = ONE_LINE.fullmatch(program.strip())
    if found is None:
        return None
    words = [word for word in found.groups() if word]
    parts = [(words[place], int(words[place + 1])) for place in range(0, len(words), 2)]
    return "correct" if [value_of(parts, x) for x in ARGUMENTS] == outputs else "wrong"
