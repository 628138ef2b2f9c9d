"""Grader on reward servers: one JSON request for one response, failover, retries.

A server is one of ours (`POST /grade`), or of OpenRLHF's contract, as `--reward.remote_url
http://HOST/get_reward` asks it (openrlhf/utils/agent.py, SingleTurnAgentExecutor). OpenRLHF logs a
failure and continues without a reward; here the response is ungraded and counted.
"""

import asyncio
import itertools
import json
import logging
import os
import random
import re
import time
from dataclasses import dataclass
from typing import Annotated

import aiohttp
import msgspec

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.errors import quoted, without_secrets
from r3_openrlhf.rewards.answers.request import GradeRequest, Item, Outcome, Word
from r3_openrlhf.rewards.exchange import Grade, GradingError, encode_request, grade_of
from r3_openrlhf.rewards.functions import checked_part, combined, openrlhf_value

logger = logging.getLogger(__name__)

MAX_REQUESTS = 256  # at the same time
CONNECT_TIMEOUT_S = 5.0
MIN_ANSWER_S = 1.0
MAX_BACKOFF_S = 5.0
MAX_REASON_CHARS = 80
_PASSING = frozenset({"closed", "unavailable"})  # a server's own trouble: ask again
_REFUSED = frozenset({400, 413, 422})
_LATER = frozenset({0, 408, 425, 429, *range(500, 600)})  # may change soon; 0: no answer

_decode_item = msgspec.msgpack.Decoder(Item).decode


class BadAnswer(ValueError):
    """An answer that does not keep to the contract; the text says why."""


class _Result(msgspec.Struct):
    verdict: Word
    reason: str
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None
    extracted: str | None
    seconds: float


class _Answer(msgspec.Struct):
    results: list[_Result]


class _OurContract:
    """POST /grade {"items": [item]} -> {"results": [result]}."""

    path = "/grade"

    def body(self, request: GradeRequest) -> object:
        item = msgspec.structs.asdict(_decode_item(encode_request(request)))
        return {"items": [item | {"num_tokens": request.num_tokens}]}

    def outcome(self, answer: object) -> Outcome:
        try:
            results = msgspec.convert(answer, _Answer).results
        except msgspec.ValidationError as error:
            missing = re.search(r"missing required field `(\w+)`", str(error))
            field = re.search(r"\.(\w+)`$", str(error))
            known = (
                f"missing field {missing[1]}"
                if missing
                else f"bad field {field[1]}"
                if field
                else ""
            )
            raise BadAnswer(known or "an answer that is not in the documented form") from error
        if len(results) != 1:
            raise BadAnswer(f"{len(results)} results for one item")
        result = results[0]
        is_right, score = result.verdict == "correct", result.score
        if result.verdict != "ungraded" and (score is None or is_right != (score == 1.0)):
            raise BadAnswer(f"{result.verdict} with score {result.score}")
        reason = result.reason[:MAX_REASON_CHARS]
        return Outcome(result.verdict, reason, result.score, result.extracted, result.seconds)


@dataclass(frozen=True, slots=True)
class _OpenRLHFContract:
    """POST /get_reward {"query", "prompts", "labels"}, lists of one -> {"rewards", "scores",
    "extra_logs"}.

    The reward is what the server says; its `scores`, else the reward, decide what is correct."""

    correct_from: float
    path = "/get_reward"

    def body(self, request: GradeRequest) -> object:
        prompt = request.prompt or request.problem
        label = (
            request.references[0] if len(request.references) == 1 else list(request.references)
        )
        return {"query": [prompt + request.response], "prompts": [prompt], "labels": [label]}

    def outcome(self, answer: object) -> Outcome:
        if not isinstance(answer, dict) or "rewards" not in answer:
            raise BadAnswer("missing field rewards")
        try:
            part = checked_part("server", openrlhf_value(answer))
        except (ValueError, TypeError, AttributeError) as error:
            raise BadAnswer("bad answer") from error
        return combined([part], [1.0], correct_from=self.correct_from)


class RemoteGrader:
    """Grades on `reward.urls`, in turn, with the environment's R3_REWARD_TOKEN if it is set.

    From a server of ours only the score counts; the run's configuration makes the reward. An answer
    outside the contract leaves its response ungraded, with the reason."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        is_openrlhfs = any(url.endswith("/get_reward") for url in config.urls)
        self._contract = (
            _OpenRLHFContract(config.correct_from) if is_openrlhfs else _OurContract()
        )
        path = self._contract.path
        self._urls = [url.rstrip("/").removesuffix(path) + path for url in config.urls]
        self._resting_until = dict.fromkeys(self._urls, 0.0)  # after a failure others go first
        self._turn = itertools.count(random.randrange(len(self._urls)))
        # of the loop that grades, from its first request on
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: set[asyncio.Task[Outcome]] = set()
        self._is_closed = False
        self._logged: set[tuple[str, str]] = set()

    async def grade(self, request: GradeRequest) -> Grade:
        """Grade one response; UNGRADED "unreachable", or `http_STATUS`, when no server answers in
        time.

        Raises:
            GradingError: the servers do not accept the token."""
        outcome = Outcome("ungraded", "closed")
        if not self._is_closed:
            body = msgspec.json.encode(self._contract.body(request))
            asking = asyncio.ensure_future(self._ask_in_turn(body))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
            try:
                outcome = await asking
            except asyncio.CancelledError:
                if not self._is_closed:
                    raise
        return grade_of(outcome, request.num_tokens, self._config)

    async def _ask_in_turn(self, body: bytes) -> Outcome:
        """Ask one server after the other until one has an answer or the deadline has passed."""
        deadline = time.monotonic() + self._config.deadline_s
        # servers that will not say anything else about this response
        refused_by: set[str] = set()
        trouble = "unreachable"
        for attempt in itertools.count():
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._is_closed:
                break
            url = self._next_server(refused_by)
            # half of the time: a server that says nothing leaves enough of it to another one
            status, text, pause_s = await self._ask(
                url, body, min(left_s, max(MIN_ANSWER_S, left_s / 2))
            )
            if status == 200:
                outcome = self._outcome(url, text)
                if outcome.reason not in _PASSING:
                    return outcome
                trouble = outcome.reason
            elif status == 401:
                raise GradingError(
                    f"the reward server {without_secrets(url)} does not accept the token; set R3_REWARD_TOKEN to the"
                    " one that it was started with"
                )
            else:
                # the deadline may cut off the last ask
                trouble = f"http_{status}" if status else trouble
                self._log(url, trouble if status else text)
                if status in _REFUSED:
                    return Outcome("ungraded", "refused")
                if status not in _LATER:  # a wrong path: asking it again changes nothing
                    refused_by.add(url)
                    if len(refused_by) == len(self._urls):
                        break
            self._resting_until[url] = time.monotonic() + pause_s
            if self._resting_until[self._next_server(refused_by)] > time.monotonic():
                backoff_s = max(pause_s, min(MAX_BACKOFF_S, 0.1 * 2 ** min(attempt, 10)))
                await asyncio.sleep(random.uniform(0.5, 1.0) * backoff_s)
        return Outcome("ungraded", "closed" if self._is_closed else trouble)

    def _next_server(self, refused_by: set[str]) -> str:
        start = next(self._turn) % len(self._urls)
        in_turn = [
            url for url in self._urls[start:] + self._urls[:start] if url not in refused_by
        ]
        now = time.monotonic()
        return min(in_turn, key=lambda url: max(0.0, self._resting_until[url] - now))

    async def _ask(self, url: str, body: bytes, limit_s: float) -> tuple[int, str, float]:
        """Post one body. Return HTTP status, response text and seconds until the next try.

        Status 0: no answer came, and the text says why."""
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._connected().post(url, data=body, timeout=timeout) as response:
                text = await response.text("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, f"{type(error).__name__}: {error}", 1.0
        retry_after = response.headers.get("Retry-After", "")
        pause_s = min(float(retry_after), MAX_BACKOFF_S) if retry_after.isdecimal() else 1.0
        return response.status, text, pause_s

    def _outcome(self, url: str, text: str) -> Outcome:
        try:
            outcome = self._contract.outcome(json.loads(text))
            trouble = str(outcome.extras.get("error", ""))
        except BadAnswer as error:
            trouble = str(error)
            outcome = Outcome("ungraded", trouble[:MAX_REASON_CHARS])
        except (ValueError, RecursionError):
            trouble = "an answer that is no JSON"
            outcome = Outcome("ungraded", trouble)
        if trouble:
            self._log(url, trouble, f" in the answer {quoted(text[:1000])}")
        return outcome

    def _log(self, url: str, trouble: str, where: str = "") -> None:
        if (url, trouble) not in self._logged:
            self._logged.add((url, trouble))
            logger.warning(
                "reward server %s: %s%s", without_secrets(url), without_secrets(trouble), where
            )

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            token = os.environ.get("R3_REWARD_TOKEN")
            self._loop = asyncio.get_running_loop()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_REQUESTS),
                headers={"Content-Type": "application/json"}
                | ({"Authorization": f"Bearer {token}"} if token else {}),
            )
        return self._session

    def close(self) -> None:
        """Close the connections; waiting items are `ungraded: closed`. Callable from any thread."""
        self._is_closed = True
        if self._loop is None or self._loop.is_closed():
            return
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        else:
            self._loop.run_until_complete(self._close())

    async def _close(self) -> None:
        for task in list(self._asking):
            task.cancel()
        if self._session is not None:
            await self._session.close()
