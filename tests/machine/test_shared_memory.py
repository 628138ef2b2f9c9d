"""What is swept out of /dev/shm, and what is not: needs no Slurm."""

import multiprocessing
import os
from multiprocessing.shared_memory import SharedMemory

from r3_openrlhf.machine import shared_memory


def files():
    return {
        path.name
        for name in shared_memory.STACK_NAMES
        for path in shared_memory.FOLDER.glob(name)
    }


def test_what_a_process_has_mapped_is_held():
    before = files()
    # a process that is spawned will open it by its name
    lock = multiprocessing.get_context("spawn").Lock()
    memory = SharedMemory(create=True, size=64)
    try:
        names = {memory.name, f"sem.{lock._semlock.name.removeprefix('/')}"}
        held = {shared_memory.FOLDER / name for name in (files() - before) & names}
        assert len(held) == 2
        assert shared_memory.held(held) == held
    finally:
        memory.close()
        memory.unlink()


def test_what_nobody_holds_is_swept(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_TASK_PID", raising=False)
    namespace = os.stat("/proc/self/ns/pid").st_ino
    (tmp_path / "psm_left").write_bytes(b"x")
    (tmp_path / "mine.txt").write_bytes(b"x")
    (tmp_path / "psm_removed_by_another_agent").symlink_to(tmp_path / "nowhere")
    (tmp_path / "sem.mp-left").write_bytes(b"x")
    # others may hold them, whom we do not see
    monkeypatch.setattr(shared_memory, "FIRST_NAMESPACE", namespace + 1)
    assert shared_memory.sweep(tmp_path) == []
    monkeypatch.setattr(shared_memory, "FIRST_NAMESPACE", namespace)
    with (tmp_path / "sem.mp-open").open("wb"):
        assert shared_memory.sweep(tmp_path, names=shared_memory.SEMAPHORES) == ["sem.mp-left"]
        assert shared_memory.sweep(tmp_path) == ["psm_left"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "mine.txt",
        "sem.mp-open",
        "psm_removed_by_another_agent",
    }
