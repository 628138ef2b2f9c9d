"""One writer: refused while another lives, taken over when it is gone, stopped when it comes back."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history import HistoryStore, lease
from r3_openrlhf.method.history.lease import Lease, last_holder
from tests.method.history.children import in_child

from .samples import make_rollout

ANOTHER_HOST = "filelock/2\npid={pid}\nhost=node17\nmode=lease\ntoken=x\nduration={lease_s!r}\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.sqlite"


@pytest.fixture
def lock(path):
    return Path(f"{path}.lock")


@pytest.fixture
def short(monkeypatch):
    """Leases of 0.2 s."""
    monkeypatch.setattr(lease, "LEASE_S", 0.2)
    monkeypatch.setattr(lease, "BEAT_S", 0.05)


def test_a_second_writer_is_refused_and_a_reader_is_not(path, lock):
    with HistoryStore.open(path) as store:
        with pytest.raises(
            HistoryError, match=f"is being written by process {os.getpid()} on .*remove {lock}"
        ):
            HistoryStore.open(path)
        assert (
            f"process {os.getpid()} on"
            in in_child(lambda: HistoryStore.open(path).close())["error"]
        )
        # the refusals did not cost the first its lease
        store.commit_step(1, 1, [make_rollout()])
        with HistoryStore.open(path, writer=False) as reader:
            store.commit_step(2, 1, [make_rollout()])
            assert reader.last_step == 2
            with pytest.raises(HistoryError, match="was opened for reading"):
                reader.commit_step(3, 1, [])
    assert not lock.exists()
    assert in_child(lambda: HistoryStore.open(path).close()) is None


def test_another_name_of_the_same_store_admits_no_second_writer(path, tmp_path):
    HistoryStore.open(path).close()
    (tmp_path / "link").symlink_to(path)
    with HistoryStore.open(path):
        with pytest.raises(HistoryError, match="is being written"):
            HistoryStore.open(tmp_path / "link")
    os.link(path, tmp_path / "second name")
    for name in (path, tmp_path / "second name"):
        with pytest.raises(HistoryError, match="has other names .hard links.*: use a copy"):
            HistoryStore.open(name)


@pytest.mark.parametrize("stays_a_zombie", [False, True])
def test_a_killed_writer_is_replaced_at_once(path, lock, stays_a_zombie):
    """Also where no one waits for it, as in a container whose first process is no init."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        store = HistoryStore.open(path)
        store.commit_step(1, 1, [make_rollout()])
        os.write(writer, b".")
        threading.Event().wait()
    os.read(reader, 1)
    holder, lives = last_holder(lock)
    assert (holder.pid, lives) == (child, True)
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | (os.WNOWAIT if stays_a_zombie else 0))
    assert last_holder(lock) == (holder, False)
    with HistoryStore.open(path) as store:
        assert store.last_step == 1


def test_a_suspended_writer_of_this_host_is_not_replaced(lock, short):
    """However long it is silent: it may come back."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        held = Lease.acquire(lock, name="x")
        os.write(writer, b".")
        threading.Event().wait()
        held.release()
    os.read(reader, 1)
    os.kill(child, signal.SIGSTOP)
    try:
        threading.Event().wait(0.5)
        with pytest.raises(HistoryError, match=f"is being written by process {child}"):
            Lease.acquire(lock, name="x")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_child_of_the_writer_cannot_write(path):
    """A SQLite connection must not cross a fork."""
    with HistoryStore.open(path) as store:
        answer = in_child(lambda: store.commit_step(1, 1, []))
        assert "was opened by process" in answer["error"]
        store.commit_step(1, 1, [])


def test_a_silent_writer_of_another_host_is_replaced(lock, monkeypatch):
    lock.write_text(ANOTHER_HOST.format(pid=os.getpid(), lease_s=0.2))
    assert last_holder(lock)[1] is True  # it touched the file a moment ago
    monkeypatch.setattr(lease, "LEASE_S", 0.2)
    monkeypatch.setattr(lease, "BEAT_S", 0.05)
    held = Lease.acquire(lock, name="x")
    assert held.is_held()
    held.release()


def test_who_was_killed_before_it_wrote_its_name_is_replaced(lock, short):
    lock.touch()
    Lease.acquire(lock, name="x").release()


def test_a_living_writer_of_another_host_is_refused(lock, short, monkeypatch):
    lock.write_text(ANOTHER_HOST.format(pid=4242, lease_s=0.2))
    # between two looks, however far apart they are, the other one has touched it
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (sleep(seconds), os.utime(lock)))
    with pytest.raises(
        HistoryError, match="x is being written by process 4242 on node17; stop that run first"
    ):
        Lease.acquire(lock, name="x")


def test_who_was_taken_for_dead_cannot_write_any_more(path, lock):
    with HistoryStore.open(path) as store:
        store.commit_step(1, 1, [make_rollout()])
        lock.unlink()
        lock.write_text(ANOTHER_HOST.format(pid=7, lease_s=30.0))
        for change in (
            lambda: store.commit_step(2, 1, [make_rollout()]),
            lambda: store.roll_back(0),
        ):
            with pytest.raises(
                HistoryError, match="was taken over by process 7 on node17; this run must stop"
            ):
                change()
        assert store.last_step == 1
    assert lock.exists()  # the other's


def test_a_lock_file_with_garbage_stops_nobody(path, lock):
    lock.write_bytes(b"\xff{not json")
    HistoryStore.open(path).close()
