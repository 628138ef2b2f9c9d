"""The pictures of docs/runs.md: pages of `r3 view`, in Chromium, of runs that tests/view/story.py writes.

python tools/viewer_screenshots.py                       # into docs/figures/viewer/
python tools/viewer_screenshots.py --run runs/quickstart # of a run of yours
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from r3_openrlhf.view.library import Library  # noqa: E402
from r3_openrlhf.view.run_reader import RunReader  # noqa: E402
from tests.view.conftest import wait_for_counts  # noqa: E402

FLAGS = ("--no-sandbox", "--disable-gpu", "--force-device-scale-factor=1")
TOKEN = "of-these-pictures-alone"
WIDTH, HEIGHT = 1360, 860


def pages_of(run: RunReader) -> dict[str, tuple[str, str]]:
    """Name of the picture -> (address, what is clicked first)."""
    rows, step = [], 0
    for step in reversed(run.steps()):  # the newest step in which everything happened
        rows = run.rows(step)
        if {row["context"] for row in rows} > {"plain"} and any(
            row["recalled_from"] is not None for row in rows
        ):
            break

    def group(**wanted) -> str:
        row = next(
            (row for row in rows if all(check(row[key]) for key, check in wanted.items())),
            rows[0],
        )
        return f"{row['context']}/{quote(row['uid'], safe='')}"

    name = f"/{quote(run.name)}"
    longest = max(
        (row for row in rows if row["recalled_from"] is not None and row["context"] == "plain"),
        key=lambda row: row["num_tokens"],
        default=rows[0],
    )
    old = f"{longest['context']}/{quote(longest['uid'], safe='')}"
    of_old = [
        row
        for row in rows
        if row["uid"] == longest["uid"] and row["context"] == longest["context"]
    ]
    recalled = group(
        recalled_from=lambda value: value is not None, context=lambda value: value == "plain"
    )
    ranked = group(ranked=bool, context=lambda value: value == "plain")
    return {
        "run": (name, ""),
        "step": (f"{name}/step/{step}", ""),
        "group": (f"{name}/step/{step}/{recalled}", ""),
        "ranking": (f"{name}/step/{step}/{ranked}", "[data-heat=entropy]"),
        "tokens": (
            f"{name}/tokens/{step}/{of_old.index(longest)}/{old}",
            "[data-heat=ratio]:enabled",
        ),
        "problem": (f"{name}/problem/{recalled.partition('/')[2]}", ""),
        "problems": (f"{name}/problems", ""),
    }


def draw(paths: list[Path], target: Path, cache: Path) -> None:
    """Serve the directories, and write a PNG of each page."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium; on Debian: apt install chromium-headless-shell")
    library = Library(paths)
    run, *others = library.runs.values()
    pages = pages_of(run)
    if len(library.evaluations) > 1:
        a, b, *_ = library.evaluations
        pages["compare"] = f"/compare/{a}/{b}", ""
    if others:
        pages |= {"runs": ("/?arms=1", ""), "arms": ("/compare", "")}
    command = [
        sys.executable,
        "-c",
        "from r3_openrlhf.cli import main; main()",
        "view",
        *map(str, paths),
        "--no-browser",
    ]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(REPOSITORY),
        "HOME": str(cache),
        "R3_VIEW_TOKEN": TOKEN,
    }
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip().rstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
            size, password = (
                {"width": WIDTH, "height": HEIGHT},
                {"username": "any", "password": TOKEN},
            )
            page = browser.new_page(viewport=size, http_credentials=password)
            page.goto(address)
            wait_for_counts(page, run.steps()[-1])
            for name, (path, click) in pages.items():
                shoot(page, address + path, click, target / f"{name}.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()
    for file in sorted(target.glob("*.png")):
        shrink(file)
        print(f"{file}  {file.stat().st_size / 1000:.0f} kB")


def shoot(page, address: str, click: str, file: Path) -> None:
    """The first screen of a page."""
    page.goto(address, wait_until="networkidle")
    if click and page.locator(click).count():
        page.locator(click).click()
        page.locator(".heat .h1").first.wait_for()
        page.mouse.move(0, 0)
    end = page.evaluate(
        "Math.ceil(Math.max(...[...document.querySelector('main').children].map(e => e.getBoundingClientRect().bottom)))"
    )
    page.screenshot(
        path=file, clip={"x": 0, "y": 0, "width": WIDTH, "height": min(HEIGHT, end + 20)}
    )


def shrink(file: Path) -> None:
    """To 256 colours: a page has few, and the pictures lie in the repository."""
    from PIL import Image

    with Image.open(file) as picture:
        picture.convert("RGB").quantize(
            256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        ).save(file, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", type=Path, action="append", help="A directory to show; may be repeated."
    )
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "figures" / "viewer")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        shown = arguments.run
        if not shown:
            from tests.view.evaluations import write_evaluation
            from tests.view.story import Story

            for name, seed, settings in (
                ("r3_1", 1, ("arm=r3",)),
                ("r3_2", 3, ("arm=r3",)),
                ("no_replay_1", 1, ("arm=no_replay", "replay.enabled=false")),
                ("no_replay_2", 3, ("arm=no_replay", "replay.enabled=false")),
            ):
                with Story(Path(scratch) / name, seed=seed, settings=settings) as story:
                    for _ in range(28):
                        story.step()
                shown = [*(shown or []), Path(scratch) / name]
            for name, skill, seed in (("base", 0.35, 1), ("trained", 0.6, 2)):
                write_evaluation(Path(scratch) / "evaluations" / name, skill=skill, seed=seed)
            shown = [*(shown or []), Path(scratch) / "evaluations"]
        draw(shown, arguments.out, Path(scratch))
