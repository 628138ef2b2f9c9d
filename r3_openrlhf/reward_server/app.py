"""The HTTP routes of the reward service: parse, ask the queue, answer."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from r3_openrlhf import __version__
from r3_openrlhf.grading.answers.request import GradeRequest
from r3_openrlhf.reward_server.admission_queue import AdmissionQueue, Busy
from r3_openrlhf.reward_server.metrics import Metrics
from r3_openrlhf.reward_server.schema import GradeAnswer, GradeBody, Problem, StockAnswer, StockBody
from r3_openrlhf.reward_server.settings import ServerSettings
from r3_openrlhf.reward_server.stock_contract import references_of, response_of, stock_answer
from r3_openrlhf.reward_server.token_counts import load_counter
from r3_openrlhf.types import Grade, Verdict

_PROBLEMS = {
    400: "The body is no JSON",
    401: "No or wrong token",
    413: "The body is too large",
    422: "The body does not have the documented form, or its only item could not be graded",
    503: "Too much is waiting, try again after Retry-After seconds",
}
_LINES = "application/x-ndjson"
_OPEN_ROUTES = ("/health", "/ready")


def create_app(settings: ServerSettings) -> FastAPI:
    metrics = Metrics()
    # the stock client does not say how long a response is; without a tokenizer there is no length reward for it
    count_tokens = load_counter(settings.tokenizer) if settings.tokenizer else lambda response: 0
    stock_reward = settings.reward if settings.tokenizer else replace(settings.reward, length_reward=False)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.queue = AdmissionQueue(settings, metrics)
        yield
        app.state.queue.close()

    app = FastAPI(
        title="R³ reward service",
        version=__version__,
        summary="Graded and rewarded responses for reinforcement learning",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(_Gate, token=settings.token, max_body_bytes=settings.max_body_bytes)
    app.add_exception_handler(RequestValidationError, _explain)
    problems = {status: {"model": Problem, "description": text} for status, text in _PROBLEMS.items()}
    plain = {status: problems[status] for status in (401,)}

    @app.post("/grade", response_model=GradeAnswer, responses=problems)
    async def grade(body: GradeBody, request: Request) -> Response:
        """Grades a batch of responses.

        With `Accept: application/x-ndjson` the answer is one line per item, as soon as its grade is there, with its
        `index`: then nobody waits for the slowest item of his batch. While nothing is ready, an empty line comes every few
        seconds: a service that says nothing at all is not there any more.
        """
        requests = [
            (
                GradeRequest(
                    response=item.response,
                    references=tuple(item.references),
                    task=item.task,
                    num_tokens=item.num_tokens,
                    truncated=item.truncated,
                    metadata=item.metadata,
                    problem=item.problem,
                ),
                item.key,
            )
            for item in body.items
        ]
        queue = request.app.state.queue
        try:
            if request.headers.get("accept") == _LINES:
                queue.check_room(requests)
                return StreamingResponse(
                    _lines(queue.grade_one_by_one(requests, reward=settings.reward)), media_type=_LINES
                )
            return _json({"results": await queue.grade(requests, reward=settings.reward)})
        except Busy:
            return _busy(metrics)

    @app.post("/get_reward", response_model=StockAnswer, responses=problems)
    async def get_reward(body: StockBody, request: Request) -> Response:
        """OpenRLHF's remote reward contract (`--reward.remote_url`). A single item that cannot be graded is an error."""
        if not len(body.query) == len(body.prompts) == len(body.labels):
            return _problem(422, "query, prompts and labels need the same number of elements")
        requests = []
        for i, (query, prompt, label) in enumerate(zip(body.query, body.prompts, body.labels, strict=True)):
            response = response_of(query, prompt)
            if response is None:
                return _problem(422, f"query {i} does not begin with its prompt, so the response in it is unknown")
            references, metadata = references_of(label)
            requests.append(
                (
                    GradeRequest(
                        response=response,
                        references=references,
                        task=settings.task,
                        num_tokens=count_tokens(response),
                        truncated=False,
                        metadata=metadata,
                        problem=prompt,
                    ),
                    "",
                )
            )
        try:
            grades = await request.app.state.queue.grade(requests, reward=stock_reward)
        except Busy:
            return _busy(metrics)
        if len(grades) == 1 and grades[0].verdict is Verdict.UNGRADED:
            return _problem(422, f"the response could not be graded: {grades[0].reason}; that is not a reward of 0")
        return _json(stock_answer(grades))

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The service is running."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: problems[503]}, response_model=dict[str, str])
    async def ready(request: Request) -> Response:
        """A grading process has answered a probe."""
        why = await request.app.state.queue.why_not_ready()
        if why is not None:
            return _problem(503, f"the grading processes do not answer: {why}", {"Retry-After": "1"})
        return _json({"status": "ready"})

    @app.get("/metrics", responses={**plain, 200: {"content": {"text/plain": {}}}}, response_class=Response)
    async def read_metrics(request: Request) -> Response:
        """Prometheus metrics."""
        queue = request.app.state.queue
        text = metrics.text(pending=queue.pending_items, restarts=queue.pool.restarts)
        return Response(text, media_type="text/plain; version=0.0.4")

    return app


async def _lines(grades: AsyncIterator[tuple[int, Grade] | None]) -> AsyncIterator[bytes]:
    async for graded in grades:
        if graded is not None:
            index, grade = graded
            yield msgspec.json.encode({"index": index, **asdict(grade)})
        yield b"\n"


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def _problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"detail": detail}, status, headers)


def _busy(metrics: Metrics) -> Response:
    metrics.refused.inc()
    return _problem(503, "too many items are waiting; try again in a second", {"Retry-After": "1"})


async def _explain(_: Request, error: RequestValidationError) -> Response:
    """The first thing that is wrong with a body; never the body itself, it may hold what no JSON can."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _problem(422, f"{where}: {first['msg']}".encode("ascii", "replace").decode())


class _Gate:
    """Turns away requests without the token, and bodies over the limit, before anything is parsed."""

    def __init__(self, app: ASGIApp, *, token: str | None, max_body_bytes: int) -> None:
        self._app = app
        self._token = token
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self._token is not None and scope["path"] not in _OPEN_ROUTES and not self._is_known(headers, self._token):
            answer = _problem(
                401,
                "show the token of this service as 'Authorization: Bearer TOKEN'",
                {"WWW-Authenticate": "Bearer", "Connection": "close"},
            )
            await answer(scope, receive, send)
            return
        if scope["method"] in ("GET", "HEAD") and (
            headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        ):
            answer = _problem(413, "this route takes no body", {"Connection": "close"})
            await answer(scope, receive, send)
            return
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._max_body_bytes:
            await self._too_large(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":  # the caller has gone
                return
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                await self._too_large(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_again, send)

    async def _too_large(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _problem(413, f"a body has at most {self._max_body_bytes} bytes", {"Connection": "close"})
        await answer(scope, receive, send)

    def _is_known(self, headers: dict[bytes, bytes], token: str) -> bool:
        """Bearer TOKEN, or basic authentication with the token as password, which fits into a URL."""
        scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"basic":
            try:
                value = base64.b64decode(value, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(value.strip(), token.encode())
