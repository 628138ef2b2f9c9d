"""Environments by name: each of ours, one by import path, and every way not to find one."""

import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.agents.environment import Observation, Step, make_environment
from r3_openrlhf.problems.agents.vault import Vault


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
        ("no_such_module:World", {}, "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:World", {}, "json has no World"),
        (":World", {}, "use package.module:name"),
        ("json:loads", {}, "no reset, step, close"),
        ("alfworld", {"games": "nowhere"}, "No module named 'textworld'|games is nowhere, where no game.tw-pddl is"),
        ("vault", {"walls": 3}, "agents.options is {'walls': 3}.*walls"),
        ("vault", {"rooms": 9}, "agents.options is {'rooms': 9}.*rooms is 9"),
    ],
)
def test_what_cannot_be_made_is_said(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_environment(name, options)
