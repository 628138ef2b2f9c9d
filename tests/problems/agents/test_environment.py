"""Environments by name: each of ours, one by import path, and every way not to find one; and in real processes (of what they
do there: tests/machine/processes/test_pool.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.machine.processes.pool import ItemLost
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.agents.environment import (
    Observation,
    Step,
    environment_pool,
    make_environment,
)
from r3_openrlhf.problems.agents.vault import Vault

AWKWARD = "tests.problems.agents.awkward:Awkward"
PATIENCE_S = 300  # never reached: a future is answered by its deadline


class Coin:
    """An environment of one's own."""

    def reset(self, seed: int) -> Observation:
        return Observation(text=f"coin {seed}")

    def step(self, action: str) -> Step:
        return Step(observation=Observation(text="over"), reward=1.0, done=True, success=True)

    def close(self) -> None:
        pass


def test_names_and_import_paths():
    assert isinstance(make_environment("vault", {"keys": 1}), Vault)
    assert make_environment(f"{__name__}:Coin", {}).reset(3).anchor == "coin 3"
    with pytest.raises(ValueError, match="reward is nan"):
        Step(observation=Observation(text="x"), reward=float("nan"), done=False)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vaullt", {}, "'vaullt'; did you mean vault\\?, or package.module:Class"),
        (
            "no_such_module:World",
            {},
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("json:World", {}, "json has no World"),
        (":World", {}, "use package.module:name"),
        ("json:loads", {}, "no reset, step, close"),
        (
            "alfworld",
            {"games": "nowhere"},
            "No module named 'textworld'|games is nowhere, where no game.tw-pddl is",
        ),
        ("vault", {"walls": 3}, "agents.options is {'walls': 3}.*walls"),
        ("vault", {"rooms": 9}, "agents.options is {'rooms': 9}.*rooms is 9"),
    ],
)
def test_what_cannot_be_made_is_said(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_environment(name, options)


def test_an_environment_that_cannot_begin_says_why():
    with environment_pool(AWKWARD, {"broken": True}, timeout_s=PATIENCE_S) as pool:
        with pytest.raises(ItemLost, match="raised: RuntimeError: no such level"):
            pool.session().submit(0).result(PATIENCE_S)


def test_the_path_and_the_directory_of_the_parent_hold(tmp_path, monkeypatch):
    """A module beside the program, and a relative path in the options, mean what they mean to the parent."""
    (tmp_path / "beside.py").write_text(Path(__file__).with_name("awkward.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    with environment_pool("beside:Awkward", {"report": "made"}, timeout_s=PATIENCE_S) as pool:
        world = pool.session()
        world.submit(0).result(PATIENCE_S)
        world.submit("report").result(PATIENCE_S)
        assert (tmp_path / "made").is_file()


def test_the_environment_of_the_documents_is_found_by_its_path_and_won():
    example = Path(__file__).parents[3] / "examples" / "own_environment.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *guesses, last = done.stdout.splitlines()
    assert (
        guesses[0] == "between 1 and 100 -> 50"
        and len(guesses) <= 7
        and last == "success: True"
    )
