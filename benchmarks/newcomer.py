"""A newcomer's path on a fresh clone: installation, quickstart, own data with an own reward, viewer, report. Seconds of each, and its
longest silence.

    python benchmarks/newcomer.py DIRECTORY     # must not exist; 7 GB, half an hour on two cores
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

ROWS = [
    {"question": f"Calculate {a} + {b}.", "solution": str(a + b)}
    for a in range(2, 10)
    for b in range(2, 6)
]
REWARD = """
def ends_with(response, reference):
    return response.rstrip(" .}").endswith(reference)
"""
TRAIN = (
    "train experiment=quickstart data.path=mine.jsonl data.problem_key=question data.answer_key=solution held_out.path=null "
    "reward.function=mine.py:ends_with train.num_epochs=1 run_dir=runs/mine"
)


def timed(name: str, command: list[str], *, directory: Path) -> dict[str, float | str]:
    """Run it to its end; the longest wait for output, standard error included, is its silence."""
    start = last = time.monotonic()
    silence, before_it, log_tail = 0.0, b"", b""
    process = subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    with (directory.parent / f"{directory.name}-{name.replace(' ', '-')}.log").open(
        "wb"
    ) as log:
        while chunk := os.read(process.stdout.fileno(), 65536):
            now = time.monotonic()
            if now - last > silence:
                silence, before_it = now - last, log_tail
            last, log_tail = now, chunk[-200:]
            log.write(chunk)
    if process.wait():
        raise SystemExit(f"{name}: {' '.join(command)} ended with {process.returncode}")
    return {
        "step": name,
        "seconds": last - start,
        "silence_s": silence,
        "after": before_it.decode(errors="replace"),
    }


def viewed(directory: Path) -> dict[str, float | str]:
    """From the command to the answer of the first page."""
    start = time.monotonic()
    command = [".venv/bin/r3", "view", "runs/quickstart", "--no-browser"]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = next(
                word
                for line in process.stdout
                for word in line.split()
                if word.startswith("http://")
            )
            with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(
                address
            ) as answer:
                answer.read()
            return {
                "step": "view",
                "seconds": time.monotonic() - start,
                "silence_s": 0.0,
                "after": "",
            }
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory.resolve()
    # neither packages nor models nor compiled operators are there yet
    cache = directory.parent / f"{directory.name}-cache"
    os.environ |= {
        "XDG_CACHE_HOME": str(cache),
        "TORCH_EXTENSIONS_DIR": str(cache / "torch_extensions"),
    }
    here = Path(__file__).resolve().parent.parent
    subprocess.run(["git", "clone", "-q", str(here), str(directory)], check=True)
    (directory / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (directory / "mine.py").write_text(REWARD)
    r3 = ".venv/bin/r3"
    rows = [
        timed("install", ["make", "setup"], directory=directory),
        timed("quickstart", ["make", "quickstart"], directory=directory),
        timed(
            "own data and reward, checked",
            [r3, *TRAIN.split(), "--dry-run"],
            directory=directory,
        ),
        timed("own data and reward, trained", [r3, *TRAIN.split()], directory=directory),
        viewed(directory),
        timed(
            "report",
            [r3, "report", "runs/quickstart", "runs/mine", "--out", "report.html"],
            directory=directory,
        ),
    ]
    for row in rows:
        print(
            f"| {row['step']} | {row['seconds']:.0f} | {row['silence_s']:.0f} |  {str(row['after'])[-100:]!r}"
        )


if __name__ == "__main__":
    main()
