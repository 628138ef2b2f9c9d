"""Real processes: whatever an environment does costs its own trajectory, nothing else is lost and nothing is left behind."""

from pathlib import Path

import pytest

from r3_openrlhf.machine.processes.pool import ItemLost
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.agents.environment import environment_pool

AWKWARD = "tests.problems.agents.awkward:Awkward"
PATIENCE_S = 300  # never reached: a future is answered by its deadline


@pytest.fixture
def pool():
    with environment_pool(AWKWARD, {}, timeout_s=3.0) as found:
        yield found


def text_of(future) -> str:
    return future.result(PATIENCE_S).observation.text


@pytest.mark.parametrize(
    ("action", "reason", "detail"),
    [
        ("hang", "timeout", ""),
        ("segfault", "crashed", ""),
        ("raise", "raised", "KeyError: 'the lamp'"),
        ("object", "raised", "TypeError: object is no plain data"),
    ],
)
def test_a_disaster_costs_its_own_trajectory_and_nothing_else(pool, action, reason, detail):
    if reason != "timeout":
        pool.timeout_s = PATIENCE_S
    victim, other = pool.session(), pool.session()
    assert text_of(victim.submit(1)) == "task 1"
    other.submit(2).result(PATIENCE_S)
    lost, kept = victim.submit(action), other.submit("count")
    assert text_of(kept) == "count in task 2"
    with pytest.raises(ItemLost) as found:
        lost.result(PATIENCE_S)
    assert (found.value.reason, found.value.detail) == (reason, detail)
    victim.submit(3).result(PATIENCE_S)  # in a new process
    assert text_of(victim.submit("count")) == "count in task 3"
    assert text_of(other.submit("count")) == "count in task 2"


def test_an_environment_that_cannot_begin_says_why():
    with environment_pool(AWKWARD, {"broken": True}, timeout_s=PATIENCE_S) as pool:
        with pytest.raises(ItemLost, match="raised: RuntimeError: no such level"):
            pool.session().submit(0).result(PATIENCE_S)
    with pytest.raises(ConfigError, match="cannot be imported"):
        environment_pool("tests.problems.agents.gone:World", {}, timeout_s=PATIENCE_S)


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
