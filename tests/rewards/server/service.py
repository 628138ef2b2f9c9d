"""A real reward service in another process."""

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.rewards.hostile_payloads import ENDLESS_REFERENCE, endless

PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from r3_openrlhf.cli import main
"""


class Service:
    def __init__(
        self, *options: str, port: int = 0, token: str | None = None, prelude: str = ""
    ) -> None:
        """prelude: Python that runs in it first."""
        environment = {
            key: value for key, value in os.environ.items() if key != "R3_REWARD_TOKEN"
        }
        if token is not None:
            environment["R3_REWARD_TOKEN"] = token
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"{PROGRAM}{prelude}\nmain()\n",
                "serve-rewards",
                "--port",
                str(port),
                *options,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for line in self.process.stderr:
            if match := re.search(r"serving rewards on (http://\S+:(\d+))", line):
                self.url, self.port = match[1], int(match[2])
                self.headers = {
                    "Authorization": f"Bearer {token or self.url.partition('@')[0].rpartition(':')[2]}"
                }
                return
        raise RuntimeError(f"the reward service ended with exit code {self.process.wait()}")

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(300)
        self.process.stderr.close()


@contextmanager
def running(*options: str, **kwargs):
    service = Service(*options, **kwargs)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.stop()


def post(url, route, body, **kwargs):
    import httpx

    return httpx.post(url + route, json=body, timeout=300, **kwargs)


def answer_after(first, url):
    """The first answer of `url` whose status is another one; the last of `first` when none comes within minutes."""
    import httpx

    deadline = time.monotonic() + 300
    while (
        answer := httpx.get(url, timeout=300)
    ).status_code == first and time.monotonic() < deadline:
        os.sched_yield()
    return answer


def grade_item(response=r"\boxed{5}", *references, **fields):
    return {
        "response": response,
        "references": list(references or ("5",)),
        "num_tokens": 8192,
        **fields,
    }


def endless_item(i=0, **fields):
    """Takes the grader to its deadline; another one for every i."""
    return grade_item(rf"\boxed{{{endless(i)}}}", ENDLESS_REFERENCE, **fields)
