"""The command of a Ray job is read by one shell, and its words arrive as they were typed."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.operations.cluster.ray_jobs import entrypoint

REPOSITORY = Path(__file__).parents[3]
# what a shell, or the quoting of Windows, reads otherwise than it is written
SPECIAL = " \t'\"\\$`!#&;|<>*?~(){}[]=%^\n"
words = st.text(st.sampled_from(SPECIAL + "ax1.é"), min_size=1, max_size=12)


def read_by_a_shell(command):
    """The words after `r3`, as the program would get them (Ray starts a job with shell=True, job_supervisor.py:183)."""
    script = "r3() { printf '%s\\0' \"$@\"; }\n" + command
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=False)
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=60)
@given(st.lists(words, max_size=4))
@example(["data.prompt_template='{problem} Let $x$ be it'", 'a "b"', "c\\", "%PATH%", "!"])
def test_every_word_arrives_as_typed(typed):
    config = load_config("cpu_smoke", ["run_dir='/runs/a b $HOME'"])
    assert read_by_a_shell(entrypoint(config, typed)) == [
        "train",
        *typed,
        "run_dir=/runs/a b $HOME",
    ]


@pytest.mark.parametrize("word", ["$HOME", "a;b", "it's", "a  $x", "a `b` c"])
def test_through_ray_job_submit_it_would_not(word):
    """Why no script of ours calls it: `ray job submit -- COMMAND` joins words as Windows does (cli.py:313) for a shell."""
    assert read_by_a_shell(subprocess.list2cmdline(["r3", word])) != [word]


def test_no_script_calls_it():
    """A sentence may name it."""
    scripts = [*REPOSITORY.glob("examples/**/*.sh"), *REPOSITORY.glob("scripts/*.sh")]
    assert len(scripts) > 5
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        assert not re.search(r"^[^#\n]*\bray job submit\b", text, flags=re.MULTILINE), script
        subprocess.run(["bash", "-n", script], check=True)
