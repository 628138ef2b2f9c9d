"""The memory of a job, on made-up trees of cgroups."""

from functools import partial
from types import SimpleNamespace

import pytest

from r3_openrlhf.machine.memory import (
    available_memory,
    limits,
    object_store_bytes,
    total_memory,
)
from r3_openrlhf.operations.cluster import node_checks, ray_on_nodes

GiB = 2**30
V1_NO_LIMIT = 9223372036854771712
V1_MOUNT = "35 31 0:32 {} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V1_OTHER = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
V2_MOUNT = "35 31 0:32 {} /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw"
V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2_FILES = ("memory.max", "memory.current", "inactive_file")


@pytest.fixture
def machine(tmp_path):
    """A host of 100 GiB, 80 of them available, with these cgroups: {path: (limit, used, cache)}."""

    def build(own, mounts, files, groups, point):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/meminfo").write_text(
            f"MemTotal:       {100 * 2**20} kB\nMemFree: 1 kB\nMemAvailable:   {80 * 2**20} kB\n"
        )
        (tmp_path / "proc/self/cgroup").write_text(own)
        (tmp_path / "proc/self/mountinfo").write_text("\n".join(mounts) + "\n")
        limit, usage, cache = files
        for path, values in groups.items():
            folder = tmp_path / point / path
            folder.mkdir(parents=True, exist_ok=True)
            (folder / limit).write_text(f"{values[0]}\n")
            (folder / usage).write_text(f"{values[1]}\n")
            (folder / "memory.stat").write_text(f"cache 7\n{cache} {values[2]}\nx_{cache} 1\n")
        return tmp_path

    return build


def v2(machine, own, groups, mounted="/"):
    own = f"0::{own}\n"
    return machine(own, [V2_MOUNT.format(mounted)], V2_FILES, groups, "sys/fs/cgroup")


def v1(machine, own, groups, mounted="/"):
    own = f"4:memory:{own}\n1:cpu,cpuacct:/elsewhere\n0::/\n"
    mounts = [V1_OTHER, V1_MOUNT.format(mounted)]
    return machine(own, mounts, V1_FILES, groups, "sys/fs/cgroup/memory")


def test_without_a_limit_it_is_the_hosts(machine):
    root = v2(machine, "/user", {"user": ("max", 5 * GiB, 0)})
    assert (total_memory(root), available_memory(root)) == (100 * GiB, 80 * GiB)


def test_a_slurm_job_of_v1(machine):
    """The step has no limit, its job has one. 12 GiB of what is used are a cache of files."""
    groups = {
        "": (V1_NO_LIMIT, 90 * GiB, 0),
        "slurm/uid_1/job_2": (40 * GiB, 30 * GiB, 12 * GiB),
        "slurm/uid_1/job_2/step_0": (V1_NO_LIMIT, 1 * GiB, 0),
        "slurm/uid_1/job_3": (1 * GiB, 0, 0),  # another one
    }
    root = v1(machine, "/slurm/uid_1/job_2/step_0", groups)
    assert (total_memory(root), available_memory(root)) == (40 * GiB, 22 * GiB)


def test_a_slurm_job_of_v2(machine):
    """The nearest limit is not the smallest; the least is left within another one."""
    groups = {
        "slurm": (60 * GiB, 55 * GiB, 0),
        "slurm/job_2": (20 * GiB, 10 * GiB, 1 * GiB),
        "slurm/job_2/step_0": (30 * GiB, 9 * GiB, 0),
        "slurm/job_2/step_0/task_0": ("max", 9 * GiB, 0),
    }
    root = v2(machine, "/slurm/job_2/step_0/task_0", groups)
    assert total_memory(root) == 20 * GiB
    assert available_memory(root) == 5 * GiB
    assert object_store_bytes(50 * GiB, available_memory(root)) == 1 * GiB


@pytest.mark.parametrize("build", [v1, v2])
@pytest.mark.parametrize(
    ("own", "mounted"),
    [
        ("/", "/"),  # a cgroup namespace
        ("/docker/abc", "/docker/abc"),  # without one, its own part mounted
        ("/../job", "/"),  # a process of the host's
    ],
)
def test_a_container(machine, build, own, mounted):
    root = build(machine, own, {"": (8 * GiB, 3 * GiB, 0)}, mounted)
    assert (total_memory(root), available_memory(root)) == (8 * GiB, 5 * GiB)


def test_a_job_that_is_over_its_limit_has_nothing_left(machine):
    root = v2(machine, "/job", {"job": (2 * GiB, 3 * GiB, 0)})
    assert available_memory(root) == 0


def test_where_nothing_is_mounted(machine):
    root = machine("0::/job\n", [], V2_FILES, {"job": (1, 0, 0)}, "sys/fs/cgroup")
    assert limits(root) == [] and total_memory(root) == 100 * GiB


def test_the_log_of_a_node_and_its_object_store_know_the_limit_of_the_job(
    machine, monkeypatch, tmp_path
):
    root = v2(machine, "/job/step", {"job": (20 * GiB, 15 * GiB, 0), "job/step": ("max", 0, 0)})
    monkeypatch.setattr(node_checks, "total_memory", partial(total_memory, root))
    monkeypatch.setattr(ray_on_nodes, "available_memory", partial(available_memory, root))
    monkeypatch.setattr(
        ray_on_nodes.shutil, "disk_usage", lambda _: SimpleNamespace(free=90 * GiB)
    )
    seen = node_checks.look(gpus=None, device="cpu")
    assert " 20 GiB of memory, " in node_checks.describe("node1", seen)
    options = {"port": 1, "gpus": 8, "ray_args": "", "temp_dir": tmp_path}
    command = ray_on_nodes.start_command(
        address="10.0.0.1", head="10.0.0.1:1", node="a", **options
    )
    assert f"--object-store-memory={GiB}" in command
