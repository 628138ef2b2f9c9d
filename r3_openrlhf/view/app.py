"""The pages over HTTP. Only GET, only from this machine or with the token; own scripts only."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from r3_openrlhf.config.access import is_this_machine, shows_token
from r3_openrlhf.method.errors import R3Error, quoted
from r3_openrlhf.view.curves import curves_of
from r3_openrlhf.view.evaluation_pages import evaluation_page, pairs_page, sample_page
from r3_openrlhf.view.files_page import files_page
from r3_openrlhf.view.group_page import difference, group_page, tokens_of_group, tokens_page, trajectory_page
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.overview import compare_page, effect_page, overview, sentences, state
from r3_openrlhf.view.problem_page import problem_page
from r3_openrlhf.view.rendering import ROOT_PATH, STATIC, link, render
from r3_openrlhf.view.run_reader import NotThere, is_count
from r3_openrlhf.view.search import search_page
from r3_openrlhf.view.step_page import step_page

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
UNREADABLE = 422  # a damaged file, or a senseless query


class CountConvertor(Convertor[int]):
    """A whole number of at most twelve digits: SQLite and file names take no larger one."""

    regex = "[0-9]{1,12}"

    def convert(self, value: str) -> int:
        """As it is."""
        return int(value)

    def to_string(self, value: int) -> str:
        """As it is."""
        return str(value)


register_url_convertor("count", CountConvertor())


def create_app(library: Library, *, token: str | None = None, root_path: str = "") -> Starlette:
    """The pages of these runs.

    token: needed to read, and then kept in a cookie; None: a request whose Host is this machine may
    read. root_path: where a proxy has the pages, whether or not it removes that from addresses."""
    answers = _Answers(library)
    ending = threading.Event()
    counting = threading.Thread(target=library.count, args=(ending,), name="r3 view counts", daemon=True)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        counting.start()
        yield
        ending.set()
        await run_in_threadpool(counting.join)

    of_group = "{context}/{uid:path}"
    page, form = answers.page, answers.form
    routes = {
        "/": answers.home,
        "/api/state": lambda _: _json(answers.state()),
        "/api/curves": answers.curves,
        "/api/effect/{name}": lambda request: _json(sentences(library, request.path_params["name"])),
        "/api/tokens/{name}/step/{step:count}/" + of_group: answers.group_tokens,
        "/search": lambda request: search_page(library, request.query_params),
        "/compare": answers.compare,
        "/compare/{a}/{b}": page(pairs_page),
        "/{name}": answers.run,
        "/{name}/effect": form(effect_page, "against"),
        "/{name}/files": form(files_page, "against"),
        "/{name}/problem/{uid:path}": page(problem_page),
        "/{name}/sample/{benchmark}/{uid:path}": page(sample_page),
        "/{name}/step/{step:count}": page(step_page),
        "/{name}/difference/{step:count}/" + of_group: answers.difference,
        "/{name}/tokens/{step:count}/{place:count}/" + of_group: page(tokens_page),
        "/{name}/trajectory/{step:count}/{place:count}/" + of_group: page(trajectory_page),
        "/{name}/step/{step:count}/" + of_group: page(group_page),
    }
    return Starlette(
        routes=[
            Mount("/static", StaticFiles(directory=STATIC)),
            *(Route(path, answers.as_page(answer)) for path, answer in routes.items()),
        ],
        lifespan=lifespan,
        exception_handlers={R3Error: answers.failed, 404: answers.no_page},
        middleware=[
            Middleware(_Gate, token=token, root_path=root_path),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4),
        ],
    )


class _Answers:
    """Addresses -> pages. A page that takes long holds up only those of the same run."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def as_page(self, answer: Callable[[Request], str | Response]) -> Callable[[Request], Response]:
        def handle(request: Request) -> Response:
            content = answer(request)
            return content if isinstance(content, Response) else HTMLResponse(content)

        return handle

    def page(self, make: Callable[..., str]) -> Callable[[Request], str]:
        """The page that `make` gives for the parts of an address."""
        return lambda request: make(self.library, **request.path_params)

    def form(self, make: Callable[..., str], field: str) -> Callable[[Request], str]:
        """The same with one field of the query, "" where it is not there."""
        return lambda request: make(
            self.library, **request.path_params, **{field: request.query_params.get(field, "")}
        )

    def home(self, request: Request) -> str | Response:
        self.library.refresh()
        if len(self.library.runs) == 1 and not self.library.evaluations:
            return RedirectResponse(link(*self.library.runs))
        return overview(self.library, request.query_params.getlist("run") or None)

    def run(self, request: Request) -> str:
        name = request.path_params["name"]
        return (
            evaluation_page(self.library, name) if name in self.library.evaluations else overview(self.library, [name])
        )

    def compare(self, request: Request) -> str:
        query = request.query_params
        return compare_page(self.library, query.getlist("run"), query.get("reference", ""))

    def difference(self, request: Request) -> str:
        a, b = (_number(name, request.query_params.get(name, "")) for name in ("a", "b"))
        return difference(self.library, **request.path_params, a=a, b=b)

    def state(self) -> dict[str, dict[str, Any]]:
        self.library.refresh()
        return state(self.library)

    def curves(self, request: Request) -> Response:
        names = request.query_params.getlist("run") or list(self.library.runs)
        return _json(curves_of([self.library.run(name) for name in names], every="every" in request.query_params))

    def group_tokens(self, request: Request) -> Response:
        places = [_number("place", text) for text in request.query_params.getlist("place")]
        return _json(tokens_of_group(self.library, **request.path_params, only=places or None))

    def failed(self, _: Request, error: Exception) -> Response:
        return _message(str(error), 404 if isinstance(error, NotThere) else UNREADABLE)

    def no_page(self, request: Request, _: Exception) -> Response:
        return _message(f"There is no page {request.url.path}.", 404)


def _message(message: str, status: int) -> Response:
    return HTMLResponse(render("message.html", message=message), status)


def _number(name: str, text: str) -> int:
    if not is_count(text):
        raise NotThere(f"{name} is {quoted(text)}; it must be a whole number")
    return int(text)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


class _Gate:
    """Turns away what is not for us, and puts HEADERS on every answer."""

    def __init__(self, app: ASGIApp, *, token: str | None, root_path: str) -> None:
        self._app = app
        self._token = token
        self._root_path = root_path
        # cookies know no ports: another server of this machine has another name for its own
        self._cookie = f"r3_view_{hashlib.sha256((token or '').encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                    (b"cache-control", b"no-cache"),
                ]
            await send(message)

        root_path = scope["root_path"] = self._root_path or scope.get("root_path", "")
        if not scope["path"].startswith(f"{root_path}/"):  # a proxy has removed it
            scope["path"] = root_path + scope["path"]
        ROOT_PATH.set(root_path)
        answer = self._answer_at_the_door(Request(scope))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer_at_the_door(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page is only read", 405, {"Allow": "GET, HEAD"})
        if self._token is not None:
            if self._is_token(request.query_params.get("token", "")):
                return self._with_cookie(request)
            header = request.headers.get("authorization", "").encode()
            if self._is_token(request.cookies.get(self._cookie, "")) or shows_token(header, self._token):
                return None
            how = "open the address that r3 view printed, or show its token as the password, with any name"
            return PlainTextResponse(how, 401, {"WWW-Authenticate": 'Basic realm="r3 view"'})
        host = request.headers.get("host", "")
        return None if is_this_machine(host.encode("latin-1")) else PlainTextResponse(f"this is not {host}", 421)

    def _is_token(self, shown: str) -> bool:
        return self._token is not None and hmac.compare_digest(shown.encode(), self._token.encode())

    def _with_cookie(self, request: Request) -> Response:
        """The same address without the token: it stays out of the history and out of links."""
        query = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "token"])
        path = quote(request.scope["path"].removeprefix(ROOT_PATH.get()).lstrip("/"))  # of this server
        answer = RedirectResponse(f"{link()}{path}{query and '?'}{query}", 303)
        answer.set_cookie(self._cookie, self._token or "", path=link(), httponly=True, samesite="lax")
        return answer
