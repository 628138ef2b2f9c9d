"""Many clients at once, hostile items among the benign: every benign item is answered, and answered right."""

import asyncio
import time

import aiohttp
import pytest

from .service import endless_item, grade_item, running

HOSTILE = [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{\prod_{n=1}^{100000000} n}", "{" * 20_000]


async def client(session, url, number, until, tally):
    i = 0
    while i < 5 or time.monotonic() < until:
        i += 1
        body = {
            "items": [grade_item(rf"{number} \boxed{{{i}}}", f"{i + k % 2}") for k in range(4)]
        }
        if number % 8 == 0 and i % 5 == 0:
            hostile = [endless_item(1000 * number + i)] + [
                grade_item(f"{number} {i} {text}") for text in HOSTILE
            ]
            body["items"].append(hostile[(i // 5 - 1) % len(hostile)])
        async with session.post(url + "/grade", json=body) as answer:
            tally[answer.status] = tally.get(answer.status, 0) + 1
            if answer.status == 200:
                results = (await answer.json())["results"]
                verdicts = [result["verdict"] for result in results[:4]]
                assert verdicts == ["correct", "wrong", "correct", "wrong"], results
                if len(results) == 5:
                    assert (
                        results[4]["verdict"] in ("ungraded", "wrong")
                        and results[4]["seconds"] < 1.5 + 3.5
                    )
                    tally[results[4]["reason"]] = tally.get(results[4]["reason"], 0) + 1


@pytest.mark.parametrize(
    ("num_clients", "seconds"), [(48, 4), pytest.param(256, 60, marks=pytest.mark.soak)]
)
def test_many_clients_at_once(num_clients, seconds):
    async def run():
        tally = {}
        timeout = aiohttp.ClientTimeout(total=600)
        # the service closes a connection that is idle for 5 s, and aiohttp sends no POST twice
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            # the workers start with the first item
            async with session.get(service.url + "/ready") as answer:
                assert answer.status == 200
            until = time.monotonic() + seconds
            await asyncio.gather(
                *(client(session, service.url, n, until, tally) for n in range(num_clients))
            )
            async with session.get(service.url + "/health") as answer:
                return tally, await answer.json()

    with running("--timeout", "1.5", "--workers", "2") as service:
        tally, health = asyncio.run(run())
    assert set(tally) - {200, 503} <= {"timeout", "too_large", "unevaluated", "no_answer"}
    assert tally[200] > num_clients and tally.get("timeout", 0) > 0
    assert health["pending"] == 0
