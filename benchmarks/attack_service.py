"""Attacks on the doors of a reward service, from outside: what each costs the service and its other clients.

    python benchmarks/attack_service.py [--only NAME ...] [--max-stall-s 3]

Starts `r3 serve-rewards` with a token. During each attack another client (127.0.0.2) asks for /health all the time. Prints, for each
attack, the memory that the service's process gained at most, the longest that the other client waited, and what became of the
attack. The exit code is 1 when a bound is broken: 64 MB for who has no token, 512 MB with it, and --max-stall-s.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.rewards.server.service import Service, endless_item, grade_item, running  # noqa: E402

TOKEN = "0123456789abcdef"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
STREAMED = AUTHORIZED | {"Accept": "application/x-ndjson"}
OPTIONS = ("--workers", "1", "--timeout", "10", "--read-timeout", "5", "--max-pending", "2048")
WITHOUT_TOKEN_MB, WITH_TOKEN_MB = 64, 512
MB = 2**20


class Bystander:
    """Asks for /health from another address as often as it is answered, and looks at the service's memory."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.longest_s, self.failures, self.answers, self.peak = 0.0, 0, 0, 0

    def _memory(self) -> int:
        return psutil.Process(self._service.process.pid).memory_info().rss

    def _ask(self) -> None:
        with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), timeout=120) as client:
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    self.failures += client.get(self._service.url + "/health").status_code != 200
                except httpx.HTTPError:
                    self.failures += 1
                self.answers += 1
                self.longest_s = max(self.longest_s, time.monotonic() - started)
                self.peak = max(self.peak, self._memory())
                self._stop.wait(0.01)

    def __enter__(self) -> Bystander:
        self._before = self._memory()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.gained_mb = max(0.0, (self.peak - self._before) / MB)


def send(service: Service, pieces: list[bytes]) -> tuple[int, str]:
    """Bytes that were sent before the service closed the connection, and the first line of its answer."""
    sent = 0
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
                sent += len(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            answer = connection.recv(4096)
        except ConnectionResetError:
            answer = b""
    return sent, answer.split(b"\r\n")[0].decode() or "closed"


def at_once(count: int, action: Callable[[], object]) -> list:
    found: list = []
    threads = [threading.Thread(target=lambda: found.append(action())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def unfinished_bodies(service: Service) -> str:
    head = b"GET /health HTTP/1.1\r\nhost: a\r\ncontent-length: 33554432\r\n\r\n"
    found = at_once(60, lambda: send(service, [head, *[b" " * MB] * 31]))
    return f"60 x 31 MB to /health: {', '.join(sorted({line for _, line in found}))}"


HEADERS = 200


def big_header(service: Service) -> str:
    """Many times: one attempt is over before the other client asks."""
    for _ in range(HEADERS):
        sent, line = send(service, [b"GET /health HTTP/1.1\r\nhost: a\r\nx: ", *[b"a" * MB] * 400])
    return f"a header of 400 MB, {HEADERS} times: {line} after {sent / MB:.0f} MB"


def many_headers(service: Service) -> str:
    pieces = [b"".join(b"h%d: 1\r\n" % (1000 * k + n) for n in range(1000)) for k in range(2000)]
    sent, line = send(service, [b"GET /health HTTP/1.1\r\nhost: a\r\n", *pieces])
    return f"2,000,000 headers: {line} after {sent / MB:.1f} MB"


def hanging_neighbour(service: Service) -> str:
    with ExitStack() as held:
        held_items = 0
        for n in range(100):
            body = {"items": [endless_item(64 * n + i) for i in range(64)]}
            client = held.enter_context(httpx.Client(timeout=60))
            answer = held.enter_context(client.stream("POST", service.url + "/grade", json=body, headers=STREAMED))
            if answer.status_code != 200:
                break
            held_items += 64
        other = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(transport=other, headers=AUTHORIZED, timeout=60) as client:
            answers = [client.post(service.url + "/grade", json={"items": [grade_item()]}) for _ in range(40)]
    refused = sum(answer.status_code == 503 for answer in answers)
    if refused:
        raise Broken(f"another client was refused {refused} of 40 times")
    return f"one client holds {held_items} hanging items: another one is refused {refused} of 40 times"


def large_bodies(service: Service) -> str:
    """One of text, one of metadata that are six million lists, one that is nothing of the kind."""
    text = {"items": [grade_item("a" * 750_000) for _ in range(32)]}
    lists = b'{"a":[' + b",".join([b"[]"] * (8 * MB)) + b"]}"
    item = json.dumps(grade_item(task="reasoning_gym")).encode()
    bodies = [
        json.dumps(text).encode(),
        b'{"items":[' + item[:-1] + b',"metadata":' + lists + b"}]}",
        b'{"items":' + lists + b"}",
    ]
    answers: list = []

    def post(body: bytes) -> None:
        headers = AUTHORIZED | {"Content-Type": "application/json"}
        try:
            answers.append(httpx.post(service.url + "/grade", content=body, headers=headers, timeout=300).status_code)
        except httpx.HTTPError as error:
            answers.append(type(error).__name__)

    threads = [threading.Thread(target=post, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"three bodies of {' + '.join(f'{len(body) / MB:.0f}' for body in bodies)} MB: {sorted(map(str, answers))}"


def heavy_items(service: Service) -> str:
    """Hanging items with large metadata, all at once."""
    big = ["5" * 100_000] * 80
    with ExitStack() as held:
        statuses = []
        for n in range(40):
            client = held.enter_context(httpx.Client(timeout=120))
            body = {"items": [endless_item(n, metadata={"a": big})]}
            answer = held.enter_context(client.stream("POST", service.url + "/grade", json=body, headers=STREAMED))
            statuses.append(answer.status_code)
    return f"40 items of 8 MB: {statuses.count(200)} accepted, {statuses.count(503)} refused"


class Broken(Exception):
    """A bound does not hold."""


@dataclass
class Attack:
    run: Callable[[Service], str]
    max_mb: int


ATTACKS = {
    "unfinished-bodies": Attack(unfinished_bodies, WITHOUT_TOKEN_MB),
    "big-header": Attack(big_header, WITHOUT_TOKEN_MB),
    "many-headers": Attack(many_headers, WITHOUT_TOKEN_MB),
    "hanging-neighbour": Attack(hanging_neighbour, WITH_TOKEN_MB),
    "large-bodies": Attack(large_bodies, WITH_TOKEN_MB),
    "heavy-items": Attack(heavy_items, WITH_TOKEN_MB),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--max-stall-s", type=float, default=3.0, help="that another client may wait")
    options = parser.parse_args()
    broken = 0
    print(f"{'attack':18} {'memory MB':>9} {'longest wait s':>14} {'others failed':>13}", flush=True)
    for name in options.only:
        attack = ATTACKS[name]
        with running(*OPTIONS, token=TOKEN) as service:
            httpx.get(service.url + "/ready", timeout=120)
            with Bystander(service) as bystander:
                try:
                    said = attack.run(service)
                except Broken as error:
                    said, broken = f"BROKEN: {error}", broken + 1
        bounds = {
            f"more than {attack.max_mb} MB": bystander.gained_mb > attack.max_mb,
            f"a wait of more than {options.max_stall_s:g} s": bystander.longest_s > options.max_stall_s,
            "another client was not answered": bystander.failures > 0,
        }
        said += "".join(f"; BROKEN: {bound}" for bound, exceeded in bounds.items() if exceeded)
        broken += any(bounds.values())
        print(
            f"{name:18} {bystander.gained_mb:9.0f} {bystander.longest_s:14.2f}"
            f" {bystander.failures:6} of {bystander.answers:<4}  {said}",
            flush=True,
        )
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
