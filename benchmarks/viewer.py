"""How fast is `r3 view` on a run of full size? Index, searches, pages over HTTP, pages in Chromium, memory.

    python benchmarks/viewer.py --make DIR                     # 945 steps x 128 problems x 16 rollouts, up to 8,192 tokens
    python benchmarks/viewer.py --make DIR --few-problems 2    # 945 steps of which three are whole: all but index and search
    python benchmarks/viewer.py DIR                            # measures, with the index in a directory of its own
    python benchmarks/viewer.py DIR --cache DIR2               # keeps the index, and uses it again
    python benchmarks/viewer.py DIR --only index search        # of index, search, pages, browser

The run is synthetic (benchmarks/_synthetic_run.py). Its directory is written to, and then only read. Each time is that of a first
request and the median of --rounds further ones; the file system's cache is warm where nothing else is said. A run of full size
takes 190 s a step (docs/performance.md), so indexing at five times its rate is 38 s a step.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from _synthetic_run import Size, make

from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.rollout_files import read_step, steps_in
from r3_openrlhf.view.search_index import Filter, RunIndex

STEP_S = 190.0  # of a run of full size
PARTS = ("index", "search", "pages", "browser")
SEARCHES: list[tuple[str, str, Filter, str]] = [
    ("a rare number", "terms 54321", Filter(), "step"),
    ("a common word", "the", Filter(), "step"),
    ("two common words", "step run", Filter(), "step"),
    ("a phrase", '"so the final answer is"', Filter(), "step"),
    ("the beginning of a word", "gra*", Filter(), "step"),
    ("nothing there", "xyzzy", Filter(), "step"),
    ("common, ungraded ones", "the", Filter(verdict="ungraded"), "step"),
    ("common, right and short", "the", Filter(verdict="correct", max_tokens=400), "step"),
    ("common, by length", "the", Filter(), "length"),
    ("common, by reward", "answer", Filter(verdict="correct"), "reward"),
    ("common, one step", "the", Filter(first_step=7, last_step=7), "length"),
    ("no word, right, by length", "", Filter(verdict="correct"), "length"),
    ("no word, recalled, by reward", "", Filter(recalled=True), "reward"),
]


def times_of(call: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Seconds of the first call, and the median and the largest of `rounds` more."""
    found = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return found[0], statistics.median(found[1:]), max(found[1:])


def show(name: str, times: tuple[float, float, float], more: str = "") -> None:
    first, median, largest = (f"{1000 * seconds:7.0f}" for seconds in times)
    print(f"  {name:<34} {first} {median} {largest} ms  {more}", flush=True)


def of_process(pid: int, key: str) -> float:
    """VmRSS or VmHWM of a process, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) / 1000  # type: ignore[index]


# ── index and search: a process of their own, so that its memory is theirs ──


def measure_index(run: Path, cache: Path) -> None:
    index = RunIndex(run, cache=cache)
    steps, started, worst, last, rollouts = 0, time.perf_counter(), 0.0, time.perf_counter(), 0
    for progress in index.update():
        now = time.perf_counter()
        steps, rollouts, worst, last = steps + 1, rollouts + progress.rollouts, max(worst, now - last), now
    seconds = time.perf_counter() - started
    if steps:
        print(
            f"index: {steps} steps, {rollouts:,} rollouts in {seconds:.0f} s: {seconds / steps:.2f} s a step, {worst:.2f} at most; "
            f"a run takes {STEP_S:.0f} s a step, {STEP_S * steps / seconds:.0f} times as long"
        )
    started = time.perf_counter()
    assert list(index.update()) == []
    print(f"  an update without news: {1000 * (time.perf_counter() - started):.0f} ms")
    size = sum(file.stat().st_size for file in (run / "rollouts").iterdir())
    print(
        f"  {rollouts:,} rollouts, {index.path.stat().st_size / 1e6:,.0f} MB, {index.path.stat().st_size / max(1, rollouts):.0f} bytes each; "
        f"rollouts/ has {size / 1e6:,.0f} MB; memory {of_process_self('VmHWM'):.0f} MB at most"
    )
    index.close()


def of_process_self(key: str) -> float:
    return of_process(os.getpid(), key)


def measure_search(run: Path, cache: Path, rounds: int) -> None:
    index = RunIndex(run, cache=cache)
    print(f"search of {len(index.counts()):,} steps: first, median, largest of {rounds} more")
    for name, query, where, sort in SEARCHES:
        found = index.search(query, where=where, sort=sort)
        hits = f"{found.total:,}{' and more' if found.more else ''} hits"
        show(name, times_of(lambda q=query, w=where, s=sort: index.search(q, where=w, sort=s), rounds), hits)
    uid = index.search("", limit=1).rollouts[0].row["uid"]
    show(
        "the life of a problem",
        times_of(lambda: index.problem_life(uid), rounds),
        f"{len(index.problem_life(uid))} rollouts",
    )
    show("what the curves count", times_of(index.counts, rounds), f"{len(index.counts())} steps")
    show(
        "problems with a word",
        times_of(lambda: index.problems("reward"), rounds),
        f"{len(index.problems('reward'))} hits",
    )
    print(f"  memory {of_process_self('VmHWM'):.0f} MB at most")
    index.close()


# ── pages ──


@contextmanager
def served(run: Path, cache: Path):
    """(address, process id) of `r3 view RUN`."""
    command = [sys.executable, "-c", "from r3_openrlhf.cli import main; main()", "view", str(run), "--no-browser"]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rstrip("/"), process.pid
    finally:
        process.terminate()
        process.wait()


def fetched(address: str) -> bytes:
    request = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def unpacked(body: bytes) -> bytes:
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


def places(run: Path) -> dict[str, str]:
    """Paths of the pages that are measured."""
    step, file = max(steps_in(RunDirectory(run).rollouts).items())
    row = next(row for row in read_step(file, without=("text", "prompt")) if row["group"] == 0)
    name, uid = run.name, urllib.parse.quote(row["uid"])
    return {
        "first view: the page": f"/{name}",
        "first view: the curves": f"/api/curves?run={name}",
        "a step": f"/{name}/step/{step}",
        "an older step": f"/{name}/step/{step // 2}",
        "a group of full length": f"/{name}/step/{step}/plain/{uid}",
        "its tokens": f"/api/tokens/{name}/step/{step}/plain/{uid}",
        "the tokens of six": f"/api/tokens/{name}/step/{step}/plain/{uid}?place=0&place=1&place=2&place=3&place=4&place=5",
        "one response": f"/{name}/tokens/{step}/0/plain/{uid}",
        "a search": "/search?q=the+final+answer",
        "the life of a problem": f"/{name}/problem/{uid}",
    }


def measure_pages(run: Path, cache: Path, rounds: int) -> None:
    with served(run, cache) as (address, pid):
        print(f"pages over HTTP: first, median, largest of {rounds} more")
        for name, path in places(run).items():
            try:
                body = fetched(address + path)
            except urllib.error.HTTPError as error:
                print(f"  {name:<34} {error.code}: {path}")
                continue
            times = times_of(lambda path=path: fetched(address + path), rounds)
            show(name, times, f"{len(unpacked(body)) / 1000:,.0f} kB, {len(body) / 1000:,.0f} sent")
        print(f"  server memory {of_process(pid, 'VmRSS'):.0f} MB, {of_process(pid, 'VmHWM'):.0f} at most")


DRAWN = """async ({ selector, heat, since, done }) => {
  // Milliseconds from `since` (0: the navigation) to the second frame after everything in view is there. With `heat`, everything is:
  // of each response in view that has such values, each token that can be seen has its colour. Without: its text.
  const frame = () => new Promise(requestAnimationFrame);
  const within = (a, b) => a.bottom > b.top && a.top < b.bottom && a.height > 0;
  const screen = { top: 0, bottom: innerHeight, height: innerHeight };
  const isThere = () => {
    const parts = [...document.querySelectorAll(selector)].filter((part) => within(part.getBoundingClientRect(), screen));
    if (!parts.length) return false;
    if (!heat) return parts.every((part) => part.textContent || part.tagName === "CANVAS");
    return parts.filter((part) => heat !== "entropy" || part.closest(".card").querySelector(".tag.ranked")).every((part) => {
      const box = part.getBoundingClientRect(), chunks = part.querySelectorAll(".heat > span");
      return chunks.length && [...chunks].every((chunk) => chunk.firstElementChild || !within(chunk.getBoundingClientRect(), box));
    });
  };
  while (document.readyState === "loading" || (done && !document.querySelector(done)) || !isThere()) await frame();
  await frame(); await frame();
  const sent = ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind)).reduce((sum, one) => sum + one.transferSize, 0);
  return [performance.now() - since, sent, [...document.querySelectorAll(selector)].filter((part) => within(part.getBoundingClientRect(), screen)).length];
}"""
LAPTOP, TALL = {"width": 1360, "height": 900}, {"width": 1360, "height": 3600}


def measure_browser(run: Path, cache: Path, rounds: int) -> None:
    """In milliseconds of the page's own clock, which starts with the navigation. Whatever is out of view is drawn later."""
    from playwright.sync_api import sync_playwright

    # a user's browser first: the headless shell paints a page while it parses it, and takes longer (docs/viewer.md)
    chromium = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if chromium is None:
        raise SystemExit("there is no chromium; on Debian: apt install chromium")
    paths = places(run)
    group = paths["a group of full length"]
    cards = "#cards .response"
    with served(run, cache) as (address, pid), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=LAPTOP)
        print(
            f"in {chromium}, from the request until what is in view is drawn: first, median, largest of {rounds} more; "
            "kB sent the first time, then; how many in view"
        )

        def opened(path: str, selector: str, heat: str = "", done: str = "") -> list[float]:
            page.goto(address + path, wait_until="commit")
            return page.evaluate(DRAWN, {"selector": selector, "heat": heat, "since": 0, "done": done})

        def clicked(heat: str) -> list[float]:
            """From the click on, in a group that lies there, all of it laid out."""
            opened(group, cards, done="html[data-laid-out]")
            since = page.evaluate(
                "heat => { const now = performance.now(); document.querySelector(`[data-heat=${heat}]`).click(); return now; }",
                heat,
            )
            return page.evaluate(DRAWN, {"selector": cards, "heat": heat, "since": since, "done": ""})

        def several(name: str, call: Callable[[], list[float]]) -> None:
            found = [call() for _ in range(rounds + 1)]
            times = [one[0] / 1000 for one in found]
            sent = f"{found[0][1] / 1000:,.0f}, {found[-1][1] / 1000:,.0f} kB sent"
            show(name, (times[0], statistics.median(times[1:]), max(times[1:])), f"{sent}, {found[-1][2]:.0f} in view")

        several("first view", lambda: opened(paths["first view: the page"], ".chart canvas"))
        several("a step", lambda: opened(paths["a step"], "#groups tbody tr"))
        several("a group of full length", lambda: opened(group, cards))
        several("  until all of it is laid out", lambda: opened(group, cards, done="html[data-laid-out]"))
        for heat in ("logprob", "entropy"):
            several(f"  with its heat map of {heat}", lambda heat=heat: opened(f"{group}?heat={heat}", cards, heat))
            several("  the heat map from the click on", lambda heat=heat: clicked(heat))
        page.set_viewport_size(TALL)
        several("all of its responses in view", lambda: opened(group, cards))
        for heat in ("logprob", "entropy"):
            several(f"  with its heat map of {heat}", lambda heat=heat: opened(f"{group}?heat={heat}", cards, heat))
        page.set_viewport_size(LAPTOP)
        several(
            "one response, token by token",
            lambda: opened(paths["one response"], "#heat", done="#heat .heat span span"),
        )
        several("a search", lambda: opened(paths["a search"], ".hits li"))
        several("the life of a problem", lambda: opened(paths["the life of a problem"], "table.groups tbody tr"))
        print(f"  server memory {of_process(pid, 'VmHWM'):.0f} MB at most")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--make", type=Path, metavar="DIR")
    for name in ("steps", "problems", "samples", "epoch-steps", "max-tokens", "mean-tokens", "few-problems"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Size(), name.replace("-", "_")))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        sizes = (
            options.steps,
            options.problems,
            options.samples,
            options.epoch_steps,
            options.max_tokens,
            options.mean_tokens,
            options.few_problems,
        )
        make(options.make, Size(*sizes))
        return
    if options.run is None:
        parser.error("name a run directory, or --make DIR")
    if options.part:
        cache = options.cache / "r3_openrlhf" / "viewer" if options.part in ("index", "search") else options.cache
        measure = globals()[f"measure_{options.part}"]
        measure(options.run, cache) if options.part == "index" else measure(options.run, cache, options.rounds)
        return
    with tempfile.TemporaryDirectory() as place:
        cache = options.cache or Path(place)
        for part in PARTS:
            if part in options.only:
                command = [sys.executable, __file__, str(options.run), "--part", part, "--cache", str(cache)]
                subprocess.run([*command, "--rounds", str(options.rounds)], check=True)


if __name__ == "__main__":
    main()
