"""Grader on servers of OpenRLHF's own contract, as `--reward.remote_url http://HOST/get_reward` asks them.

openrlhf/utils/agent.py, SingleTurnAgentExecutor: POST {"query": [prompt + response], "prompts": [prompt], "labels": [label]},
one response a request; the answer is {"rewards", "scores", "extra_logs"}. It logs a failure and continues without a reward; here
the response is ungraded and counted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import time
from weakref import WeakKeyDictionary

import aiohttp

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.errors import without_secrets
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.exchange import Grade, grade_of
from r3_openrlhf.rewards.functions import Part, checked_part, combined, openrlhf_value
from r3_openrlhf.rewards.remote import CONNECT_TIMEOUT_S, LATER, MAX_BACKOFF_S, MAX_REQUESTS

logger = logging.getLogger(__name__)


class OpenRLHFServerGrader:
    """Asks `reward.urls` in turn. The reward is what a server says; its `scores`, else the reward, decide what is correct."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._turn = itertools.cycle(random.sample(config.urls, len(config.urls)))
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = WeakKeyDictionary()
        self._said: set[str] = set()

    async def grade(self, request: GradeRequest) -> Grade:
        """As Grader.grade; UNGRADED "unreachable", `http_STATUS`, or what is wrong with the answer."""
        prompt = request.prompt or request.problem
        label = request.references[0] if len(request.references) == 1 else list(request.references)
        body = {"query": [prompt + request.response], "prompts": [prompt], "labels": [label]}
        deadline = time.monotonic() + self._config.deadline_s
        part = Part("server", trouble="unreachable")
        for attempt in itertools.count():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            url = next(self._turn)
            part, is_final = await self._ask(url, body, left)
            if (
                part.trouble
                and (said := without_secrets(f"reward server {url}: {part.error or part.trouble}")) not in self._said
            ):
                self._said.add(said)
                logger.warning("%s", said)
            if is_final:
                break
            await asyncio.sleep(min(left, random.uniform(0.5, 1.0) * min(MAX_BACKOFF_S, 0.2 * 2 ** min(attempt, 10))))
        outcome = combined([part], [1.0], correct_from=self._config.correct_from)
        return grade_of(outcome, request.num_tokens, self._config)

    async def _ask(self, url: str, body: dict, left: float) -> tuple[Part, bool]:
        """What one server says, and whether asking again would be in vain."""
        try:
            timeout = aiohttp.ClientTimeout(total=left, sock_connect=CONNECT_TIMEOUT_S)
            async with self._session().post(url, json=body, timeout=timeout) as response:
                if response.status != 200:
                    return Part("server", trouble=f"http_{response.status}"), response.status not in LATER
                answer = json.loads(await response.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Part("server", trouble="unreachable", error=f"unreachable ({type(error).__name__})"), False
        except (ValueError, RecursionError):
            return Part("server", trouble="an answer that is no JSON"), True
        if not isinstance(answer, dict) or "rewards" not in answer:
            return Part("server", trouble="missing field rewards"), True
        try:
            return checked_part("server", openrlhf_value(answer)), True
        except (ValueError, TypeError, AttributeError) as error:
            return Part("server", trouble="bad answer", error=f"bad answer: {error}"), True

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            token = os.environ.get("R3_REWARD_TOKEN")
            self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_REQUESTS),
                headers={"Authorization": f"Bearer {token}"} if token else {},
            )
        return self._sessions[loop]

    def close(self) -> None:
        """Close the connections. Callable from any thread."""
        for loop, session in list(self._sessions.items()):
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(session.close(), loop)
            elif not loop.is_closed():
                loop.run_until_complete(session.close())
        self._sessions.clear()
