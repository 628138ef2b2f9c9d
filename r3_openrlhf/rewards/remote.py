"""Grader on reward servers: one pooled session, batches, failover, retries."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import os
import random
import re
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import aiohttp
import msgspec
from aiohttp.http_exceptions import LineTooLong  # of a StreamReader; no ClientError

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.errors import quoted, without_secrets
from r3_openrlhf.rewards.answers.request import GradeRequest, Item, Outcome, Word
from r3_openrlhf.rewards.exchange import Grade, GradingError, encode_request, grade_of

logger = logging.getLogger(__name__)

MAX_BATCH_ITEMS = 64
MAX_BATCH_BYTES = 4 * 2**20
REQUESTS_PER_SERVER = 4  # at the same time; while they run, items gather to the next batches
SLOW_AFTER_S = 0.2  # a request that takes longer waits for slow items, which keep no one busy here
MAX_REQUESTS = 64
CONNECT_TIMEOUT_S = 5.0
SILENCE_S = 10.0  # without a line; the service gives a sign of life every 2 s while it grades
MAX_BACKOFF_S = 5.0
MAX_SHORT_ANSWERS = 3  # whole answers without a line for an item, before it is given up
MAX_REASON_CHARS = 80
_PASSING = frozenset({"closed", "unavailable"})  # a server's own trouble: ask again
LATER = frozenset({408, 425, 429, *range(500, 600)})  # statuses that may be others in a moment

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
    num_short: int = 0  # answers that were whole and had no line for it
    trouble: str = "unreachable"  # why the last request had no answer for it


@dataclass(slots=True)
class _Server:
    url: str
    resting_until: float = 0.0  # after a failure others are asked first

    @property
    def name(self) -> str:
        return without_secrets(self.url)


@dataclass(slots=True, eq=False)
class _LoopState:
    """Belongs to one event loop, as sessions and futures do."""

    session: aiohttp.ClientSession
    queue: deque[_Waiting] = field(default_factory=deque)
    num_senders: int = 0
    tasks: set[asyncio.Task] = field(default_factory=set)


class RemoteGrader:
    """Grades on `reward.urls`. The token, if the servers want one, is the environment's R3_REWARD_TOKEN.

    The reward is computed here from the server's score, so that the run's own configuration decides on it. An answer that
    does not keep to the contract leaves its item ungraded, and the reason says what is wrong with it.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._servers = [_Server(url.rstrip("/").removesuffix("/grade") + "/grade") for url in config.urls]
        self._turn = itertools.count(random.randrange(len(self._servers)))
        self._states: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState] = WeakKeyDictionary()
        self._is_closed = False
        self._said: set[tuple[str, str]] = set()  # what the log has of a server already
        self.last_heard = time.monotonic()  # of any server: a sign of life is enough
        self._headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
        if token := os.environ.get("R3_REWARD_TOKEN"):
            self._headers["Authorization"] = f"Bearer {token}"

    async def grade(self, request: GradeRequest) -> Grade:
        """The grade of one response; UNGRADED with reason "unreachable", or `http_STATUS`, when no server answers in time.

        Raises:
            GradingError: the servers do not accept the token.
        """
        if self._is_closed:
            return grade_of(Outcome("ungraded", "closed"), request.num_tokens, self._config)
        item = msgspec.structs.asdict(_decode_item(encode_request(request)))
        # an item that is asked for again, here or at another server, has the same key
        body = msgspec.json.encode(item | {"num_tokens": request.num_tokens, "key": uuid.uuid4().hex})
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
                except Exception as error:  # the waiting callers must hear of it, this task has no reader
                    unanswered = [waiting for waiting in batch if not waiting.future.done()]
                    for waiting in unanswered:
                        waiting.future.set_exception(error)
                    if not unanswered:
                        logger.exception("an error after the last answer of a reward server; it is ignored")
        finally:
            state.num_senders -= has_place

    async def _send(self, state: _LoopState, batch: list[_Waiting]) -> None:
        """Asks one server after the other until every item has an outcome or its deadline has passed."""
        refused_by: set[str] = set()  # servers that will not say anything else about this batch
        for attempt in itertools.count():
            now = time.monotonic()
            batch = [waiting for waiting in batch if not waiting.future.done()]
            for waiting in batch:
                if waiting.deadline <= now:
                    _answer(waiting, waiting.trouble)
            batch = [waiting for waiting in batch if not waiting.future.done()]
            if not batch:
                return
            server = self._next_server(now, refused_by)
            status, pause = await self._ask(state.session, server, batch)
            if status in (400, 413, 422) and len(batch) > 1:  # one of them is to blame
                middle = len(batch) // 2
                await self._send(state, batch[:middle])
                await self._send(state, batch[middle:])
                return
            self._settle(server, status, [waiting for waiting in batch if not waiting.future.done()], refused_by)
            if status != 200:
                server.resting_until = time.monotonic() + pause
            if any(not waiting.future.done() for waiting in batch):
                now = time.monotonic()
                others = any(
                    other is not server and other.url not in refused_by and other.resting_until <= now
                    for other in self._servers
                )
                backoff = min(MAX_BACKOFF_S, 0.1 * 2 ** min(attempt, 10))
                await asyncio.sleep(0.0 if others else random.uniform(0.5, 1.0) * max(backoff, pause))

    def _settle(self, server: _Server, status: int, left: list[_Waiting], refused_by: set[str]) -> None:
        """What a status means for the items that it left without an answer. GradingError: a wrong token."""
        reason = f"http_{status}" if status else "unreachable"
        if status == 401:
            raise GradingError(
                f"the reward server {server.name} does not accept the token; set R3_REWARD_TOKEN to the one that it"
                " was started with"
            )
        if status == 200:
            self._note_short(server, left)
            return
        if status:
            self._say(server, reason)
        if status in (400, 413, 422):
            _answer_all(left, "refused")
        elif status == 0 or status in LATER:
            for waiting in left:
                waiting.trouble = reason
        else:  # a wrong path or a server of another kind: asking it again changes nothing
            refused_by.add(server.url)
            if all(other.url in refused_by for other in self._servers):
                _answer_all(left, reason)

    def _note_short(self, server: _Server, left: list[_Waiting]) -> None:
        """A whole answer, without a line for these items: they are asked for again, but not for ever."""
        missing = [waiting for waiting in left if waiting.trouble not in _PASSING]
        for waiting in missing:
            waiting.num_short += 1
            waiting.trouble = f"answer short by {len(missing)}"
            if waiting.num_short >= MAX_SHORT_ANSWERS:
                _answer(waiting, waiting.trouble)
        if missing:
            self._say(server, f"answer short by {len(missing)}")

    def _say(self, server: _Server, what: str) -> None:
        """Once for each server and trouble: a run has thousands of items."""
        if (server.url, what) not in self._said:
            self._said.add((server.url, what))
            logger.warning("reward server %s: %s", server.name, what)

    def _next_server(self, now: float, refused_by: set[str]) -> _Server:
        start = next(self._turn)
        in_turn = [self._servers[(start + i) % len(self._servers)] for i in range(len(self._servers))]
        in_turn = [server for server in in_turn if server.url not in refused_by] or in_turn
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
                self.last_heard = time.monotonic()
                async for line in response.content:
                    self.last_heard = time.monotonic()
                    if line.strip():  # an empty one is a sign of life
                        self._deliver(server, batch, line)
                return 200, 0.0
        except (aiohttp.ClientError, LineTooLong, TimeoutError, OSError) as error:
            logger.warning("reward server %s: %s: %s", server.name, type(error).__name__, without_secrets(str(error)))
            return 0, 1.0

    def _deliver(self, server: _Server, batch: list[_Waiting], line: bytes) -> None:
        """One line of an answer; each is judged on its own."""
        index: int | None
        trouble: str | None
        result: _Result | None
        try:
            result = _decode_result(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            result = None
            index, trouble = _explained(line, error)
        else:
            index, trouble = result.index, _contradiction(result)
        if index is None or not 0 <= index < len(batch):
            self._say(server, f"{trouble or f'an answer for item {index} of {len(batch)}'} in the line {quoted(line)}")
            return
        waiting = batch[index]
        if result is None or trouble is not None:
            self._say(server, f"{trouble} in the line {quoted(line)}")
            _answer(waiting, str(trouble)[:MAX_REASON_CHARS])
        elif result.reason in _PASSING:
            waiting.trouble = result.reason
        elif not waiting.future.done():
            reason = result.reason[:MAX_REASON_CHARS]
            waiting.future.set_result(Outcome(result.verdict, reason, result.score, result.extracted, result.seconds))

    def close(self) -> None:
        """Closes the sessions; responses that still wait are answered `ungraded: closed`. Callable from any thread."""
        self._is_closed = True
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


def _answer(waiting: _Waiting, reason: str) -> None:
    if not waiting.future.done():
        waiting.future.set_result(Outcome("ungraded", reason))


def _answer_all(batch: list[_Waiting], reason: str) -> None:
    for waiting in batch:
        _answer(waiting, reason)


def _take_batch(queue: deque[_Waiting]) -> list[_Waiting]:
    batch: list[_Waiting] = []
    num_bytes = 0
    while queue and len(batch) < MAX_BATCH_ITEMS and (not batch or num_bytes + len(queue[0].body) <= MAX_BATCH_BYTES):
        waiting = queue.popleft()
        num_bytes += len(waiting.body)
        if not waiting.future.done():  # done: the caller has gone
            batch.append(waiting)
    return batch


def _contradiction(result: _Result) -> str | None:
    """What is wrong with an answer whose fields are all there; None: nothing."""
    score = result.score
    if result.verdict == "ungraded":
        return None
    if score is None:
        return f"{result.verdict} without a score"
    if not 0.0 <= score <= 1.0:
        return f"score {score:g} outside 0 to 1"
    return None if (result.verdict == "correct") == (score == 1.0) else f"{result.verdict} with score {score:g}"


def _explained(line: bytes, error: Exception) -> tuple[int | None, str]:
    """The item that a line is for, if that can be seen, and what is wrong with it. JSON's NaN is Python's own invention."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None, "an answer that is no JSON"
    if not isinstance(found, dict):
        return None, "an answer that is no JSON object"
    index = found.get("index")
    place = index if type(index) is int else None
    if missing := [name for name in _Result.__struct_fields__ if name not in found]:
        return place, f"missing field {missing[0]}"
    for name, value in found.items():
        if isinstance(value, float) and not math.isfinite(value):
            return place, f"{name} {value}"
    named = re.search(r"at `\$\.(\w+)`", str(error))
    return place, f"bad field {named[1]}" if named else "an answer that is not in the documented form"


def _retry_after(response: aiohttp.ClientResponse) -> float:
    value = response.headers.get("Retry-After", "")
    return min(float(value), MAX_BACKOFF_S) if value.isdecimal() else 1.0
