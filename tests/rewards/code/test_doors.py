"""One contract behind every door: local processes, `/grade`, a user's functions; and `r3 attack-rewards`."""

import json
from collections import Counter

from click.testing import CliRunner

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.evaluation.attacks.cli import attack_rewards
from r3_openrlhf.evaluation.attacks.generate import program_attacks
from r3_openrlhf.method.types import Verdict
from tests.rewards import graders
from tests.rewards.code.programs import ADD, CALLS, fenced
from tests.rewards.server.service import grade_item, post, running

RIGHT = fenced("def add(a, b):\n    return a + b")
HALF = fenced("def add(a, b):\n    return 3")
ENDS = fenced("import os\nos._exit(0)")


def graded(config, *responses):
    return graders.graded(
        config,
        [graders.request(text, CALLS, task="code", num_tokens=8192) for text in responses],
    )


def test_local_processes_grade_programs_side_by_side():
    grades = graded(RewardConfig(num_workers=2), *[RIGHT, HALF, ENDS, "no block"] * 4)
    counts = Counter(
        (grade.verdict, grade.reason, grade.score, grade.reward) for grade in grades
    )
    assert counts == {
        (Verdict.CORRECT, "correct", 1.0, 1.75): 4,
        (Verdict.WRONG, "failed test 2 of 2: wrong value", 0.0, 0.0): 4,
        (Verdict.WRONG, "failed test 1 of 2: the process ended early", 0.0, 0.0): 4,
        (Verdict.WRONG, "no_code", 0.0, 0.0): 4,
    }


def test_grade_serves_the_same(tmp_path):
    items = [grade_item(text, CALLS, task="code") for text in (RIGHT, HALF)]
    items += [
        grade_item(fenced("print(3)"), ADD, task="code"),
        grade_item(RIGHT, "3", task="code"),
        grade_item(),
    ]
    with running("--workers", "1", "--task", "code") as service:
        results = post(service.url, "/grade", {"items": items}).json()["results"]
        (grade,) = graded(RewardConfig(urls=[service.url]), RIGHT)
    assert [(result["verdict"], result["reason"], result["score"]) for result in results] == [
        ("correct", "correct", 1.0),
        ("wrong", "failed test 2 of 2: wrong value", 0.0),
        ("wrong", "failed test 2 of 3: wrong output", 0.0),
        ("ungraded", "bad_reference", None),
        ("correct", "correct", 1.0),
    ]
    assert (grade.verdict, grade.reward) == (Verdict.CORRECT, 1.75)


def test_a_function_beside_the_tests(tmp_path):
    file_of_user = tmp_path / "own.py"
    file_of_user.write_text("def brief(response):\n    return float(len(response) < 60)\n")
    config = RewardConfig(
        functions=["data.task", f"{file_of_user}:brief"], weights=[1.0, 0.5], num_workers=1
    )
    assert [grade.reward for grade in graded(config, RIGHT, HALF)] == [1.5, 1.0]


def test_attacks_on_a_user_s_problems(tmp_path):
    rows = [
        {"problem": "add", "tests": {"inputs": ["1 2\n", "5 9\n"], "outputs": ["3\n", "14\n"]}},
        {
            "problem": "f(a, b)",
            "tests": {"inputs": [[1, 2], [4, 5]], "outputs": [3, 9], "fn_name": "f"},
        },
        {
            "problem": "h(a, b)",
            "tests": {
                "asserts": ["check(h)"],
                "setup": "def check(candidate):\n    assert candidate(1, 2) == 3",
            },
        },
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--task", "code", "--problems", str(file)]
    done = CliRunner().invoke(attack_rewards, arguments)
    assert done.exit_code == 0, done.output
    table = {
        line[:36].strip(): line[36:].split()
        for line in done.output.splitlines()
        if line[:1].islower()
    }
    assert table["equal to everything"][1:] == ["0", "0"]
    assert "accepted (" not in done.output and "ungraded (" not in done.output
    # a problem with one test is the user's to see
    file.write_text(
        json.dumps(
            {"problem": "k(a)", "tests": {"inputs": [[1]], "outputs": [3], "fn_name": "k"}}
        )
        + "\n"
    )
    done = CliRunner().invoke(attack_rewards, arguments)
    assert done.exit_code == 1
    assert "accepted (one answer for all)" in done.output


def test_attacks_are_programs_about_the_function_of_the_problem():
    for reference, name in (
        (CALLS, "add"),
        (json.dumps({"asserts": ["assert g(1) == 2"]}), "g"),
        (ADD, None),
    ):
        attacks = list(program_attacks(reference))
        assert len(attacks) > 20 and all(
            "NAME" not in text and "OUTPUT" not in text for _, text in attacks
        )
        for _, text in attacks:
            compile(text, "attack", "exec")
            assert name is None or name in text
