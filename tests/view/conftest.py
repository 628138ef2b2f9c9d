"""One browser, one server and one story for all tests of the pages."""

import asyncio
import json
import os
import shutil
import tarfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from r3_openrlhf.config.loading import config_to_yaml, load_config
from r3_openrlhf.view.app import create_app
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.run_reader import RunReader
from tests.answering import served
from tests.view.story import Story

# Of Debian's two the one without windows takes less than half of the processor time. It is rarely idle: what a page does when the
# browser has time must not wait for that for ever.
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
AXE = Path(__file__).with_name("vendor") / "axe.min.js"
# With a second or so every test must pass as well: one that reads a page before it is there does not.
DELAY_S = float(os.environ.get("R3_TEST_DELAY_S", "0"))
PATIENCE_MS = 300_000  # a machine that has other work, too, is slow and not wrong
# What a model could write to become more than text in a browser.
HOSTILE = json.loads(Path(__file__).with_name("hostile.json").read_text())


@pytest.fixture(scope="session")
def story(tmp_path_factory):
    """A run of eight steps."""
    directory = tmp_path_factory.mktemp("runs") / "story"
    with Story(directory, num_problems=20, seed=8) as story:
        for _ in range(8):
            story.step()
    return directory


def unpacked(experiment, directory, *overrides):
    """The run of an archive beside this file, with the settings as they are written today."""
    with tarfile.open(Path(__file__).with_name(f"{experiment}.tar.xz")) as archive:
        archive.extractall(directory)
    config = load_config(experiment, [f"run_dir={directory}", *overrides])
    (directory / "config.yaml").write_text(config_to_yaml(config))
    return RunReader(directory, name=experiment)


@contextmanager
def serving(*paths, token=None, page=None, root_path=""):
    """The address of a server of these paths, in a thread of its own. `page` leaves it before it ends: a page
    that asks for news meanwhile finds no server, and its console says so."""
    app = create_app(Library(paths), token=token, root_path=root_path)

    async def late(scope, receive, send):
        await asyncio.sleep(DELAY_S if scope["type"] == "http" else 0)
        await app(scope, receive, send)

    with served(late) as address:
        yield address
        for one in page.context.pages if page else ():
            one.goto("about:blank")


@pytest.fixture(scope="session")
def server(story):
    with serving(story) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    """Chromium. Its driver has an event loop that runs in this thread as long as it lives, and asyncio.run refuses to run
    beside it: so it ends with the file."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium; on Debian: apt install chromium-headless-shell")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page with a profile of its own. What its console says against it, and a request to another host, fails the test."""
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults = []
    page.on(
        "console",
        lambda message: (
            faults.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "request",
        lambda request: None if is_local(request.url) else faults.append(f"asks {request.url}"),
    )
    page.faults = faults
    yield page
    context.close()
    assert faults == []


def follow(page, link, to="**"):
    """Click what leads to another document, of this address, and wait until it is loaded: `all`, `count` and the like read
    what is there at once, and a click does not wait."""
    with page.expect_navigation(url=to):
        link.click()


def wait_for_counts(page, step):
    """Until the page of a run shows this step, and what is counted from its rollouts."""
    page.locator(f"#charts[data-seen='{step}']").wait_for()


def script(name):
    """Return the text of a script beside this file."""
    return Path(__file__).with_name(f"{name}.js").read_text()


def is_local(url):
    return url.startswith(("http://127.0.0.1:", "file://", "data:", "blob:"))


def axe_faults(page, options=""):
    """What axe-core finds on this page."""
    page.evaluate(AXE.read_text())
    found = page.evaluate(f"axe.run(document, {{resultTypes: ['violations']{options}}})")
    return [
        f"{one['impact']} {one['id']}: {one['nodes'][0]['html'][:120]} {one['nodes'][0]['failureSummary'][:200]}"
        for one in found["violations"]
    ]
