"""Who may read the pages that the real command serves, and the pages behind a proxy."""

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from tests.view.charts import all_drawn
from tests.view.conftest import serving

NOBODY = {"user": 54321, "group": 54321, "extra_groups": []}  # ids that no one has
PREFIX = "/node/n1.example/8765"
ASK = r"exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET {path} HTTP/1.0\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n' >&3; head -1 <&3"
VIEW = [
    sys.executable,
    "-c",
    "from r3_openrlhf.cli import main; main()",
    "view",
    "--no-browser",
]
LINKS = re.compile(r'(?:href|src|action|data-address|data-style|data-tokens)="(/[^"#]+)')


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_and_a_rebinding_page_read_nothing(story):
    environment = {key: value for key, value in os.environ.items() if key != "R3_VIEW_TOKEN"}
    with subprocess.Popen(
        [*VIEW, story], stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        address = server.stdout.readline().strip()
        start, port, token = re.fullmatch(
            r"(http://127\.0\.0\.1:(\d+)/)\?token=([\w-]{32})", address
        ).groups()

        def answer(path, *, host=f"127.0.0.1:{port}", cookie="a=b"):
            words = ["bash", "-c", ASK.format(port=port, path=path, host=host, cookie=cookie)]
            return subprocess.run(
                words, **NOBODY, cwd="/", capture_output=True, text=True
            ).stdout.split()[1]

        for path in (
            "/",
            "/story",
            "/static/view.css",
            "/api/state",
            "/?token=",
            f"/?token={token[1:]}",
            "/?token=%%C3%%A9",
        ):
            assert answer(path) == answer(path, host="rebinding.example") == "401"
        with httpx.Client(follow_redirects=True, timeout=300) as browser:
            assert browser.get(address).url == f"{start}story"
            ((name, value),) = browser.cookies.items()
        assert answer("/story", cookie=f"{name}={value}") == "200"  # the attempts are real
        other = httpx.get(f"{start}/example.org/?token={token}&a=b", timeout=300)
        assert other.headers["location"] == "/example.org/?a=b"
        server.send_signal(signal.SIGINT)


def test_every_page_works_behind_a_proxy_that_keeps_its_part_of_an_address_or_removes_it(
    story, page
):
    token = "0123456789abcdef"
    with serving(story, token=token, page=page, root_path=PREFIX) as address:
        with page.expect_response(f"{address}{PREFIX}/api/state") as news:
            page.goto(f"{address}{PREFIX}/?token={token}")
            all_drawn(page)
        assert news.value.status == 200 and page.url == f"{address}{PREFIX}/story"
        assert (
            page.context.cookies(f"{address}{PREFIX}/") and page.context.cookies(address) == []
        )
        to_see, seen = {f"{PREFIX}/story"}, set()
        while len(seen) < 30:
            seen.add(link := max(to_see - seen))
            for path in (link, link.removeprefix(PREFIX)):
                answer = httpx.get(address + path, auth=("anybody", token), timeout=300)
                assert answer.status_code == 200 and link.startswith(f"{PREFIX}/"), link
            if "html" in answer.headers["content-type"]:
                to_see |= {one.replace("&amp;", "&") for one in LINKS.findall(answer.text)}


HANGS = """
import re, sys, time
from r3_openrlhf.cli import main
from r3_openrlhf.view.library import Library
refresh = iter([Library.refresh])  # the first one, of the command itself
Library.refresh = lambda self: next(refresh, lambda _: {page})(self)
main(["view", sys.argv[1], "--no-browser"])
"""


@pytest.mark.parametrize(
    ("page", "number", "code"),
    [
        ("time.sleep(600)", signal.SIGINT, 0),
        ("time.sleep(600)", signal.SIGTERM, -signal.SIGTERM),
        ("re.match('(a+)+$', 'a' * 40 + 'b')", signal.SIGTERM, -signal.SIGTERM),
    ],
)
def test_a_page_that_takes_for_ever_does_not_keep_the_viewer(story, page, number, code):
    """Code in C lets no handler of Python run, so that Ctrl-C alone has to wait for it there."""
    command = [sys.executable, "-c", HANGS.format(page=page), story]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().strip()
        with (
            httpx.Client(follow_redirects=True, timeout=3) as browser,
            pytest.raises(httpx.TimeoutException),
        ):
            browser.get(address)
        server.send_signal(number)
        try:
            assert server.wait(300) == code
        finally:
            server.kill()
