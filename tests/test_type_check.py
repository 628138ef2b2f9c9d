"""mypy over the package, strict where pyproject.toml says so; and it can fail."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Both look at the same files, so the second begins where the first ended."""
    return tmp_path_factory.mktemp("mypy")


def mypy(cache, *files):
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-error-summary",
        "--cache-dir",
        str(cache),
        *files,
    ]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


def test_the_package_is_clean(cache):
    found = mypy(cache)
    assert (found.stdout, found.returncode) == ("", 0), found.stdout + found.stderr


def test_the_check_can_fail(cache, tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from r3_openrlhf.method.core.rewards import length_reward\nlength_reward('3', max_tokens=2)\n"
    )
    found = mypy(cache, str(wrong))
    assert (
        found.returncode == 1 and 'incompatible type "str"; expected "int"' in found.stdout
    ), found.stdout
