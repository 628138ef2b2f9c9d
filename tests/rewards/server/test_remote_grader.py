"""The client of the training side against real services that come and go."""

import asyncio
import contextlib
import random
import socket
import threading
import time

import httpx
import psutil
import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards import remote
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader
from r3_openrlhf.rewards.exchange import GradingError
from r3_openrlhf.rewards.remote import RemoteGrader
from r3_openrlhf.rewards.server import admission_queue
from tests.rewards.hostile_payloads import ENDLESS_REFERENCE, endless

from .service import Service, running


def request(i, answer=None):
    """Every third one is wrong, every fourth one needs the symbolic comparison."""
    answer = i + (i % 3 == 0) if answer is None else answer
    text, reference = (f"x^2+{answer}", f"x*x+{i}") if i % 4 == 0 else (str(answer), str(i))
    return GradeRequest(
        response=f"<think>{i}</think>It is \\boxed{{{text}}}.",
        references=(reference,),
        task="math",
        num_tokens=8192,
        truncated=False,
    )


def check(grades):
    """Exactly one verdict each, and the right one: none lost, none zeroed."""
    for i, grade in enumerate(grades):
        if grade is not None:
            expected = (Verdict.WRONG, 0.0) if i % 3 == 0 else (Verdict.CORRECT, 1.75)
            assert (grade.verdict, grade.reward) == expected, (i, grade)


def grade_all(config, requests):
    async def run():
        grader = make_grader(config)
        try:
            return await asyncio.gather(*map(grader.grade, requests))
        finally:
            grader.close()
            await asyncio.sleep(0)

    return asyncio.run(run())


def test_many_items_go_through_one_session(service):
    config = RewardConfig(urls=[service.url])
    assert isinstance(make_grader(config), RemoteGrader)
    check(grade_all(config, [request(i) for i in range(500)]))


def test_the_run_decides_on_the_length_reward(service):
    (grade,) = grade_all(RewardConfig(urls=[service.url], length_reward_max_tokens=16384), [request(1)])
    assert grade.reward == 1.5
    (grade,) = grade_all(RewardConfig(urls=[service.url], length_reward_max_tokens=None), [request(1)])
    assert grade.reward == 1.0


def test_a_dead_server_is_left_for_a_living_one(service):
    dead = f"http://127.0.0.1:{free_port()}"
    check(grade_all(RewardConfig(urls=[dead, service.url]), [request(i) for i in range(200)]))


def test_a_server_that_says_nothing_is_left_for_another(service, monkeypatch):
    """It takes the connection and the request, as a server does whose machine is stopped."""
    monkeypatch.setattr(remote, "SILENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = [f"http://127.0.0.1:{silent.getsockname()[1]}", service.url]
        check(grade_all(RewardConfig(urls=urls), [request(i) for i in range(200)]))


def test_a_server_that_sends_an_endless_line_is_left_for_another(service):
    async def run():
        async def rambling(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + 2**20 * b" " + b"\n")
            with contextlib.suppress(ConnectionError):  # the client has gone
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(rambling, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        grader = make_grader(RewardConfig(urls=[f"http://127.0.0.1:{port}", service.url]))
        try:
            return await asyncio.gather(*[grader.grade(request(i)) for i in range(200)])
        finally:
            grader.close()
            server.close()
            await asyncio.sleep(0)

    check(asyncio.run(run()))


def test_an_error_that_nobody_waits_for_is_in_the_log(monkeypatch, caplog):
    async def send(self, state, batch):
        remote._answer_all(batch, "closed")
        raise ZeroDivisionError("behind the last answer")

    monkeypatch.setattr(RemoteGrader, "_send", send)
    (grade,) = grade_all(RewardConfig(urls=["http://127.0.0.1:1"]), [request(1)])
    assert grade.reason == "closed"
    assert "ZeroDivisionError: behind the last answer" in caplog.text


def test_an_item_may_take_longer_than_a_server_may_be_silent(monkeypatch):
    assert admission_queue.SIGN_OF_LIFE_S < remote.SILENCE_S
    monkeypatch.setattr(remote, "SILENCE_S", 5.0)
    often = f"import {admission_queue.__name__} as queue; queue.SIGN_OF_LIFE_S = 0.2"
    with running("--timeout", "6", "--workers", "1", prelude=often) as service:
        hanging = GradeRequest(
            response=rf"\boxed{{{endless(900)}}}",
            references=(ENDLESS_REFERENCE,),
            task="math",
            num_tokens=1,
            truncated=False,
        )
        (grade,) = grade_all(RewardConfig(urls=[service.url]), [hanging])
        assert grade.seconds > 5.0
        counted = httpx.get(service.url + "/metrics", timeout=300).text
        assert 'r3_grading_worker_restarts{reason="timeout"} 1.0' in counted  # it was asked once


def test_without_any_server_an_item_is_unreachable_at_its_deadline():
    config = RewardConfig(urls=[f"http://127.0.0.1:{free_port()}"], deadline_s=1.0)
    started = time.monotonic()
    grades = grade_all(config, [request(i) for i in range(20)])
    assert {(g.verdict, g.reason, g.score, g.reward) for g in grades} == {
        (Verdict.UNGRADED, "unreachable", None, None)
    }
    assert 0.9 < time.monotonic() - started < 100  # and not after 300 s, as without the setting


def test_a_wrong_token_is_a_sentence_and_not_a_grade(monkeypatch):
    with running(token="a-token-of-enough-characters") as service:
        config = RewardConfig(urls=[service.url])
        with pytest.raises(GradingError, match="R3_REWARD_TOKEN"):
            grade_all(config, [request(1)])
        monkeypatch.setenv("R3_REWARD_TOKEN", "a-token-of-enough-characters")
        check(grade_all(config, [request(i) for i in range(10)]))


def test_one_item_that_the_server_refuses_does_not_harm_its_batch():
    with running("--max-body-mb", "1") as service:
        requests = [request(i) for i in range(50)]
        requests[10] = GradeRequest(
            response="é" * 999_999, references=("5",), task="math", num_tokens=1, truncated=False
        )
        grades = grade_all(RewardConfig(urls=[service.url]), requests)
        assert (grades[10].verdict, grades[10].reason) == (Verdict.UNGRADED, "refused")
        grades[10] = grades[13]
        check(grades)


def test_nobody_waits_for_a_hanging_item_of_his_batch(service):
    async def run():
        grader = make_grader(RewardConfig(urls=[service.url]))
        hanging = [
            GradeRequest(
                response=rf"\boxed{{{endless(500 + i)}}}",
                references=(ENDLESS_REFERENCE,),
                task="math",
                num_tokens=1,
                truncated=False,
            )
            for i in range(1)  # it holds one of the two processes until its deadline
        ]
        waiting = [asyncio.create_task(grader.grade(item)) for item in hanging]
        others = [asyncio.create_task(grader.grade(request(i))) for i in range(30)]
        ended = []
        for task in (*waiting, *others):
            task.add_done_callback(ended.append)
        grades = await asyncio.gather(*others)
        reasons = [grade.reason for grade in await asyncio.gather(*waiting)]
        grader.close()
        return grades, [task in waiting for task in ended], reasons

    grades, hanging_ended, reasons = asyncio.run(run())
    check(grades)
    assert (hanging_ended, reasons) == ([False] * 30 + [True], ["timeout"])


def test_a_busy_server_is_asked_again():
    with running("--max-pending", "8") as service:
        check(grade_all(RewardConfig(urls=[service.url]), [request(i) for i in range(60)]))


def test_closing_answers_what_is_waiting():
    async def run():
        grader = make_grader(RewardConfig(urls=[f"http://127.0.0.1:{free_port()}"]))
        tasks = [asyncio.create_task(grader.grade(request(i))) for i in range(300)]
        await asyncio.sleep(0.2)
        grader.close()
        return await asyncio.wait_for(asyncio.gather(*tasks), 100)  # and not after 300 s, their deadline

    assert {grade.reason for grade in asyncio.run(run())} == {"closed"}


def test_it_works_in_one_loop_after_another(service):
    grader = make_grader(RewardConfig(urls=[service.url]))
    check(asyncio.run(_few(grader)))
    check(asyncio.run(_few(grader)))
    grader.close()


async def _few(grader):
    grades = await asyncio.gather(*(grader.grade(request(i)) for i in range(20)))
    for state in list(grader._states.values()):
        await state.session.close()
    return grades


class Killer(threading.Thread):
    """Kills random workers of a service, and the whole service after every fifth, `restarts` times."""

    def __init__(self, restarts):
        super().__init__()
        self.service = Service("--timeout", "5", "--workers", "2", port=free_port())
        self.url = self.service.url
        self.workers_killed = 0
        self._restarts = restarts
        self._random = random.Random(1)

    def run(self):
        for _ in range(self._restarts):
            for _ in range(5):
                self._kill_a_worker()
            self.service.kill()
            self.service = Service("--timeout", "5", "--workers", "2", port=self.service.port)

    def _kill_a_worker(self):
        while True:
            template_and_workers = self.service.family()
            if len(template_and_workers) > 1:
                worker = self._random.choice(template_and_workers[1:])
                try:
                    if sum(worker.cpu_times()[:2]) > 0.02:  # it has had something to do
                        worker.kill()
                        self.workers_killed += 1
                        return
                except psutil.NoSuchProcess:
                    pass


@pytest.mark.parametrize(
    ("num_items", "restarts"), [(1000, 1), pytest.param(5000, 4, marks=pytest.mark.soak)], ids=["1000", "5000"]
)
def test_every_item_has_one_verdict_while_workers_and_the_server_are_killed(num_items, restarts):
    async def run():
        grader = make_grader(RewardConfig(urls=[killer.url], timeout_s=5.0))
        gate = asyncio.Semaphore(100)

        async def grade(i):
            async with gate:
                return await grader.grade(request(i))

        rounds = []
        while killer.is_alive():
            rounds.append(await asyncio.gather(*map(grade, range(num_items))))
        grader.close()
        return rounds

    killer = Killer(restarts)
    killer.start()
    try:
        rounds = asyncio.run(run())
    finally:
        killer.join()
        killer.service.stop()
    assert killer.workers_killed == 5 * restarts
    for grades in rounds:
        ungraded = [i for i, grade in enumerate(grades) if grade.verdict is Verdict.UNGRADED]
        assert all(grades[i].reason == "crashed" and grades[i].reward is None for i in ungraded)
        assert len(ungraded) <= 2  # only one whose process was killed three times
        check([grade if i not in ungraded else None for i, grade in enumerate(grades)])
