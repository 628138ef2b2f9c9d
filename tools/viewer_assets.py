"""What `r3 view` takes from others, as its pages load it: npm's packages at the versions of tools/viewer_frontend/.

    python tools/viewer_assets.py             # make viewer-assets: writes the files
    python tools/viewer_assets.py --check     # installs the same versions elsewhere and compares every byte

Nothing is compiled: the files are those that the packages publish, beside their licences. Users need no node.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FRONTEND = REPOSITORY / "tools" / "viewer_frontend"
VENDOR = REPOSITORY / "r3_openrlhf" / "view" / "static" / "vendor"
FOR_TESTS = REPOSITORY / "tests" / "view" / "vendor"
# where it goes -> file or folder of a package -> name there
FILES = {
    VENDOR: {
        "uplot/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
        "uplot/dist/uPlot.min.css": "uPlot.min.css",
        "uplot/LICENSE": "LICENSE.uplot",
        "katex/dist/katex.min.js": "katex.min.js",
        "katex/dist/katex.min.css": "katex.min.css",
        "katex/dist/fonts/*.woff2": "fonts",
        "katex/LICENSE": "LICENSE.katex",
    },
    FOR_TESTS: {"axe-core/axe.min.js": "axe.min.js", "axe-core/LICENSE": "LICENSE.axe-core"},
}


def build() -> dict[Path, bytes]:
    """Every file with its content, from a fresh `npm ci`. npm compares the packages with the lock's checksums."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(FRONTEND / name, scratch)
        subprocess.run(
            ["npm", "ci", "--no-progress", "--loglevel=error"],
            cwd=scratch,
            check=True,
            stdout=sys.stderr,
        )
        for target, files in FILES.items():
            for pattern, name in files.items():
                sources = sorted((Path(scratch) / "node_modules").glob(pattern))
                if not sources:
                    raise SystemExit(f"the packages hold no {pattern}")
                for source in sources:
                    place = target / name / source.name if "*" in pattern else target / name
                    found[place] = source.read_bytes()
    return found


def differences(built: dict[Path, bytes]) -> list[str]:
    """One line for each file that is not what was built."""
    there = {path for target in FILES for path in target.rglob("*") if path.is_file()}
    lines = [
        f"{path.relative_to(REPOSITORY)} is of no package"
        for path in sorted(there - set(built))
    ]
    for path, content in built.items():
        if path not in there:
            lines.append(f"{path.relative_to(REPOSITORY)} is missing")
        elif hashlib.sha256(path.read_bytes()).digest() != hashlib.sha256(content).digest():
            lines.append(f"{path.relative_to(REPOSITORY)} differs from the published file")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="Compare and write nothing.")
    arguments = parser.parse_args()
    made = build()
    if arguments.check:
        if found := differences(made):
            raise SystemExit("\n".join([*found, "make viewer-assets writes them anew"]))
    else:
        for target in FILES:
            shutil.rmtree(target, ignore_errors=True)
        for path, content in made.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
