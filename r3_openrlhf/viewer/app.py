"""The pages over HTTP. Only GET, only this machine or whoever shows the token, and no script but the package's own."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from r3_openrlhf.access import is_loopback, shows_token
from r3_openrlhf.errors import R3Error
from r3_openrlhf.viewer.indexing import Indexing
from r3_openrlhf.viewer.library import Library
from r3_openrlhf.viewer.links import ServerLinks
from r3_openrlhf.viewer.pages import NotThere, Pages

STATIC = Path(__file__).with_name("static")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def create_app(library: Library, *, token: str | None = None, cache: Path | None = None) -> Starlette:
    """`token`: whoever shows it may read; None: any request whose Host is this machine. `cache`: where indexes lie."""
    indexing = Indexing(library, cache=cache)
    site = _Site(library, indexing)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        indexing.start()
        yield
        await run_in_threadpool(indexing.stop)

    of_group = "/{run}/step/{step:int}/{context}/{uid:path}"
    routes = {
        "/": site.home,
        "/api/state": site.state,
        "/api/curves": site.curves,
        "/api/tokens" + of_group: site.group_tokens,
        "/search": site.search,
        "/compare/{a}/{b}": site.pairs,
        "/{run}": site.run,
        "/{run}/problem/{uid:path}": site.problem,
        "/{run}/sample/{benchmark}/{uid:path}": site.sample,
        "/{run}/step/{step:int}": site.step,
        "/{run}/difference/{step:int}/{context}/{uid:path}": site.difference,
        "/{run}/tokens/{step:int}/{place:int}/{context}/{uid:path}": site.tokens,
        of_group: site.group,
    }
    return Starlette(
        routes=[
            Mount("/static", StaticFiles(directory=STATIC)),
            *(Route(path, site.in_turn(answer)) for path, answer in routes.items()),
        ],
        lifespan=lifespan,
        exception_handlers={R3Error: site.failed, 404: site.no_page},
        middleware=[Middleware(_Gate, token=token), Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)],
    )


class _Site:
    """The routes. Readers keep what they have read, for one thread at a time: requests take turns."""

    def __init__(self, library: Library, indexing: Indexing) -> None:
        self.library = library
        self.pages = Pages(library, indexing)
        self.links = ServerLinks()
        self._turn = threading.Lock()

    def in_turn(self, answer: Callable[[Request], str | Response]) -> Callable[[Request], Response]:
        def handle(request: Request) -> Response:
            with self._turn:
                found = answer(request)
            return found if isinstance(found, Response) else HTMLResponse(found)

        return handle

    def home(self, request: Request) -> str | Response:
        self.library.refresh()
        if len(self.library.runs) == 1 and not self.library.evaluations:
            return RedirectResponse(self.links.page(*self.library.runs))
        return self.pages.overview(self.links, request.query_params.getlist("run") or None)

    def run(self, request: Request) -> str:
        name = request.path_params["run"]
        if name in self.library.evaluations:
            return self.pages.evaluation(self.links, name)
        return self.pages.overview(self.links, [name])

    def problem(self, request: Request) -> str:
        return self.pages.problem(self.links, request.path_params["run"], request.path_params["uid"])

    def search(self, request: Request) -> str:
        return self.pages.search(self.links, request.query_params)

    def sample(self, request: Request) -> str:
        found = request.path_params
        if found["run"] not in self.library.evaluations:
            raise NotThere(f"there is no evaluation called {found['run']} here; the page / lists what is open")
        return self.pages.sample(self.links, found["run"], found["benchmark"], found["uid"])

    def pairs(self, request: Request) -> str:
        return self.pages.pairs(self.links, request.path_params["a"], request.path_params["b"])

    def step(self, request: Request) -> str:
        return self.pages.step(self.links, request.path_params["run"], request.path_params["step"])

    def group(self, request: Request) -> str:
        return self.pages.group(self.links, **_group_of(request))

    def difference(self, request: Request) -> str:
        return self.pages.difference(
            self.links, **_group_of(request), a=_number(request, "a"), b=_number(request, "b")
        )

    def tokens(self, request: Request) -> str:
        return self.pages.tokens(self.links, **_group_of(request), place=request.path_params["place"])

    def state(self, _: Request) -> Response:
        self.library.refresh()
        return _json(self.pages.state())

    def curves(self, request: Request) -> Response:
        return _json(self.pages.curves(request.query_params.getlist("run") or list(self.library.runs)))

    def group_tokens(self, request: Request) -> Response:
        return _json(self.pages.tokens_of_group(**_group_of(request)))

    def failed(self, _: Request, error: Exception) -> Response:
        return self._message(str(error), 404 if isinstance(error, NotThere) else 500)

    def no_page(self, request: Request, _: Exception) -> Response:
        return self._message(f"There is no page {request.url.path}.", 404)

    def _message(self, message: str, status: int) -> Response:
        return HTMLResponse(self.pages.message(self.links, message), status)


def _group_of(request: Request) -> dict:
    found = request.path_params
    return {"name": found["run"], "step": found["step"], "context": found["context"], "uid": found["uid"]}


def _number(request: Request, name: str) -> int:
    value = request.query_params.get(name, "")
    if not value.isdigit():
        raise NotThere(f"{name} is {value!r}; it must be the number of a response")
    return int(value)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


class _Gate:
    """Turns away what is not for us, and puts HEADERS on every answer.

    A page of another site may have its name point to 127.0.0.1; its requests then carry that name as their Host.
    """

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this page is only read", 405, {"Allow": "GET, HEAD"})
        if self._token is not None:
            if shows_token(headers.get(b"authorization", b""), self._token):
                return None
            return PlainTextResponse(
                "show the token as the password, with any name", 401, {"WWW-Authenticate": 'Basic realm="r3 view"'}
            )
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if not is_loopback(name.strip("[]")):
            return PlainTextResponse(f"this is not {host}", 421)
        return None
