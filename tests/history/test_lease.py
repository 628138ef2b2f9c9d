"""One writer: refused while another lives, taken over when it is gone, fenced off when it comes back."""

import json
import os
import signal
import sqlite3
import threading
from pathlib import Path

import pytest

from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history import HistoryStore
from r3_openrlhf.history.lease import _RECORD_BYTES, Holder, Lease, last_holder

from .samples import make_rollout


def in_child(function):
    """Runs function in a forked child and returns what it returned, as JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = function()
        except HistoryError as error:
            answer = {"error": str(error)}
        except BaseException as error:
            answer = {"crash": repr(error)}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = json.loads(stream.read())
    os.waitpid(child, 0)
    return answer


def forge(path, **changes):
    """A lock file left by someone else."""
    record = {name: getattr(Holder.me(), name) for name in Holder.__dataclass_fields__}
    record |= {"host": "node17", "pid": 4242, "since": "2026-01-02T03:04:05+00:00", "token": "x", **changes}
    # as the product does: a reader never sees a part of it
    file = os.open(path.with_name(path.name + ".lock"), os.O_WRONLY | os.O_CREAT)
    os.pwrite(file, json.dumps(record).encode().ljust(_RECORD_BYTES), 0)
    os.close(file)


def test_a_second_writer_in_this_process_is_refused(tmp_path):
    path = tmp_path / "history.sqlite"
    with HistoryStore.open(path) as store:
        with pytest.raises(HistoryError, match=f"is being written by process {os.getpid()} on .*since 2"):
            HistoryStore.open(path)
        store.commit_step(1, 1, [])  # the refusal did not cost the first its lock
        answer = in_child(lambda: HistoryStore.open(path).close())
        assert f"process {os.getpid()} on" in answer["error"]
    HistoryStore.open(path).close()


def test_a_second_writer_in_another_process_is_refused(tmp_path):
    path = tmp_path / "history.sqlite"
    with HistoryStore.open(path):
        answer = in_child(lambda: HistoryStore.open(path).close())
    assert f"is being written by process {os.getpid()} on" in answer["error"]
    assert in_child(lambda: HistoryStore.open(path).close()) is None


def test_a_path_by_another_name_is_the_same_store(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with HistoryStore.open(tmp_path / "run" / "history.sqlite"):
        with pytest.raises(HistoryError, match="is being written"):
            HistoryStore.open(tmp_path / "link" / "history.sqlite")


def test_a_killed_writer_is_replaced_at_once(tmp_path):
    path = tmp_path / "history.sqlite"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        store = HistoryStore.open(path)
        store.commit_step(1, 1, [make_rollout()])
        os.write(writer, b".")
        threading.Event().wait()
    os.read(reader, 1)
    assert last_holder(path)[0].pid == child and last_holder(path)[1] == "running"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert last_holder(path)[1] == "gone"
    with HistoryStore.open(path) as store:
        assert store.last_step == 1


def test_a_child_of_the_writer_cannot_write(tmp_path):
    """A SQLite connection must not cross a fork."""
    with HistoryStore.open(tmp_path / "history.sqlite") as store:
        answer = in_child(lambda: store.commit_step(1, 1, []))
        assert "was opened by process" in answer["error"]
        store.commit_step(1, 1, [])


def test_the_record_of_another_machine_is_watched(tmp_path):
    """Its lock may not reach us, so only silence counts."""
    path = tmp_path / "history.sqlite"
    forge(path, boot_id="another machine")
    assert last_holder(path)[1] == "unknown"
    lease = Lease.acquire(path, watch_s=0.1)
    assert lease.holder.pid == os.getpid()
    assert "is being written by" in in_child(lambda: Lease.acquire(path).release())["error"]
    lease.release()


def test_another_machine_that_still_beats_is_refused(tmp_path):
    path = tmp_path / "history.sqlite"
    forge(path, boot_id="another machine", beat=1)
    stop = threading.Event()

    def beat():
        count = 1
        while not stop.wait(0.02):
            count += 1
            forge(path, boot_id="another machine", beat=count)

    other = threading.Thread(target=beat)
    other.start()
    try:
        with pytest.raises(HistoryError, match=r"process 4242 on node17 \(since 2026-01-02T03:04:05"):
            Lease.acquire(path, watch_s=30)
    finally:
        stop.set()
        other.join()


def test_an_earlier_process_of_this_machine_is_gone_when_its_lock_is_free(tmp_path):
    path = tmp_path / "history.sqlite"
    forge(path, pid=os.getpid(), started="0")  # the number of a process that ended belongs to another one now
    assert last_holder(path)[1] == "gone"
    HistoryStore.open(path).close()


def test_on_the_same_machine_a_free_lock_is_proof_enough(tmp_path):
    path = tmp_path / "history.sqlite"
    forge(
        path, pid=os.getppid(), started=Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    )
    assert last_holder(path)[1] == "running"  # says the record
    HistoryStore.open(path).close()


def test_a_lock_file_with_garbage_stops_nobody(tmp_path):
    path = tmp_path / "history.sqlite"
    path.with_name(path.name + ".lock").write_bytes(b"\xff{not json")
    HistoryStore.open(path).close()


def test_the_lease_beats(tmp_path):
    path = tmp_path / "history.sqlite"
    lock = path.with_name(path.name + ".lock")
    lease = Lease.acquire(path, beat_s=0.01)
    try:
        # read with a raw descriptor in a child: closing one here would drop the lock
        first = in_child(lambda: json.loads(lock.read_bytes())["beat"])
        changed = in_child(lambda: _wait_for(lambda: json.loads(lock.read_bytes() or b"{}").get("beat", 0) > first))
        assert changed is True
    finally:
        lease.release()


def _wait_for(condition):
    pause = threading.Event()
    return any(condition() or pause.wait(0.01) for _ in range(30_000))


def test_who_was_taken_for_dead_cannot_write_any_more(tmp_path):
    path = tmp_path / "history.sqlite"
    with HistoryStore.open(path) as store:
        store.commit_step(1, 1, [make_rollout()])
        thief = sqlite3.connect(path)
        thief.execute("UPDATE lease SET token = 'other', host = 'node18', pid = 7, since = 'now'")
        thief.commit()
        thief.close()
        with pytest.raises(HistoryError, match="was taken over by process 7 on node18"):
            store.commit_step(2, 1, [make_rollout()])
        with pytest.raises(HistoryError, match="was taken over"):
            store.roll_back(0)
        assert store.last_step == 1


def test_readers_need_no_lease(tmp_path):
    path = tmp_path / "history.sqlite"
    with HistoryStore.open(path) as store:
        store.commit_step(1, 1, [make_rollout()])
        with HistoryStore.open(path, writer=False) as reader:
            store.commit_step(2, 1, [make_rollout()])
            assert reader.last_step == 2
            with pytest.raises(HistoryError, match="was opened for reading"):
                reader.commit_step(3, 1, [])


@pytest.mark.parametrize("link", [os.link, os.symlink])
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_another_name_of_the_same_file_admits_no_second_writer(link, journal, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path, other = tmp_path / "a" / "history.sqlite", tmp_path / "b" / "history.sqlite"
    HistoryStore.open(path).close()
    link(path, other)
    with HistoryStore.open(path, journal=journal) as store:
        for attempt in range(2):
            answer = in_child(lambda: HistoryStore.open(other, journal=journal).close())
            assert "under another name of the same file" in answer["error"]
            with pytest.raises(HistoryError, match="under another name of the same file"):
                HistoryStore.open(other, journal=journal)
            store.commit_step(attempt + 1, 1, [make_rollout(ids=[attempt])])
    assert in_child(lambda: HistoryStore.open(other).close()) is None  # one name after the other is fine
    HistoryStore.open(other).close()
    with HistoryStore.open(path) as store:
        assert store.last_step == 2
