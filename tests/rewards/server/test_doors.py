"""What a stranger can do to the service without its token, and one client to another."""

import asyncio
import json
import signal
import socket
import threading
from contextlib import contextmanager, suppress

import httpx
import psutil
import pytest

from r3_openrlhf.rewards.server import app, bodies
from r3_openrlhf.rewards.server.settings import ServerSettings
from tests.processes import until

from .service import answer_after, endless_item, grade_item, post, running

TOKEN = "0123456789abcdef"
BODY_TO_COME = "POST /grade HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {}\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"


def answer_to(service, *pieces, timeout=300):
    """The first bytes of the answer; b"" when the connection is closed without one."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=timeout) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                break
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""


def begun(service):
    return BODY_TO_COME.format(service.headers["Authorization"]).encode() + b"{"


@contextmanager
def requested(service, body):
    """A connection on which a request was sent; its answer is not waited for."""
    text = json.dumps(body).encode()
    head = f"POST /grade HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {service.headers['Authorization']}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=300) as connection:
        connection.sendall(head.encode() + text)
        yield connection


@pytest.fixture(scope="module")
def patient():
    """For what is not about the time to read: a client may be late."""
    with running("--read-timeout", "1000", "--workers", "1", token=TOKEN) as service:
        yield service


@pytest.mark.parametrize("route", ["/health", "/ready", "/grade"])
@pytest.mark.parametrize("framing", ["content-length: 33554432", "transfer-encoding: chunked"])
def test_no_body_is_read_without_the_token(route, framing, patient):
    method = "POST" if route == "/grade" else "GET"
    answer = answer_to(
        patient, f"{method} {route} HTTP/1.1\r\nhost: 127.0.0.1\r\n{framing}\r\n\r\n".encode()
    )
    assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 401"))
    assert b"connection: close" in answer.lower()


def test_headers_are_bounded_in_bytes_and_number(patient):
    long = b"x: " + b"a" * 2**20
    many = b"".join(b"h%d: 1\r\n" % n for n in range(100_000))
    for headers in (long, many):
        answer = answer_to(patient, b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n" + headers)
        assert b"400" in answer.split(b"\r\n")[0]
    assert httpx.get(patient.url + "/health", timeout=300).status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for():
    with running("--read-timeout", "1", "--workers", "1") as service:
        assert answer_to(service, begun(service)).startswith(b"HTTP/1.1 408")


def test_so_many_connections_are_open_at_once():
    with running("--max-connections", "8", "--workers", "1") as service:
        held = [
            socket.create_connection(("127.0.0.1", service.port), timeout=300) for _ in range(8)
        ]
        for connection in held:  # at work
            connection.sendall(begun(service))
        try:
            assert answer_to(
                service, b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
            ).startswith(b"HTTP/1.1 503")
        finally:
            for connection in held:
                connection.close()
        # when it has seen that they are gone
        assert answer_after(503, service.url + "/health").status_code == 200


@pytest.mark.parametrize(
    "items",
    [
        [grade_item("5", *["5" * 100_000] * 11)],
        [grade_item("5", "5", metadata={"a": ["5" * 100_000] * 11})],
        [grade_item(f"{n}", "5", problem="p" * 15_000) for n in range(100)],
    ],
    ids=["references", "metadata", "problem"],
)
def test_all_of_an_item_counts_towards_what_is_pending(items):
    with running("--timeout", "60", "--workers", "1", "--max-pending-mb", "1") as service:
        with requested(service, {"items": [endless_item()]}):
            until(lambda: httpx.get(service.url + "/health", timeout=300).json()["pending"])
            answer = post(service.url, "/grade", {"items": items})
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def test_while_a_body_is_parsed_the_others_are_answered(monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    parse = bodies.parse_grade_body

    def parse_when_told(body, **options):
        begun.set()
        assert go_on.wait(300)
        return parse(body, **options)

    monkeypatch.setattr(bodies, "parse_grade_body", parse_when_told)

    async def run():
        service = app.create_app(ServerSettings())
        transport = httpx.ASGITransport(service)
        async with (
            service.router.lifespan_context(service),
            httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", timeout=300
            ) as client,
        ):
            body = {"items": [grade_item(response=" " * 100_000 + r"\boxed{5}")]}
            answering = asyncio.create_task(client.post("/grade", json=body))
            assert await asyncio.to_thread(begun.wait, 300)
            assert (await client.get("/health")).json() == {
                "status": "ok",
                "pending": 0,
            } and not answering.done()
            go_on.set()
            return (await answering).json()["results"][0]["verdict"]

    assert asyncio.run(run()) == "correct"


def test_ready_says_when_no_grading_process_works():
    with running("--workers", "1") as service:
        assert httpx.get(service.url + "/ready", timeout=300).status_code == 200
        family = service.family()
        for process in family:
            process.send_signal(signal.SIGSTOP)
        try:
            # a probe may have been answered just before
            assert answer_after(200, service.url + "/ready").status_code == 503
        finally:
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer 0123456789abcdef"}])
def test_without_a_token_of_the_user_there_is_a_new_one_and_a_rebinding_page_is_refused(
    service, headers
):
    """As another user of the machine, or a page whose name points here."""
    with httpx.Client(
        base_url=f"http://127.0.0.1:{service.port}", headers=headers, timeout=300
    ) as stranger:
        assert stranger.post("/grade", json={}).status_code == 401
        for route in ("/health", "/ready"):
            assert (
                stranger.get(route, headers={"Host": f"example.org:{service.port}"}).status_code
                == 421
            )
    # as printed
    assert post(service.url, "/grade", {"items": [grade_item()]}).status_code == 200
