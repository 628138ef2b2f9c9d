"""What a user's own reward server may get wrong: each answer is judged on its own, and nothing becomes a made-up grade."""

import json
from pathlib import Path

import pytest

from r3_openrlhf.config import RewardConfig
from tests.rewards.graders import graded, request
from tests.rewards.server.own_servers import GOOD, own_server

# changes of a good answer, and the reason; status and answer of a server of OpenRLHF, and the grade
TABLES = json.loads(Path(__file__).with_name("answers_of_servers.json").read_text())


def grades(urls, *, count=3):
    config = RewardConfig(urls=urls, length_reward_max_tokens=None)
    return graded(config, [request(str(i)) for i in range(count)])


def answers(changes):
    """A good result, for the response "1" with these changes; a value of "gone" takes the field away."""

    def answer(items):
        (item,) = items
        result = GOOD | (changes if item["response"] == "1" else {})
        return 200, {
            "results": [{key: value for key, value in result.items() if value != "gone"}]
        }

    return answer


@pytest.mark.parametrize(("changes", "reason"), TABLES["contradictions"])
def test_an_answer_that_contradicts_itself_is_no_grade(changes, reason, caplog):
    with own_server(answers(changes)) as server:
        results = grades([server.url])
    assert [grade.reason for grade in results] == ["correct", reason, "correct"]
    assert (results[1].verdict, results[1].reward) == ("ungraded", None)
    assert f"reward server {server.url}/grade: {reason}" in caplog.text
    assert len(server.bodies) == 3  # nothing is asked twice


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"results": []}, "0 results for one item"),
        ({"results": [GOOD, GOOD]}, "2 results for one item"),
        ({}, "missing field results"),
        ([1], "an answer that is not in the documented form"),
    ],
)
def test_an_answer_of_another_form_is_no_grade(content, reason):
    with own_server(lambda items: (200, content)) as server:
        assert {grade.reason for grade in grades([server.url])} == {reason}


def test_a_wrong_path_is_asked_once_and_another_server_then():
    with own_server(lambda items: (404, {})) as lost, own_server(answers({})) as good:
        assert {grade.reason for grade in grades([lost.url])} == {"http_404"} and len(
            lost.bodies
        ) == 3
        assert {grade.reason for grade in grades([lost.url, good.url])} == {"correct"}


def test_a_server_that_is_out_of_order_is_named_at_the_deadline(at_rest):
    answers = iter([500])
    # the second ask and later ones have no answer
    with own_server(lambda items: (next(answers), {})) as server:
        assert grades([server.url], count=1)[0].reason == "http_500" and len(server.bodies) > 1


@pytest.mark.parametrize(("status", "answer", "expected"), TABLES["of_openrlhf"])
def test_a_server_of_openrlhfs_own_contract(status, answer, expected):
    def answer_of(body):
        assert body == {"query": ["Q?4"], "prompts": ["Q?"], "labels": ["5"]}
        return status, answer

    with own_server(answer_of) as server:
        (grade,) = graded(
            RewardConfig(urls=[server.url + "/get_reward"]), [request("4", prompt="Q?")]
        )
    assert [grade.verdict, grade.reason, grade.reward] == expected
