"""The pages over HTTP. Only GET, only from this machine or with the token; own scripts only."""

import hashlib
import hmac
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.datastructures import QueryParams
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
from r3_openrlhf.view.group_page import (
    group_page,
    step_page,
    tokens_of_group,
    tokens_page,
    trajectory_page,
)
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.overview import compare_page, effect_page, overview, state
from r3_openrlhf.view.problem_page import problem_page
from r3_openrlhf.view.problems_page import problems_page
from r3_openrlhf.view.rendering import ROOT_PATH, STATIC, link, render
from r3_openrlhf.view.run_reader import NotThere, is_count
from r3_openrlhf.view.search import search_page

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
UNREADABLE = 422  # a damaged file, or a senseless query


class CountConvertor(IntegerConvertor):
    """A whole number of at most twelve digits: SQLite and file names take no larger one."""

    regex = "[0-9]{1,12}"


register_url_convertor("count", CountConvertor())


def create_app(library: Library, *, token: str | None = None, root_path: str = "") -> Starlette:
    """Make the application that serves the pages of these runs.

    token: needed to read, and then kept in a cookie; None: a request whose Host is this machine may
    read. root_path: where a proxy has the pages, whether or not it removes that from addresses."""
    return Starlette(
        routes=[
            Mount("/static", StaticFiles(directory=STATIC)),
            *(Route(path, _handler(library, make)) for path, make in ROUTES.items()),
        ],
        exception_handlers={
            R3Error: lambda _, error: _message(
                str(error), 404 if isinstance(error, NotThere) else UNREADABLE
            ),
            404: lambda request, _: _message(f"There is no page {request.url.path}.", 404),
        },
        middleware=[
            Middleware(_Gate, token=token, root_path=root_path),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4),
        ],
    )


def _handler(library: Library, make: Callable[..., Any]) -> Callable[[Request], Response]:
    """Answer with the page, or the JSON, that `make` gives for a query and the parts of an address.
    Starlette calls it in a thread: a page that takes long holds up only those of the same run."""

    def handle(request: Request) -> Response:
        content = make(library, request.query_params, **request.path_params)
        if isinstance(content, str):
            return HTMLResponse(content)
        is_made = isinstance(content, Response)
        return (
            content
            if is_made
            else Response(msgspec.json.encode(content), media_type="application/json")
        )

    return handle


def _page(make: Callable[..., Any], *fields: str) -> Callable[..., Any]:
    """Take of a query only these fields, "" where one is not there."""
    return lambda library, query, **path: make(
        library, **path, **{name: query.get(name, "") for name in fields}
    )


def _home(library: Library, query: QueryParams) -> str | Response:
    library.refresh()
    if len(library.runs) == 1 and not library.evaluations:
        return RedirectResponse(link(*library.runs))
    return overview(library, query.getlist("run") or None, counted="counted" in query)


def _run(library: Library, query: QueryParams, name: str) -> str:
    if name in library.evaluations:
        return evaluation_page(library, name)
    return overview(library, [name], counted="counted" in query)


def _tokens(library: Library, query: QueryParams, **group: Any) -> dict[str, Any]:
    for text in query.getlist("place"):
        if not is_count(text):
            raise NotThere(f"place is {quoted(text)}; it must be a whole number")
    places = [int(text) for text in query.getlist("place")]
    return tokens_of_group(library, **group, only=places or None)


_OF_GROUP = "{context}/{uid:path}"
ROUTES: dict[str, Callable[..., Any]] = {
    "/": _home,
    "/api/state": _page(state),
    "/api/curves": lambda library, query: curves_of(
        [library.run(name) for name in query.getlist("run") or library.runs],
        every="every" in query,
        counted=True,
    ),
    "/api/tokens/{name}/step/{step:count}/" + _OF_GROUP: _tokens,
    "/search": search_page,
    "/compare": lambda library, query: compare_page(
        library, query.getlist("run"), query.get("reference", "")
    ),
    "/compare/{a}/{b}": _page(pairs_page),
    "/{name}": _run,
    "/{name}/effect": _page(effect_page),
    "/{name}/files": _page(files_page),
    "/{name}/problems": _page(problems_page),
    "/{name}/problem/{uid:path}": _page(problem_page),
    "/{name}/sample/{benchmark}/{uid:path}": _page(sample_page),
    "/{name}/step/{step:count}": _page(step_page),
    "/{name}/tokens/{step:count}/{place:count}/" + _OF_GROUP: _page(tokens_page),
    "/{name}/trajectory/{step:count}/{place:count}/" + _OF_GROUP: _page(trajectory_page),
    "/{name}/step/{step:count}/" + _OF_GROUP: _page(group_page),
}


def _message(message: str, status: int) -> Response:
    return HTMLResponse(render("message.html", message=message), status)


class _Gate:
    """Rejects foreign hosts and readers without the token; adds HEADERS to every response."""

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
                    *(
                        (name.lower().encode(), value.encode())
                        for name, value in HEADERS.items()
                    ),
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
                # to the same address without the token: it stays out of the history and out of links
                query = urlencode(
                    [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
                )
                # of this server
                path = quote(request.scope["path"].removeprefix(ROOT_PATH.get()).lstrip("/"))
                answer = RedirectResponse(f"{link()}{path}{query and '?'}{query}", 303)
                answer.set_cookie(
                    self._cookie, self._token or "", path=link(), httponly=True, samesite="lax"
                )
                return answer
            header = request.headers.get("authorization", "").encode()
            if self._is_token(request.cookies.get(self._cookie, "")) or shows_token(
                header, self._token
            ):
                return None
            how = "open the address that r3 view printed, or show its token as the password, with any name"
            return PlainTextResponse(how, 401, {"WWW-Authenticate": 'Basic realm="r3 view"'})
        host = request.headers.get("host", "")
        return (
            None
            if is_this_machine(host.encode("latin-1"))
            else PlainTextResponse(f"this is not {host}", 421)
        )

    def _is_token(self, shown: str) -> bool:
        return self._token is not None and hmac.compare_digest(
            shown.encode(), self._token.encode()
        )
