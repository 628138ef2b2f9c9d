"""`r3 config`: the map of all settings is the code's."""

import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.config.loading import SYNONYMS, fields_of, load_config
from r3_openrlhf.config.map import settings
from r3_openrlhf.method.errors import ConfigError
from tests.commands import r3

REPOSITORY = Path(__file__).parents[1]


def r3_config(*arguments):
    done = r3("config", *map(str, arguments))
    return done.exit_code, done.output


def test_every_key_is_there_with_what_is_known_of_it():
    by_key = {one.key: one for one in settings()}
    assert sorted(by_key) == sorted(fields_of())
    order, k = by_key["replay.order"], by_key["replay.k"]
    assert (
        order.allowed == ("uniform", "newest", "lowest_entropy", "package.module:name")
        and order.default == "uniform"
    )
    assert (k.default, k.kind, k.meaning) == ("2", "int", "rows recalled per group, at most")
    assert (
        by_key["algo"].allowed[:2] == ("r3", "grpo")
        and by_key["ranking.guard"].allowed[0] == "none"
    )
    assert (
        by_key["reward.timeout_s"].unit == "seconds"
        and by_key["run_dir"].default == "(must be given)"
    )
    unexplained = [one.key for one in settings() if not one.meaning]
    assert len(unexplained) <= 45, unexplained


def test_a_section_a_search_and_a_mistake():
    _, text = r3_config("replay")
    assert (
        "replay.k = 2" in text
        and "reflection" not in text.split("\n\n")[0]
        and "data.path" not in text
    )
    _, text = r3_config("--search", "TAU")
    assert text.startswith("reflection.threshold = 0.1")
    assert r3_config("repaly") == (
        1,
        "Error: repaly is no section and no key; did you mean replay?\n",
    )
    code, text = r3_config("--search", "telepathy")
    assert code == 1 and "no setting mentions 'telepathy'" in text
    assert (
        "--diff no longer exists; use `diff RUN/config.yaml OTHER/config.yaml`"
        in r3_config("--diff", "a", "b")[1]
    )


def test_the_page_is_made_from_the_code():
    made = subprocess.run(
        [sys.executable, "tools/settings_page.py"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    ).stdout
    assert (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8") == made, (
        "write it again: tools/settings_page.py"
    )


@pytest.mark.parametrize("meant", SYNONYMS)
def test_every_synonym_names_a_key_that_there_is(meant):
    assert meant in fields_of()
    for word in SYNONYMS[meant]:
        with pytest.raises(
            ConfigError, match=f"{word} does not exist; did you mean {meant}[?]"
        ):
            load_config("cpu_smoke", [f"{word}=1"])
