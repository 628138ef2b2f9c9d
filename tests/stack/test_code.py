"""Task `code` on the whole stack: programs that a tiny model writes are run, and their verdicts train it. Killed once, and resumed."""

import os
import re
import signal

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from r3_openrlhf.problems.sources import problem_uid  # noqa: E402
from r3_openrlhf.rewards.code.extraction import last_program  # noqa: E402
from r3_openrlhf.runs.models.tiny_code import ARGUMENTS, problems, value_of  # noqa: E402
from tests.stack.training import Run, lines, rollouts_of, train  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Killed between two checkpoints, anywhere inside a step, and started again with the same command."""
    run_dir = tmp_path_factory.mktemp("runs") / "code"
    with Run(run_dir, experiment="code_smoke") as run:
        run.wait_for_step(4)
        os.killpg(run.process.pid, signal.SIGKILL)
    train(run_dir, experiment="code_smoke")
    return run_dir


def test_every_step_is_there_once_and_everything_is_graded(resumed):
    metrics = lines(resumed / "metrics.jsonl")
    assert [step["step"] for step in metrics] == list(range(1, 9))
    assert sum(step["r3/grading/ungraded"] for step in metrics) == 0
    assert (resumed / "final_model").is_dir()


def test_every_mechanism_fires(resumed):
    metrics = lines(resumed / "metrics.jsonl")
    for key in ("r3/replay/recalled", "r3/reflection/groups", "r3/ranking/groups", "r3/groups/mixed"):
        assert sum(step[key] for step in metrics) > 0, key


def test_verdicts_are_those_of_the_programs(resumed):
    """Beside a reading of the programs that runs none of them: what the tests ask for is one expression of x."""
    expected = {problem_uid(row["problem"]): row["tests"]["outputs"] for row in problems(32, 1)}
    seen = set()
    for row in rollouts_of(resumed):
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
