"""The environment that docs/environments.md shows is found by its path, and is won."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_environment.py"


def test_the_example_plays_in_a_process_of_its_own():
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *guesses, last = done.stdout.splitlines()
    assert guesses[0] == "between 1 and 100 -> 50" and len(guesses) <= 7 and last == "success: True"
