"""Environments in real processes (of what they do there: tests/machine/processes/test_pool.py)."""

from pathlib import Path

import pytest

from r3_openrlhf.machine.processes.pool import ItemLost
from r3_openrlhf.problems.agents.environment import environment_pool

AWKWARD = "tests.problems.agents.awkward:Awkward"
PATIENCE_S = 300  # never reached: a future is answered by its deadline


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
