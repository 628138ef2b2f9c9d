"""What a stranger can do to the service without its token, and one client to another."""

import os
import signal
import socket
import time

import httpx
import psutil
import pytest

from .service import endless_item, grade_item, post, running

TOKEN = "0123456789abcdef"


def answer_to(service, *pieces, timeout=20):
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


@pytest.fixture(scope="module")
def guarded():
    with running("--read-timeout", "2", "--max-connections-per-peer", "8", "--workers", "1", token=TOKEN) as service:
        yield service


@pytest.mark.parametrize("route", ["/health", "/ready", "/metrics", "/grade"])
@pytest.mark.parametrize("framing", ["content-length: 33554432", "transfer-encoding: chunked"])
def test_no_body_is_read_without_the_token(route, framing, guarded):
    method = "POST" if route == "/grade" else "GET"
    answer = answer_to(guarded, f"{method} {route} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 401"))
    assert b"connection: close" in answer.lower()


def test_headers_are_bounded_in_bytes_and_number(guarded):
    assert b"400" in answer_to(guarded, b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 2**20).split(b"\r\n")[0]
    many = b"".join(b"h%d: 1\r\n" % n for n in range(100_000))
    assert b"400" in answer_to(guarded, b"GET /health HTTP/1.1\r\nhost: a\r\n" + many).split(b"\r\n")[0]
    assert httpx.get(guarded.url + "/health").status_code == 200


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /hea",
        b"POST /grade HTTP/1.1\r\nauthorization: Bearer %s\r\nhost: a\r\ncontent-length: 99\r\n\r\n{" % TOKEN.encode(),
    ],
)
def test_who_does_not_go_on_is_left(beginning, guarded):
    assert answer_to(guarded, beginning) == b""  # closed by the service; the socket's own limit is ten times as long


def test_one_address_has_so_many_connections(guarded):
    held = [socket.create_connection(("127.0.0.1", guarded.port), timeout=20) for _ in range(8)]
    try:
        assert answer_to(guarded, b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").startswith(b"HTTP/1.1 503")
        for connection in held:
            assert connection.recv(1) == b""  # after --read-timeout
    finally:
        for connection in held:
            connection.close()
    assert httpx.get(guarded.url + "/health").status_code == 200


def test_references_and_metadata_count_towards_what_is_pending():
    with running("--timeout", "60", "--workers", "1", "--max-pending-mb", "1") as service:
        with httpx.stream(
            "POST",
            service.url + "/grade",
            json={"items": [endless_item()]},
            headers={"Accept": "application/x-ndjson"},
        ):
            big = "5" * 100_000
            for item in (grade_item("5", *[big] * 11), grade_item("5", "5", metadata={"a": [big] * 11})):
                assert post(service.url, "/grade", {"items": [item]}).status_code == 503


def test_a_streaming_caller_who_leaves_frees_the_jobs():
    """More hanging items than one worker could end in an hour; then an item of another caller is graded."""
    with running("--timeout", "10", "--workers", "1", "--max-pending", "300") as service:
        accepted = 0
        while accepted < 2000:
            items = [endless_item(accepted + n) for n in range(200)]
            headers = {"Accept": "application/x-ndjson"}
            with httpx.stream(
                "POST", service.url + "/grade", json={"items": items}, headers=headers, timeout=60
            ) as answer:
                if answer.status_code == 200:  # else it has not noticed yet that the last one left
                    accepted += 200
                    next(answer.iter_raw())
        assert (
            post(service.url, "/grade", {"items": [grade_item(r"\boxed{5}", "5")]}).json()["results"][0]["verdict"]
            == "correct"
        )


def test_ready_says_when_no_grading_process_works():
    with running("--workers", "1") as service:
        assert httpx.get(service.url + "/ready", timeout=60).status_code == 200
        family = service.family()
        for process in family:
            process.send_signal(signal.SIGSTOP)
        try:
            deadline = time.monotonic() + 30  # for a probe that was answered just before
            while (
                status := httpx.get(service.url + "/ready", timeout=60).status_code
            ) == 200 and time.monotonic() < deadline:
                os.sched_yield()
            assert status == 503
        finally:
            for process in family:
                try:
                    process.send_signal(signal.SIGCONT)
                except psutil.NoSuchProcess:
                    continue
