"""The client of the training side against real services that come and go."""

import asyncio
import random
import socket
import threading

import psutil
import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.client import make_grader
from r3_openrlhf.rewards.exchange import GradingError
from r3_openrlhf.rewards.remote import RemoteGrader
from tests.rewards import graders
from tests.rewards.graders import endless_request
from tests.rewards.graders import graded as grade_all

from .service import Service, running


def request(i, answer=None):
    """Every third one is wrong, every fourth one needs the symbolic comparison."""
    answer = i + (i % 3 == 0) if answer is None else answer
    text, reference = (f"x^2+{answer}", f"x*x+{i}") if i % 4 == 0 else (str(answer), str(i))
    return graders.request(
        f"<think>{i}</think>It is \\boxed{{{text}}}.", reference, num_tokens=8192
    )


def check(grades):
    """Exactly one verdict each, and the right one: none lost, none zeroed."""
    for i, grade in enumerate(grades):
        if grade is not None:
            expected = (Verdict.WRONG, 0.0) if i % 3 == 0 else (Verdict.CORRECT, 1.75)
            assert (grade.verdict, grade.reward) == expected, (i, grade)


def test_many_items_go_through_one_session(service):
    config = RewardConfig(urls=[service.url])
    assert isinstance(make_grader(config), RemoteGrader)
    check(grade_all(config, [request(i) for i in range(500)]))


@pytest.mark.parametrize(("max_tokens", "reward"), [(16384, 1.5), (None, 1.0)])
def test_the_run_decides_on_the_length_reward(service, max_tokens, reward):
    config = RewardConfig(urls=[service.url], length_reward_max_tokens=max_tokens)
    assert grade_all(config, [request(1)])[0].reward == reward


def test_a_dead_server_is_left_for_a_living_one(service):
    dead = f"http://127.0.0.1:{free_port()}"
    check(grade_all(RewardConfig(urls=[dead, service.url]), [request(i) for i in range(200)]))


def test_a_server_that_says_nothing_is_left_for_another(service, monkeypatch, at_rest):
    """It takes the connection and the request, as a server does whose machine is stopped. Of its time a hundredth passes."""
    ask = RemoteGrader._ask
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = [f"http://127.0.0.1:{silent.getsockname()[1]}", service.url]

        async def ask_quickly(grader, url, body, limit_s):
            if not url.startswith(urls[0]):
                return await ask(grader, url, body, limit_s)
            end = at_rest[0] + limit_s
            answer = await ask(grader, url, body, limit_s / 100)
            at_rest[0] = max(at_rest[0], end)
            return answer

        monkeypatch.setattr(RemoteGrader, "_ask", ask_quickly)
        check(grade_all(RewardConfig(urls=urls), [request(i) for i in range(200)]))


def test_without_any_server_an_item_is_unreachable_at_its_deadline(at_rest):
    config = RewardConfig(urls=[f"http://127.0.0.1:{free_port()}"], deadline_s=40.0)
    grades = grade_all(config, [request(1)])
    assert {(g.verdict, g.reason, g.score, g.reward) for g in grades} == {
        (Verdict.UNGRADED, "unreachable", None, None)
    }
    assert 40 <= at_rest[0] < 46  # no rest is longer than 5 s


def test_a_wrong_token_is_a_sentence_and_not_a_grade(monkeypatch):
    with running(token="a-token-of-enough-characters") as service:
        config = RewardConfig(urls=[service.url])
        with pytest.raises(GradingError, match="R3_REWARD_TOKEN"):
            grade_all(config, [request(1)])
        monkeypatch.setenv("R3_REWARD_TOKEN", "a-token-of-enough-characters")
        check(grade_all(config, [request(i) for i in range(10)]))


def test_one_item_that_the_server_refuses_does_not_harm_the_others():
    with running("--max-body-mb", "1") as service:
        requests = [request(i) for i in range(50)]
        requests[10] = graders.request("é" * 999_999)
        grades = grade_all(RewardConfig(urls=[service.url]), requests)
        assert (grades[10].verdict, grades[10].reason) == (Verdict.UNGRADED, "refused")
        grades[10] = grades[13]
        check(grades)


def test_nobody_waits_for_a_hanging_item(service):
    async def run():
        grader = make_grader(RewardConfig(urls=[service.url]))
        # it holds one of the two processes until its deadline
        waiting = asyncio.create_task(grader.grade(endless_request(500)))
        grades = await asyncio.gather(*(grader.grade(request(i)) for i in range(12)))
        is_waiting = not waiting.done()
        reason = (await waiting).reason
        grader.close()
        return grades, is_waiting, reason

    grades, is_waiting, reason = asyncio.run(run())
    check(grades)
    assert (is_waiting, reason) == (True, "timeout")


def test_a_busy_server_is_asked_again():
    with running("--max-pending", "8") as service:
        check(grade_all(RewardConfig(urls=[service.url]), [request(i) for i in range(60)]))


def test_closing_answers_what_is_waiting():
    async def run():
        grader = make_grader(RewardConfig(urls=[f"http://127.0.0.1:{free_port()}"]))
        tasks = [asyncio.create_task(grader.grade(request(i))) for i in range(300)]
        await asyncio.sleep(0.2)
        grader.close()
        # and not after 300 s, their deadline
        return await asyncio.wait_for(asyncio.gather(*tasks), 100)

    assert {grade.reason for grade in asyncio.run(run())} == {"closed"}


class Killer(threading.Thread):
    """Kills random workers of a service, and the whole service after every fifth, `restarts` times."""

    def __init__(self, restarts):
        super().__init__()
        self._options = ("--timeout", "5", "--workers", "2")
        self._token = "the-token-of-every-start"
        self.service = Service(*self._options, port=free_port(), token=self._token)
        self.url = self.service.url.replace("//", f"//r3:{self._token}@")
        self.workers_killed = 0
        self._restarts = restarts
        self._random = random.Random(1)

    def run(self):
        for _ in range(self._restarts):
            for _ in range(5):
                self._kill_a_worker()
            self.service.kill()
            self.service = Service(*self._options, port=self.service.port, token=self._token)

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
    ("num_items", "restarts"),
    [(1000, 1), pytest.param(5000, 4, marks=pytest.mark.soak)],
    ids=["1000", "5000"],
)
def test_every_item_has_one_verdict_while_workers_and_the_server_are_killed(
    num_items, restarts
):
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
        await asyncio.sleep(0)
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
