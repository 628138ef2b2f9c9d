"""A grading process loads nothing that draws, and nobody else notices."""

import subprocess
import sys

PROGRAM = """
import sys
{before}
from r3_openrlhf.rewards.answers.reasoning_gym_tasks import grade_reasoning_gym
print(sorted({{"matplotlib", "matplotlib.pyplot", "drawsvg"}} & sys.modules.keys()))
import drawsvg, matplotlib.animation
print(matplotlib.__version__ > "", matplotlib.animation.FuncAnimation.__name__, drawsvg.Drawing.__name__)
import reasoning_gym
for name in ("game_of_life", "arc_1d", "arc_agi"):
    entry = reasoning_gym.create_dataset(name, size=1, seed=1)[0]
    print(grade_reasoning_gym(entry["answer"], entry)[0])
"""


def said(before=""):
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(before=before)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_nothing_that_draws_is_loaded_and_the_libraries_are_there_for_others():
    assert said() == ["[]", "True FuncAnimation Drawing", "correct", "correct", "correct"]


def test_a_library_that_is_loaded_already_stays():
    assert said("import matplotlib")[:2] == [
        "['drawsvg', 'matplotlib', 'matplotlib.pyplot']",
        "True FuncAnimation Drawing",
    ]
