"""mypy over the package, strict where pyproject.toml says so; and it can fail."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def mypy(*arguments):
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


def test_the_package_is_clean(tmp_path):
    found = mypy("--cache-dir", str(tmp_path))
    assert (found.stdout, found.returncode) == ("", 0), found.stdout + found.stderr


def test_the_check_can_fail(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from r3_openrlhf.core.rewards import length_reward\nlength_reward('3', max_tokens=2)\n")
    found = mypy("--config-file=", "--cache-dir", str(tmp_path), "--follow-imports=silent", str(wrong))
    assert found.returncode == 1 and 'incompatible type "str"; expected "int"' in found.stdout, found.stdout
