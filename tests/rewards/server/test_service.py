"""The routes of a running service."""

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import httpx
import pytest
from click.testing import CliRunner

from r3_openrlhf.config import CodeConfig, RewardConfig
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.rewards.exchange import encode_request
from r3_openrlhf.rewards.server import cli
from r3_openrlhf.rewards.server.admission_queue import AdmissionQueue
from r3_openrlhf.rewards.server.settings import ServerSettings
from tests.rewards.graders import graded, request

from .service import answer_after, endless_item, grade_item, post, running


def test_a_batch_is_answered_item_by_item(service):
    entry = {"question": "", "answer": "4", "metadata": {"source_dataset": "chain_sum"}}
    items = [
        grade_item(r"It is \boxed{5}."),
        grade_item(r"It is \boxed{6}.", "5", "6"),
        grade_item("I do not know", "5", truncated=True),
        grade_item("<answer>4</answer>", "4", task="reasoning_gym", metadata=entry),
        grade_item("Yes", "yes", task="exact"),
        endless_item(),
        grade_item(r"\boxed{5}", ""),
    ]
    results = post(service.url, "/grade", {"items": items}).json()["results"]
    assert [(r["verdict"], r["reason"], r["score"], r["reward"]) for r in results] == [
        ("correct", "correct", 1.0, 1.75),
        ("correct", "correct", 1.0, 1.75),
        ("wrong", "no_answer", 0.0, 0.0),
        ("correct", "correct", 1.0, 1.75),
        ("correct", "correct", 1.0, 1.75),
        ("ungraded", "timeout", None, None),
        ("ungraded", "bad_reference", None, None),
    ]
    assert results[0]["extracted"] == "5"
    assert 2.0 <= results[5]["seconds"] < 2.0 + 3.5


def test_health_and_ready(service):
    assert httpx.get(service.url + "/health", timeout=300).json() == {
        "status": "ok",
        "pending": 0,
    }
    ready = answer_after(503, service.url + "/ready")  # a probe may be late
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 422, "JSON"),
        (b'{"items":[]}', 422, "length >= 1"),
        (b'{"items":[{"response":"x","references":["1"],"num_tokens":-1}]}', 422, "num_tokens"),
        (
            b'{"items":[{"response":"x","references":["1"],"num_tokens":1,"task":"python"}]}',
            422,
            "task",
        ),
        (b'{"items":[{"response":"\\ud800","references":["1"],"num_tokens":1}]}', 422, "JSON"),
        (b'{"items":[{"response":"x","references":["1"],"num_tokens":NaN}]}', 422, "JSON"),
        (b'{"items":[{"metadata":' + b"[" * 100_000, 400, "parsing"),
        (b'{"items":' + b"9" * 5000 + b"}", 422, "items"),
        (
            b'{"items":[{"response":"x","references":["1"],"num_tokens":1,"metadata":[]}]}',
            422,
            "metadata",
        ),
    ],
)
def test_a_wrong_body_is_answered_with_a_sentence(service, body, status, words):
    answer = httpx.post(
        service.url + "/grade",
        content=body,
        headers={"Content-Type": "application/json"},
        timeout=300,
    )
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text


def test_odd_metadata_is_that_items_trouble_alone(service):
    deep = "1"
    for _ in range(200):
        deep = [deep]
    items = [
        grade_item(task="reasoning_gym", metadata={"x": "LONG"}),
        grade_item(task="reasoning_gym", metadata={"x": 10**30}),
        grade_item(task="reasoning_gym", metadata={"x": deep}),
        grade_item(),
    ]
    # more digits than Python reads
    body = json.dumps({"items": items}).replace('"LONG"', "9" * 5000)
    answer = httpx.post(
        service.url + "/grade",
        content=body,
        headers={"Content-Type": "application/json"},
        timeout=300,
    )
    reasons = [result["reason"] for result in answer.json()["results"]]
    assert reasons == ["bad_metadata", "bad_reference", "bad_reference", "correct"]


def test_a_large_body_is_refused_before_it_is_read():
    with running("--max-body-mb", "1") as service:
        assert (
            post(service.url, "/grade", {"items": [grade_item("x" * 2**20)]}).status_code == 413
        )

        def chunks():  # without a declared length
            for _ in range(20):
                yield b" " * 2**17

        assert (
            httpx.post(service.url + "/grade", content=chunks(), timeout=300).status_code == 413
        )
        assert post(service.url, "/grade", {"items": [grade_item()]}).status_code == 200


def test_more_than_the_queue_holds_is_answered_with_503_and_nothing_is_lost():
    with running("--max-pending", "4", "--timeout", "1", "--workers", "1") as service:

        def send(i):
            return post(
                service.url,
                "/grade",
                {"items": [grade_item(rf"\boxed{{{i}!!!!}}"), endless_item(i)]},
            )

        with ThreadPoolExecutor(12) as threads:
            answers = list(threads.map(send, range(12)))
        by_status = {
            status: [a for a in answers if a.status_code == status] for status in (200, 503)
        }
        assert (
            len(by_status[200]) + len(by_status[503]) == 12
            and by_status[200]
            and by_status[503]
        )
        assert all(answer.headers["Retry-After"] == "1" for answer in by_status[503])
        assert httpx.get(service.url + "/health", timeout=300).json()["pending"] == 0
        assert (
            post(service.url, "/grade", {"items": [grade_item()]}).json()["results"][0][
                "verdict"
            ]
            == "correct"
        )


def test_the_token_is_needed_where_there_is_one():
    token = "a-token-of-enough-characters"
    body = {"items": [grade_item()]}
    with running(token=token) as service:
        assert httpx.get(service.url + "/health", timeout=300).status_code == 200
        assert post(service.url, "/grade", body).status_code == 401
        for wrong in (
            "Bearer wrong",
            f"Bearer {token}x",
            "Bearer",
            f"Token {token}",
            "Basic !!!",
        ):
            assert (
                post(service.url, "/grade", body, headers={"Authorization": wrong}).status_code
                == 401
            )
        assert (
            post(
                service.url, "/grade", body, headers={"Authorization": f"Bearer {token}"}
            ).status_code
            == 200
        )
        with_password = service.url.replace("http://", f"http://r3:{token}@")
        assert post(with_password, "/grade", body).status_code == 200


def test_while_the_service_ends_items_are_ungraded_and_nobody_fails():
    async def run():
        queue = AdmissionQueue(ServerSettings())
        queue.close()
        return await queue.grade([(request("5"), encode_request(request("5")))])

    assert [grade.reason for grade in asyncio.run(run())] == ["closed"]


def test_settings_that_would_be_unsafe_are_refused():
    with pytest.raises(ConfigError, match="0.0.0.0.*R3_REWARD_TOKEN"):
        ServerSettings(host="0.0.0.0")
    with pytest.raises(ConfigError, match="16"):
        ServerSettings(host="0.0.0.0", token="short")
    with pytest.raises(ConfigError, match="data.task is .poetry"):
        ServerSettings(task="poetry")
    for host in ("127.0.0.1", "::1", "localhost"):
        ServerSettings(host=host)


def test_the_command_says_what_is_wrong_and_exits_with_1():
    program = [
        sys.executable,
        "-c",
        "from r3_openrlhf.cli import main; main()",
        "serve-rewards",
    ]
    done = subprocess.run([*program, "--host", "0.0.0.0"], capture_output=True, text=True)
    assert (
        done.returncode == 1
        and "R3_REWARD_TOKEN" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_programs_are_run_as_the_options_say(monkeypatch):
    started = []
    monkeypatch.setattr(cli, "run", started.append)
    options = "--code-seconds-per-test 0.5 --code-seconds 9 --code-memory-mb 256 --code-url http://box:80"
    options += " --code-language c=my.module:C --code-language d=d.py:D"
    done = CliRunner().invoke(cli.serve_rewards, options.split())
    assert done.exit_code == 0, done.output
    languages = {"c": "my.module:C", "d": "d.py:D"}
    expected = CodeConfig(
        seconds_per_test=0.5, seconds=9, memory_mb=256, url="http://box:80", languages=languages
    )
    assert started[0].reward.code == expected


def test_a_served_grade_is_the_local_one(service):
    """The service adds nothing: its grades are those of local grading, but for the seconds."""
    cases = [
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{x^2}", "x*x"),
        ("none", "3"),
        (r"\boxed{(1,2)}", "(2,1)"),
    ]
    served = post(
        service.url, "/grade", {"items": [grade_item(a, b) for a, b in cases]}
    ).json()["results"]

    here = [
        asdict(grade)
        for grade in graded(RewardConfig(), [request(a, b, num_tokens=8192) for a, b in cases])
    ]
    assert [{**grade, "seconds": 0} for grade in served] == [
        {**grade, "seconds": 0} for grade in here
    ]
