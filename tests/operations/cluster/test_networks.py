"""The whole stack in jobs of a Slurm whose two nodes have a network each. `make cluster-check` runs it."""

import re

import pytest

from tests.operations.cluster.conftest import log_of, running, steps_of
from tests.operations.cluster.networks import NetworkedSlurm, missing
from tests.processes import until
from tests.recordings import counts, playback_of, recorded, recorded_counts, settings_of, story

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = [pytest.mark.soak, pytest.mark.stack]


@pytest.fixture(scope="module")
def networked():
    if why := missing():
        pytest.skip(why)
    with running(NetworkedSlurm, "r3n") as cluster:
        yield cluster


def test_a_run_on_two_nodes_that_is_preempted_twice_is_the_undisturbed_run(networked, tmp_path):
    """One rank and one engine per node. The responses are those of a recorded run, which nobody interrupted: the order
    of the problems, the verdicts, the recalled rows and the reflection prompts must be its own."""
    run_dir = tmp_path / "run"
    networked.environment |= playback_of("r3")
    number = networked.submit(
        run_dir, "--nodes=2", *settings_of("r3"), "--ray-args=--object-store-memory=300000000"
    )
    preempted_at = []
    for node, more in (("node2", 2), ("node1", 2)):
        wanted = len(steps_of(run_dir)) + more
        until(
            lambda wanted=wanted: len(steps_of(run_dir)) >= wanted or networked.ended(number),
            seconds=900,
            what=f"step {wanted}: {log_of(run_dir, number)[-4000:]}",
        )
        assert not networked.ended(number), log_of(run_dir, number)[-6000:]
        saved = f"test $(grep -c 'saved, requeued' {run_dir}/cluster/slurm-{number}.log) -gt {len(preempted_at)}"
        urgent = networked.call(
            "sbatch",
            "--parsable",
            "-p",
            "urgent",
            f"--nodelist={node}",
            "--exclusive",
            "-o",
            tmp_path / "urgent",
            "--wrap",
            f"until {saved}; do sleep 0.5; done",
        )
        networked.wait(urgent, "COMPLETED", seconds=300)
        preempted_at.append(
            re.findall(r"preempted at step (\d+), saved", log_of(run_dir, number))[-1]
        )
    ended = networked.wait(number, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", seconds=900)
    log = log_of(run_dir, number)
    assert (ended["JobState"], ended["Restarts"], ended["NumNodes"]) == (
        "COMPLETED",
        "2",
        "2",
    ), log[-6000:]
    assert len(set(preempted_at)) == 2, preempted_at
    assert story(run_dir) == recorded("r3")[1]["story"]
    assert counts(run_dir) == recorded_counts("r3")
    networked.assert_nothing_left(number)
