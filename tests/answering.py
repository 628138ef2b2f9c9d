"""Servers of this machine that answer what a test says."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Answering(NamedTuple):
    url: str  # http://127.0.0.1:PORT
    bodies: list[Any]  # what was posted, in order of arrival


@contextmanager
def answering(answer: Callable[[str, Any], tuple[int, str]]) -> Iterator[Answering]:
    """`answer(path, body)` -> (status, text) of each POST, whose body is JSON."""
    bodies: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, text = answer(self.path, bodies[-1])
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Answering(f"http://127.0.0.1:{server.server_port}", bodies)
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of an ASGI application, in a thread of its own."""
    import uvicorn

    config = uvicorn.Config(app, port=0, log_level="warning", ws="none")
    listener = config.bind_socket()
    listener.listen()  # from here on a request waits instead of being refused
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
