"""Real processes: whatever an environment does costs its own trajectory, nothing else is lost and nothing is left behind."""

import asyncio
from pathlib import Path

import psutil
import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.agents.environment import Observation
from r3_openrlhf.problems.agents.processes import EnvironmentLost, EnvironmentPool

AWKWARD = "tests.problems.agents.awkward:Awkward"
PATIENCE_S = 300  # never reached: a future is answered by its deadline


@pytest.fixture
def pool():
    with EnvironmentPool(AWKWARD, {}, timeout_s=3.0) as found:
        yield found


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


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
    victim, other = pool.environment(), pool.environment()
    assert victim.reset(1).result(PATIENCE_S) == Observation(text="task 1")
    other.reset(2).result(PATIENCE_S)
    lost, kept = victim.step(action), other.step("count")
    assert text_of(kept) == "count in task 2"
    with pytest.raises(EnvironmentLost) as found:
        lost.result(PATIENCE_S)
    assert (found.value.reason, found.value.detail) == (reason, detail)
    with pytest.raises(EnvironmentLost, match="step without reset"):
        victim.step("count").result(PATIENCE_S)
    victim.reset(3).result(PATIENCE_S)  # in a new process
    assert text_of(victim.step("count")) == "count in task 3"
    assert text_of(other.step("count")) == "count in task 2"


def test_a_slow_one_beside_many_that_compute_keeps_its_time(pool):
    """Each needs half a second of the processor and has three: sixteen of them on a few processors take longer, all answer."""
    worlds = [pool.environment() for _ in range(16)]
    for future in [world.reset(i) for i, world in enumerate(worlds)]:
        future.result(PATIENCE_S)
    disasters = [worlds[3].step("segfault"), worlds[7].step("hang")]
    answers = [(i, world.step("work")) for i, world in enumerate(worlds) if i not in (3, 7)]
    assert [text_of(future) for _, future in answers] == [f"work in task {i}" for i, _ in answers]
    reasons = []
    for future in disasters:
        with pytest.raises(EnvironmentLost) as found:
            future.result(PATIENCE_S)
        reasons.append(found.value.reason)
    assert reasons == ["crashed", "timeout"]


def test_a_process_is_used_again_and_none_is_left(pool):
    before = children()
    first = pool.environment()
    first.reset(0).result(PATIENCE_S)
    with_one = children() - before
    first.release()
    second = pool.environment()
    second.reset(1).result(PATIENCE_S)
    assert children() - before == with_one and len(with_one) == 2  # the template and one worker
    with pytest.raises(EnvironmentLost, match="step without reset"):
        first.step("count").result(PATIENCE_S)
    pool.close()
    assert not children() & with_one
    with pytest.raises(EnvironmentLost, match="closed"):
        second.step("count").result(PATIENCE_S)


def test_a_program_that_it_started_ends_with_it(tmp_path):
    report = tmp_path / "pid"
    with EnvironmentPool(AWKWARD, {"report": str(report)}, timeout_s=PATIENCE_S) as pool:
        world = pool.environment()
        world.reset(0).result(PATIENCE_S)
        world.step("program").result(PATIENCE_S)
        program = int(report.read_text())
        assert psutil.pid_exists(program)
        pool.timeout_s = 3.0
        with pytest.raises(EnvironmentLost, match="timeout"):
            world.step("hang").result(PATIENCE_S)
        try:
            psutil.wait_procs([psutil.Process(program)], timeout=PATIENCE_S)
        except psutil.NoSuchProcess:
            pass
        assert not psutil.pid_exists(program)


def test_an_environment_that_cannot_begin_says_why():
    with EnvironmentPool(AWKWARD, {"broken": True}) as pool:
        with pytest.raises(EnvironmentLost, match="raised: RuntimeError: no such level"):
            pool.environment().reset(0).result(PATIENCE_S)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        EnvironmentPool("tests.problems.agents.gone:World", {})


def test_in_asyncio_many_play_at_once(pool):
    async def play(seed: int) -> list[str]:
        world = pool.environment()
        try:
            await asyncio.wrap_future(world.reset(seed))
            return [(await asyncio.wrap_future(world.step(str(n)))).observation.text for n in range(3)]
        finally:
            world.release()

    async def play_all():
        return await asyncio.gather(*(play(seed) for seed in range(40)))

    assert asyncio.run(play_all()) == [[f"{n} in task {seed}" for n in range(3)] for seed in range(40)]


def test_the_path_and_the_directory_of_the_parent_hold(tmp_path, monkeypatch):
    """A module beside the program, and a relative path in the options, mean what they mean to the parent."""
    (tmp_path / "beside.py").write_text(Path(__file__).with_name("awkward.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    with EnvironmentPool("beside:Awkward", {"report": "pid"}, timeout_s=PATIENCE_S) as pool:
        world = pool.environment()
        world.reset(0).result(PATIENCE_S)
        world.step("program").result(PATIENCE_S)
        assert (tmp_path / "pid").is_file()
