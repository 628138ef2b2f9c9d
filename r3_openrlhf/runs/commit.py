"""The commit of this code: asked of git in a checkout, written by setup.py into its archives."""

import subprocess
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
FILE = "commit.txt"  # in the package; never in a checkout
# what makes a difference once it is installed
INSTALLED = (
    "r3_openrlhf",
    "configs",
    "pyproject.toml",
    "setup.py",
    "requirements-cpu.txt",
    "requirements-gpu.lock",
    "requirements-newer-cpu.txt",
    "requirements-newer-gpu.txt",
)


def commit_of(package: Path = PACKAGE) -> str | None:
    """Return the full hash, and ", modified" where the code differs from it; None: unknown."""
    if (package / FILE).is_file():
        return (package / FILE).read_text(encoding="utf-8").strip()
    root = package.absolute().parent
    # a package inside somebody else's checkout is not of that repository's commit
    if git(root, "ls-files", "--error-unmatch", f"{package.name}/__init__.py") is None:
        return None
    commit = git(root, "rev-parse", "HEAD")
    changes = git(root, "status", "--porcelain", "--", *INSTALLED)
    if commit is None or changes is None:
        return None
    return commit.strip() + (", modified" if changes else "")


def git(directory: Path, *command: str) -> str | None:
    """Return the output of git; None where there is no git, or it refuses."""
    try:
        return subprocess.run(
            ["git", "-C", str(directory), *command],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None  # the callers say "unknown"


def version_line(version: str, commit: str | None) -> str:
    """Return the text of `r3 --version`."""
    if commit is None:
        return f"r3-openrlhf {version} (commit unknown)"
    commit, *modified = commit.split(", ")
    return f"r3-openrlhf {version} (commit {', '.join([commit[:12], *modified])})"
