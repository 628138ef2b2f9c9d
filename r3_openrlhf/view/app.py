"""The pages over HTTP. Only GET, only from this machine or with the token, and only the package's own scripts."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

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

from r3_openrlhf.config.access import is_loopback, shows_token
from r3_openrlhf.method.errors import R3Error, quoted
from r3_openrlhf.view.compare_page import compare_page
from r3_openrlhf.view.effect_page import effect_page, sentences
from r3_openrlhf.view.evaluation_pages import evaluation_page, pairs_page, sample_page
from r3_openrlhf.view.files_page import files_page
from r3_openrlhf.view.group_page import difference, group_page
from r3_openrlhf.view.indexing import Indexing
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.links import ServerLinks
from r3_openrlhf.view.overview_page import curves, overview, state
from r3_openrlhf.view.problem_page import problem_page
from r3_openrlhf.view.rendering import compile_templates
from r3_openrlhf.view.search_page import search
from r3_openrlhf.view.site import NotThere, Site, is_count
from r3_openrlhf.view.step_page import step_page
from r3_openrlhf.view.tokens_page import tokens_of_group, tokens_page
from r3_openrlhf.view.trajectory_page import trajectory_page

STATIC = Path(__file__).with_name("static")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FOREVER = b"private, max-age=31536000, immutable"  # a file of static/ whose address names its version
UNREADABLE = 422  # there is such a page, and what it shows cannot be read: a damaged file, a query that makes no sense


class CountConvertor(Convertor[int]):
    """A whole number of at most twelve digits in an address: more are none that SQLite or a file name takes."""

    regex = "[0-9]{1,12}"

    def convert(self, value: str) -> int:
        """As it is."""
        return int(value)

    def to_string(self, value: int) -> str:
        """As it is."""
        return str(value)


register_url_convertor("count", CountConvertor())


def create_app(library: Library, *, token: str | None = None, cache: Path | None = None) -> Starlette:
    """`token`: needed to read; None: any request whose Host is this machine may read. `cache`: directory of the indexes."""
    indexing = Indexing(library, cache=cache)
    answers = _Answers(library, indexing)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        indexing.start()
        answers.warming.submit(answers.warm)
        yield
        await run_in_threadpool(answers.warming.shutdown, cancel_futures=True)
        await run_in_threadpool(indexing.stop)

    of_group = "{context}/{uid:path}"
    page = answers.page
    routes = {
        "/": answers.home,
        "/api/state": answers.state,
        "/api/curves": answers.curves,
        "/api/effect/{name}": answers.sentences,
        "/api/tokens/{name}/step/{step:count}/" + of_group: answers.group_tokens,
        "/search": answers.search,
        "/compare": answers.compare,
        "/compare/{a}/{b}": page(pairs_page),
        "/{name}": answers.run,
        "/{name}/effect": answers.effect,
        "/{name}/files": answers.files,
        "/{name}/problem/{uid:path}": page(problem_page),
        "/{name}/sample/{benchmark}/{uid:path}": page(sample_page),
        "/{name}/step/{step:count}": answers.step,
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
        middleware=[Middleware(_Gate, token=token), Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)],
    )


class _Answers:
    """Addresses -> pages. A page that takes long holds up only those of the same run."""

    def __init__(self, library: Library, indexing: Indexing) -> None:
        self.library = library
        self.site = Site(library, indexing)
        self.links = ServerLinks(version=_version_of(STATIC))
        # What goes wrong there goes wrong again, and is told, when a page needs it.
        self.warming = ThreadPoolExecutor(1, thread_name_prefix="r3 view warms up")

    def as_page(self, answer: Callable[[Request], str | Response]) -> Callable[[Request], Response]:
        def handle(request: Request) -> Response:
            found = answer(request)
            return found if isinstance(found, Response) else HTMLResponse(found)

        return handle

    def warm(self) -> None:
        """Read what a first page would wait for: the templates, and of a run that is open alone its newest step."""
        compile_templates()
        if len(self.library.runs) == 1:
            (run,) = self.library.runs.values()
            with suppress(R3Error):  # its page says it
                for step in run.steps()[-1:]:
                    run.rows(step)

    def warm_texts(self, name: str) -> None:
        """Read the tokenizer of a run. Who looks at a step looks at tokens soon."""
        self.site.texts_of(self.site.run(name))

    def home(self, request: Request) -> str | Response:
        self.library.refresh()
        if len(self.library.runs) == 1 and not self.library.evaluations:
            return RedirectResponse(self.links.page(*self.library.runs))
        return overview(self.site, self.links, request.query_params.getlist("run") or None)

    def page(self, make: Callable[..., str]) -> Callable[[Request], str]:
        """The page that `make` gives for the parts of an address."""
        return lambda request: make(self.site, self.links, **request.path_params)

    def run(self, request: Request) -> str:
        name = request.path_params["name"]
        if name in self.library.evaluations:
            return evaluation_page(self.site, self.links, name)
        return overview(self.site, self.links, [name])

    def compare(self, request: Request) -> str:
        query = request.query_params
        return compare_page(self.site, self.links, query.getlist("run"), query.get("reference", ""))

    def effect(self, request: Request) -> str:
        against = request.query_params.get("against", "")
        return effect_page(self.site, self.links, request.path_params["name"], against)

    def files(self, request: Request) -> str:
        against = request.query_params.get("against", "")
        return files_page(self.site, self.links, request.path_params["name"], against)

    def sentences(self, request: Request) -> Response:
        return _json(sentences(self.site, self.links, request.path_params["name"]))

    def search(self, request: Request) -> str:
        return search(self.site, self.links, request.query_params)

    def step(self, request: Request) -> str:
        name = request.path_params["name"]
        page = step_page(self.site, self.links, **request.path_params)
        if not self.site.has_looked_for_texts(name):
            self.warming.submit(self.warm_texts, name)
        return page

    def difference(self, request: Request) -> str:
        a, b = (_number(name, request.query_params.get(name, "")) for name in ("a", "b"))
        return difference(self.site, self.links, **request.path_params, a=a, b=b)

    def state(self, _: Request) -> Response:
        self.library.refresh()
        return _json(state(self.site))

    def curves(self, request: Request) -> Response:
        names = request.query_params.getlist("run") or list(self.library.runs)
        return _json(curves(self.site, names, every="every" in request.query_params))

    def group_tokens(self, request: Request) -> Response:
        places = [_number("place", text) for text in request.query_params.getlist("place")]
        return _json(tokens_of_group(self.site, **request.path_params, only=places or None, beside_text=True))

    def failed(self, _: Request, error: Exception) -> Response:
        return self._message(str(error), 404 if isinstance(error, NotThere) else UNREADABLE)

    def no_page(self, request: Request, _: Exception) -> Response:
        return self._message(f"There is no page {request.url.path}.", 404)

    def _message(self, message: str, status: int) -> Response:
        return HTMLResponse(self.site.message(self.links, message), status)


def _number(name: str, text: str) -> int:
    if not is_count(text):
        raise NotThere(f"{name} is {quoted(text)}; it must be a whole number")
    return int(text)


def _version_of(directory: Path) -> str:
    """A stamp of a directory that changes when one of its files does."""
    digest = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


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

        is_versioned = scope["path"].startswith("/static/") and scope["query_string"].startswith(b"v=")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = FOREVER if is_versioned and message["status"] in (200, 304) else b"no-cache"
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                    (b"cache-control", kept),
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
