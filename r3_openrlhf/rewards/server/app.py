"""The HTTP routes of the reward service: parse, ask the queue, answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from r3_openrlhf.config.access import is_loopback, is_this_machine, shows_token
from r3_openrlhf.rewards.server.admission_queue import AdmissionQueue, Busy
from r3_openrlhf.rewards.server.bodies import Refused, read_body
from r3_openrlhf.rewards.server.settings import ServerSettings

_OPEN_ROUTES = ("/health", "/ready")
_CLOSE = {"Connection": "close"}


def create_app(settings: ServerSettings) -> Starlette:
    """Create the service as an ASGI application; its grading processes live from start-up to shutdown."""
    max_body_bytes = settings.max_body_mb * 2**20

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.queue = AdmissionQueue(settings)
        yield
        app.state.queue.close()

    async def grade(request: Request) -> Response:
        """Grade a batch of responses; one answer when all of them have a grade."""
        task, timeout_s = settings.task, settings.read_timeout_s
        questions = await read_body(
            request, own_task=task, max_bytes=max_body_bytes, timeout_s=timeout_s
        )
        return _json({"results": await request.app.state.queue.grade(questions)})

    async def health(request: Request) -> Response:
        return _json({"status": "ok", "pending": request.app.state.queue.num_items})

    async def ready(request: Request) -> Response:
        """Tell whether a grading process has answered a probe."""
        why = await request.app.state.queue.why_not_ready()
        if why is not None:
            return _problem(
                503, f"the grading processes do not answer: {why}", {"Retry-After": "1"}
            )
        return _json({"status": "ready"})

    return Starlette(
        routes=[
            Route("/grade", grade, methods=["POST"]),
            Route("/health", health),
            Route("/ready", ready),
        ],
        lifespan=lifespan,
        middleware=[
            Middleware(
                _Gate,
                token=settings.token,
                max_body_bytes=max_body_bytes,
                any_host=not is_loopback(settings.host),
            )
        ],
        exception_handlers=dict.fromkeys((Busy, Refused, ClientDisconnect), _explain),
    )


async def _explain(_: Request, error: Exception) -> Response:
    """Answer a request that ended with `error`."""
    if not isinstance(error, Busy | Refused):  # the caller has gone: no one reads it
        return Response(status_code=400)
    if isinstance(error, Refused):
        return _problem(error.status, str(error), _CLOSE if error.status in (408, 413) else {})
    return _problem(503, "too much is waiting; try again in a second", {"Retry-After": "1"})


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def _problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"detail": detail}, status, headers)


class _Gate:
    """Turns away requests without the token or of a page of another site, and announced bodies too
    large, before reading."""

    def __init__(
        self, app: ASGIApp, *, token: str | None, max_body_bytes: int, any_host: bool
    ) -> None:
        self._app = app
        self._token = token
        self._max_body_bytes = max_body_bytes
        self._any_host = any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._refusal(scope) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        shown = headers.get(b"authorization", b"")
        has_token = self._token is not None and shows_token(shown, self._token)
        if not (has_token or self._any_host or is_this_machine(headers.get(b"host", b""))):
            return _problem(421, "this is not the host that the request names", _CLOSE)
        if not has_token and self._token is not None and scope["path"] not in _OPEN_ROUTES:
            how = "show the token of this service as 'Authorization: Bearer TOKEN'"
            return _problem(401, how, {"WWW-Authenticate": "Bearer", **_CLOSE})
        declared = headers.get(b"content-length", b"0")
        if scope["method"] in ("GET", "HEAD") and (
            declared != b"0" or b"transfer-encoding" in headers
        ):
            return _problem(413, "this route takes no body", _CLOSE)
        if not declared.isdigit() or int(declared) > self._max_body_bytes:
            return _problem(413, f"a body has at most {self._max_body_bytes} bytes", _CLOSE)
        return None
