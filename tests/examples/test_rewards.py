"""The rewards of examples/: what the functions say, and a judge behind a local OpenAI-compatible server."""

import json
from pathlib import Path

import pytest

from r3_openrlhf.config import RewardConfig
from tests.answering import answering
from tests.commands import r3
from tests.rewards.graders import graded, request

EXAMPLES = Path(__file__).parents[2] / "examples"


def grades(responses, **settings):
    requests = [
        request(response, "23", problem="5 + 10 + 8", num_tokens=16) for response in responses
    ]
    return graded(RewardConfig(num_workers=1, **settings), requests)


@pytest.mark.parametrize(
    ("name", "rewards"),
    [("is_right", [1.0, 0.0, 0.0]), ("brief", [0.5, 0.5, 0.5]), ("partly", [1.0, 0.2, 0.0])],
)
def test_the_functions(name, rewards):
    responses = ["5+10=15 15+8=23", "so 15+8=23 in words", "9" * 5000]
    assert [
        grade.reward for grade in grades(responses, function=f"{EXAMPLES}/own_reward.py:{name}")
    ] == rewards


@pytest.fixture
def judge(monkeypatch):
    tried = []

    def answer(path, body):
        question = body["messages"][0]["content"]
        tried.append(question)
        if "busy" in question:
            said = "<think>No, or is it no? 23 it is.</think>\n\nYes"
            return 429 if tried.count(question) < 2 else 200, json.dumps(
                {"choices": [{"message": {"content": said}}]}
            )
        said = "Perhaps" if "about" in question else "Yes" if "it is 23" in question else "No."
        return 500 if "broken" in question else 200, json.dumps(
            {"choices": [{"message": {"content": said}}]}
        )

    with answering(answer) as server:
        monkeypatch.setenv("JUDGE_URL", f"{server.url}/v1")
        yield


def test_a_judge(judge):
    responses = ["it is 23", "it is 24", "about 23", "broken", "busy"]
    right, wrong, unsure, broken, busy = grades(
        responses, function=f"{EXAMPLES}/judge.py:agrees"
    )
    assert (right.reward, right.extras) == (1.0, {"judge": "yes"})
    assert (wrong.reward, wrong.verdict) == (0.0, "wrong")
    assert unsure.reason == "no_score" and busy.extras == {"judge": "yes"}
    assert (
        broken.reason == "raised ClientResponseError"
        and "Internal Server Error" in broken.extras["error"]
    )


@pytest.mark.parametrize("function", ["judge.py:agrees", "own_reward.py:partly"])
def test_a_dry_run(function, judge, tmp_path):
    settings = [
        f"data.path={EXAMPLES}/own_problems.jsonl",
        "data.problem_key=question",
        "data.answer_key=total",
    ]
    settings += [f"reward.function={EXAMPLES}/{function}", f"run_dir={tmp_path}/run"]
    done = r3("train", "experiment=cpu_smoke", *settings, "--dry-run")
    assert done.exit_code == 0, done.output
