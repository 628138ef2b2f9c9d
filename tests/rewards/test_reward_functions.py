"""Rewards that users write as functions: ours, TRL's, OpenRLHF's, several with weights, and what may go wrong in them."""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.rewards.exchange import in_group
from tests.rewards import graders
from tests.tables import tables_beside

TABLES = tables_beside(__file__)

MODULE = """
import asyncio, os, time
import numpy

def is_right(response, reference):
    return response.strip() == reference

def level(response, reference, *, problem, row):
    return {"reward": row["weight"] if reference in response else -0.5, "num_words": len(response.split()), "of": problem}

async def later(response, reference):
    await asyncio.sleep(0)
    return float(reference in response)

def short(num_tokens):
    return 1 - num_tokens / 10

def odd(response):
    values = {"nan": float("nan"), "text": "yes", "none": None, "dict": {"value": 1}, "numpy": numpy.float32(0.5),
              "many": [1, 2], "score": {"score": 1.0, "reward": -2}}
    if response == "raise":
        raise LookupError("no such word")
    if response == "hang":
        time.sleep(1000)
    if response == "crash":
        os._exit(1)
    return values[response]

def of_trl(completions, answer, **kwargs):
    assert kwargs["prompts"] == ["Q?"] * len(completions) and len(answer) == len(completions)
    return [1.0 if answer[0] in text else None for text in completions]

def rank(responses, reference, num_tokens, truncated):
    with open("calls", "a") as file:
        file.write("x")
    assert num_tokens == [5] * len(responses) and truncated == [False] * len(responses)
    return [float(reference in one) + sorted(responses).index(one) / 10 for one in responses]

def too_few(responses):
    return numpy.ones(len(responses) - 1)

def group_hangs(responses):
    time.sleep(1000)

def trl_ids(completions, completion_ids):
    return [len(ids) for ids in completion_ids]

class Tagged:
    def __init__(self, tag):
        self.tag = tag
    def __call__(self, response, reference):
        return f"<{self.tag}>{reference}</{self.tag}>" in response
    def score(self, response, reference, *, factor=1.0):
        return factor * self(response, reference)

judge = Tagged("i")

def of_trl_talk(prompts, completions, **kwargs):
    return [float(prompts[0][-1]["content"] in messages[0]["content"]) for messages in completions]

def of_openrlhf(queries, prompts, labels):
    reward = numpy.array([float(queries[0] == prompts[0] + labels[0])])
    return {"rewards": reward - 1, "scores": reward, "extra_logs": {"length": numpy.array([3.0])}}

def needs_more(response, answer):
    return 1.0

NUMBER = 3
"""
TASKS = "r3_openrlhf.rewards.answers.tasks"


@pytest.fixture
def user_files(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(MODULE)
    (tmp_path / "reward_func.py").write_text(
        "def reward_func(queries, prompts, labels):\n    return {'rewards': [0.25]}\n"
    )
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("r3_user_")]:
        del sys.modules[name]


def grades(responses, **settings):
    config = RewardConfig(**{"num_workers": 1, "timeout_s": 3.0} | settings)
    return graders.graded(config, map(request, responses))


def request(response, **fields):
    known = {"row": {"weight": 0.25, "answer": "4"}, "prompt": "Q?", "problem": "2 + 2"}
    return graders.request(response, "4", num_tokens=5, **known | fields)


def summary(grade):
    return grade.verdict.value, grade.reason, grade.reward


def test_what_a_function_returns_is_the_reward(user_files):
    right, wrong = grades(["4", "5"], function="my_rewards.py:is_right")
    assert summary(right) == ("correct", "correct", 1.0)  # and no length reward
    assert summary(wrong) == ("wrong", "wrong", 0.0)


def test_a_runs_settings_are_read_from_other_directories_too(user_files, tmp_path, monkeypatch):
    config = RewardConfig(functions=["data.task", "my_rewards.py:short", "reward_func.py"])
    assert config.functions == [
        "data.task",
        f"{tmp_path}/my_rewards.py:short",
        f"{tmp_path}/reward_func.py",
    ]
    monkeypatch.chdir("/")
    assert RewardConfig(functions=config.functions) == config


def test_partial_credit_negative_rewards_and_values_beside_them(user_files):
    right, wrong = grades(["it is 4", "5"], function="my_rewards.py:level", correct_from=0.25)
    assert summary(right) == ("correct", "correct", 0.25)
    assert summary(wrong) == ("wrong", "wrong", -0.5)
    assert right.extras == {"num_words": 3.0, "of": "2 + 2"}
    (strict,) = grades(["it is 4"], function="my_rewards.py:level")
    assert summary(strict) == ("wrong", "wrong", 0.25)


def test_an_async_function(user_files):
    assert [
        grade.reward for grade in grades(["4", "5", "4"], function="my_rewards.py:later")
    ] == [1.0, 0.0, 1.0]


def test_several_are_added_up_by_weight_and_the_built_in_grader_may_be_one_of_them(user_files):
    # 2 * math + 0.2 * (1 - 5 / 10), by hand
    right, wrong = grades(
        [r"\boxed{4.0}", r"\boxed{5}"],
        functions=["data.task", "my_rewards.py:short"],
        weights=[2.0, 0.2],
    )
    assert (summary(right), summary(wrong)) == (
        ("correct", "correct", 2.1),
        ("wrong", "wrong", 0.1),
    )
    assert right.extras == {"data.task": 1.0, "short": 0.5} and right.extracted == "4.0"
    level_too = ["my_rewards.py:level", "my_rewards.py:short"]
    (both,) = grades(["4"], functions=level_too)
    assert both.reward == 0.75 and both.extras["level.num_words"] == 1.0


@pytest.mark.parametrize(("response", "reason", "error"), TABLES["ungraded"])
def test_a_function_that_gives_no_number_leaves_its_response_ungraded(
    user_files, response, reason, error, caplog
):
    results = grades([response, response, "numpy", "score"], function="my_rewards.py:odd")
    assert [summary(grade) for grade in results] == [
        ("ungraded", reason, None),
        ("ungraded", reason, None),
        ("wrong", "wrong", 0.5),
        ("correct", "correct", -2.0),
    ]
    assert results[0].extras.get("error", "") == error
    assert caplog.text.count("Traceback") == (response == "raise")


def test_trls_signature(user_files):
    right, absent = grades(["4", "5"], function="my_rewards.py:of_trl")
    assert (right.reward, absent.reason) == (1.0, "no_score")
    # None of one among several is "not mine"
    results = grades(["4", "5"], functions=["my_rewards.py:of_trl", "my_rewards.py:short"])
    assert [grade.reward for grade in results] == [1.5, 0.5]


def group_grades(responses, **settings):
    config = RewardConfig(**{"num_workers": 1, "timeout_s": 3.0} | settings)
    return graders.graded(config, in_group(list(map(request, responses))))


@given(st.lists(st.text("45b", max_size=4), min_size=1, max_size=6))
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_function_of_a_group_gets_all_of_it_once(user_files, responses):
    Path("calls").unlink(missing_ok=True)
    results = group_grades(
        responses, functions=["my_rewards.py:short", "my_rewards.py:rank", "data.task"]
    )
    ranks = [float("4" in one) + sorted(responses).index(one) / 10 for one in responses]
    assert [grade.extras["rank"] for grade in results] == pytest.approx(ranks)
    assert {grade.extras["short"] for grade in results} == {0.5} and Path(
        "calls"
    ).read_text() == "x"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("too_few", "raised ValueError"), ("group_hangs", "timeout"), ("of_trl", None)],
)
def test_a_group_without_values_is_ungraded_as_a_whole(user_files, name, reason):
    results = group_grades(["4", "44", "444"], function=f"my_rewards.py:{name}")
    assert {grade.reason for grade in results} == {reason or "correct"}


@pytest.mark.parametrize(
    ("response", "chosen", "reward"),
    [
        ("<b>4</b>", {"function": "my_rewards.py:Tagged", "function_args": {"tag": "b"}}, 1.0),
        ("<i>4</i>", {"function": "my_rewards.py:judge"}, 1.0),
        (
            "<i>4</i>",
            {"function": "my_rewards.py:judge.score", "function_args": {"factor": 0.5}},
            0.5,
        ),
        (
            "<b>4</b>",
            {"functions": ["my_rewards.py:Tagged"], "function_args": {"Tagged": {"tag": "b"}}},
            1.0,
        ),
        (
            r"\boxed{4.3}",
            {"function": f"{TASKS}:near", "function_args": {"tolerance": 0.1}},
            1.0,
        ),
        (r"\boxed{4.3}", {"function": f"{TASKS}:near"}, 0.0),
        (
            r"\boxed{5}",
            {"functions": ["data.task", f"{TASKS}:in_form"], "weights": [1.0, 0.25]},
            0.25,
        ),
        (
            "<think> 4",
            {"functions": ["data.task", f"{TASKS}:in_form"], "weights": [1.0, 0.25]},
            0.0,
        ),
    ],
)
def test_arguments_classes_and_attributes(user_files, response, chosen, reward):
    assert grades([response], **chosen)[0].reward == reward


def test_trls_messages_where_the_rows_own_prompt_is_messages(user_files):
    config = RewardConfig(function="my_rewards.py:of_trl_talk", num_workers=1)
    messages = [{"role": "user", "content": "4"}]
    assert graders.graded(config, [request("4!", row={"prompt": messages})])[0].reward == 1.0


def test_openrlhfs_signature_and_its_file(user_files):
    right, wrong = grades(["4", "5"], function="my_rewards.py:of_openrlhf")
    assert (summary(right), summary(wrong)) == (
        ("correct", "correct", 0.0),
        ("wrong", "wrong", -1.0),
    )
    assert right.extras == {"length": 3.0}
    assert grades(["4"], function="reward_func.py")[0].reward == 0.25


@pytest.mark.parametrize(("settings", "words"), TABLES["refused"])
def test_what_cannot_be_a_reward_is_an_error_at_the_start(user_files, settings, words):
    with pytest.raises(ConfigError, match=r"reward\.") as error:
        RewardConfig(**settings)
    assert words in str(error.value)
