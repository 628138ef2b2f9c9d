"""Grader on reward servers: one pooled session, batches, failover, retries."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import time
from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import aiohttp
import msgspec
from aiohttp.http_exceptions import LineTooLong  # of a StreamReader; no ClientError

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.errors import GradingError
from r3_openrlhf.method.types import Grade
from r3_openrlhf.rewards.answers.request import GradeRequest, Item, Outcome, Word
from r3_openrlhf.rewards.exchange import encode_request, grade_of

logger = logging.getLogger(__name__)

MAX_BATCH_ITEMS = 64
MAX_BATCH_BYTES = 4 * 2**20
REQUESTS_PER_SERVER = 4  # at the same time; while they run, items gather to the next batches
SLOW_AFTER_S = 0.2  # a request that takes longer waits for slow items, which keep nobody busy here
MAX_REQUESTS = 64
CONNECT_TIMEOUT_S = 5.0
SILENCE_S = 10.0  # without a line; the service gives a sign of life every 2 s while it grades
MAX_BACKOFF_S = 5.0
_PASSING = frozenset({"closed", "unavailable"})  # a server's own trouble: ask again

_decode_item = msgspec.msgpack.Decoder(Item).decode


class _Result(msgspec.Struct):
    index: int
    verdict: Word
    reason: str
    score: float | None
    extracted: str | None
    seconds: float


_decode_result = msgspec.json.Decoder(_Result).decode


@dataclass(slots=True, eq=False)
class _Waiting:
    body: bytes  # the item as JSON
    deadline: float
    future: asyncio.Future[Outcome]


@dataclass(slots=True)
class _Server:
    url: str
    resting_until: float = 0.0  # after a failure others are asked first


@dataclass(slots=True, eq=False)
class _LoopState:
    """Belongs to one event loop, as sessions and futures do."""

    session: aiohttp.ClientSession
    queue: deque[_Waiting] = field(default_factory=deque)
    num_senders: int = 0
    tasks: set[asyncio.Task] = field(default_factory=set)


class RemoteGrader:
    """Grades on `reward.urls`. The token, if the servers want one, is the environment's R3_REWARD_TOKEN.

    The reward is computed here from the server's score, so that the run's own configuration decides on it.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._servers = [_Server(url.rstrip("/").removesuffix("/grade") + "/grade") for url in config.urls]
        self._turn = itertools.count(random.randrange(len(self._servers)))
        self._states: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState] = WeakKeyDictionary()
        self._headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
        if token := os.environ.get("R3_REWARD_TOKEN"):
            self._headers["Authorization"] = f"Bearer {token}"

    async def grade(self, request: GradeRequest) -> Grade:
        """The grade of one response; UNGRADED with reason "unreachable" when no server answers in time.

        GradingError: the servers do not accept the token.
        """
        item = msgspec.structs.asdict(_decode_item(encode_request(request)))
        body = msgspec.json.encode(item | {"num_tokens": request.num_tokens})
        state = self._state()
        waiting = _Waiting(
            body, time.monotonic() + self._config.deadline_s, asyncio.get_running_loop().create_future()
        )
        state.queue.append(waiting)
        self._start_senders(state)
        return grade_of(await waiting.future, request.num_tokens, self._config)

    def _start_senders(self, state: _LoopState) -> None:
        if state.queue and state.num_senders < REQUESTS_PER_SERVER * len(self._servers):
            state.num_senders += 1
            task = asyncio.create_task(self._send_all(state))
            state.tasks.add(task)
            task.add_done_callback(state.tasks.discard)

    def _state(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        state = self._states.get(loop)
        if state is None:
            connector = aiohttp.TCPConnector(limit=MAX_REQUESTS)
            state = self._states[loop] = _LoopState(aiohttp.ClientSession(connector=connector, headers=self._headers))
        return state

    async def _send_all(self, state: _LoopState) -> None:
        """Sends batches until nothing waits any more. Who waits for slow items alone leaves its place to another."""
        has_place = True
        try:
            while state.queue and has_place:
                batch = _take_batch(state.queue)
                sending = asyncio.ensure_future(self._send(state, batch))
                try:
                    await asyncio.wait([sending], timeout=SLOW_AFTER_S)
                    if not sending.done() and len(state.tasks) < MAX_REQUESTS:
                        has_place = False
                        state.num_senders -= 1
                        self._start_senders(state)
                    await sending
                except asyncio.CancelledError:
                    sending.cancel()
                    _answer_all(batch, "closed")
                    raise
                except Exception as error:  # whoever waits must hear of it, this task has no reader
                    unanswered = [waiting for waiting in batch if not waiting.future.done()]
                    for waiting in unanswered:
                        waiting.future.set_exception(error)
                    if not unanswered:
                        logger.exception("an error behind the last answer of a reward server; nobody waits for it")
        finally:
            state.num_senders -= has_place

    async def _send(self, state: _LoopState, batch: list[_Waiting]) -> None:
        """Asks one server after the other until every item has an outcome or its deadline has passed."""
        for attempt in itertools.count():
            batch = [waiting for waiting in batch if not waiting.future.done()]
            now = time.monotonic()
            _answer_all([waiting for waiting in batch if waiting.deadline <= now], "unreachable")
            batch = [waiting for waiting in batch if not waiting.future.done()]
            if not batch:
                return
            server = self._next_server(now)
            status, pause = await self._ask(state.session, server, batch)
            if status == 401:
                raise GradingError(
                    f"the reward server {server.url} does not accept the token; set R3_REWARD_TOKEN to the one that it"
                    " was started with"
                )
            elif status in (400, 413, 422) and len(batch) > 1:  # one of them is to blame
                middle = len(batch) // 2
                await self._send(state, batch[:middle])
                await self._send(state, batch[middle:])
            elif status in (400, 413, 422):
                _answer_all(batch, "refused")
            elif status != 200:
                server.resting_until = time.monotonic() + pause
            if any(not waiting.future.done() for waiting in batch):
                others = any(other.resting_until <= time.monotonic() for other in self._servers)
                backoff = min(MAX_BACKOFF_S, 0.1 * 2 ** min(attempt, 10))
                await asyncio.sleep(0.0 if others else random.uniform(0.5, 1.0) * max(backoff, pause))

    def _next_server(self, now: float) -> _Server:
        start = next(self._turn)
        in_turn = [self._servers[(start + i) % len(self._servers)] for i in range(len(self._servers))]
        return next((server for server in in_turn if server.resting_until <= now), in_turn[0])

    async def _ask(self, session: aiohttp.ClientSession, server: _Server, batch: list[_Waiting]) -> tuple[int, float]:
        """Delivers results as they come. Status, 0 for no whole answer, and for how long the server is then to rest."""
        body = b'{"items":[' + b",".join(waiting.body for waiting in batch) + b"]}"
        left = max(0.1, max(waiting.deadline for waiting in batch) - time.monotonic())
        timeout = aiohttp.ClientTimeout(total=left, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S)
        try:
            async with session.post(server.url, data=body, timeout=timeout) as response:
                if response.status != 200:
                    return response.status, _retry_after(response)
                async for line in response.content:
                    if line == b"\n":  # a sign of life
                        continue
                    result = _decode_result(line)
                    _deliver(batch[result.index], result)
                return 200, 0.0
        except (aiohttp.ClientError, LineTooLong, TimeoutError, OSError, msgspec.DecodeError, IndexError) as error:
            logger.warning("reward server %s: %s: %s", server.url, type(error).__name__, error)
            return 0, 1.0

    def close(self) -> None:
        """Closes the sessions; responses that still wait are answered `ungraded: closed`. Callable from any thread."""
        for loop, state in list(self._states.items()):
            if loop.is_closed():
                continue
            if not loop.is_running():
                loop.run_until_complete(_close(state))
            elif loop is _running_loop():
                self._closing = loop.create_task(_close(state))
            else:
                asyncio.run_coroutine_threadsafe(_close(state), loop)
        self._states.clear()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _close(state: _LoopState) -> None:
    for task in list(state.tasks):
        task.cancel()
    _answer_all(list(state.queue), "closed")
    state.queue.clear()
    await state.session.close()


def _answer_all(batch: list[_Waiting], reason: str) -> None:
    for waiting in batch:
        if not waiting.future.done():
            waiting.future.set_result(Outcome("ungraded", reason))


def _take_batch(queue: deque[_Waiting]) -> list[_Waiting]:
    batch: list[_Waiting] = []
    num_bytes = 0
    while queue and len(batch) < MAX_BATCH_ITEMS and (not batch or num_bytes + len(queue[0].body) <= MAX_BATCH_BYTES):
        waiting = queue.popleft()
        num_bytes += len(waiting.body)
        if not waiting.future.done():  # done: whoever asked has gone
            batch.append(waiting)
    return batch


def _deliver(waiting: _Waiting, result: _Result) -> None:
    if not waiting.future.done() and result.reason not in _PASSING:
        outcome = Outcome(result.verdict, result.reason, result.score, result.extracted, result.seconds)
        waiting.future.set_result(outcome)


def _retry_after(response: aiohttp.ClientResponse) -> float:
    value = response.headers.get("Retry-After", "")
    return min(float(value), MAX_BACKOFF_S) if value.isdecimal() else 1.0
