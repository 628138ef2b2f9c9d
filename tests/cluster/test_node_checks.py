"""What is wrong with which node, by hand."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from r3_openrlhf.cluster.node_checks import faults


def seen(kind: str = "H100", driver: str = "580.65.06", *, used_mb: int = 0, **others: Any) -> dict[str, Any]:
    gpu = {"index": "0", "name": kind, "total_mb": 80_000, "used_mb": used_mb, "driver": driver}
    return {"gpus": [gpu], "shared_memory_free": 2**30, "open_files": 65536, "cpus": 8, "clock_gap_s": 0.0, **others}


def test_nothing_is_wrong_with_nodes_that_are_alike():
    assert faults({"a": seen(), "b": seen()}, gpus=1, device="cuda") == {}


def test_every_fault_of_a_node_is_named_in_one_sentence():
    bad = seen(used_mb=2000, shared_memory_free=2**20, open_files=5, clock_gap_s=99.0)
    assert faults({"a": seen(), "b": bad}, gpus=2, device="cuda") == {
        "a": "1 GPUs, 2 are needed",
        "b": "1 GPUs, 2 are needed, 2000 MB of GPU 0 are in use by somebody else, /dev/shm has 1 MB free, 64 are needed, "
        "ulimit -n is 5, 1024 are needed, its clock differs from the first node's by 99 s",
    }


def test_on_cpus_nobody_looks_at_gpus():
    assert faults({"a": seen(gpus=None), "b": seen("A100", used_mb=2000)}, gpus=4, device="cpu") == {}


def test_the_node_that_is_not_like_most_is_the_odd_one():
    looks = {"a": seen("A100"), "b": seen(), "c": seen()}
    assert faults(looks, gpus=1, device="cuda") == {
        "a": "A100 with driver 580.65.06, the others have H100 with driver 580.65.06"
    }


def test_of_two_kinds_as_frequent_that_of_the_first_node_counts():
    """Else it would depend on the seed of Python's hashes which of two nodes a job goes on without."""
    for first, second in permutations(["A100", "H100", "H200", "B200", "L40S"], 2):
        assert list(faults({"a": seen(first), "b": seen(second)}, gpus=1, device="cuda")) == ["b"]
