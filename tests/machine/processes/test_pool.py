"""Real processes: whatever an item does costs that item alone, and nothing outlives the pool."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import wait
from multiprocessing.connection import Connection

import psutil
import pytest

from r3_openrlhf.machine.processes import fork_server
from r3_openrlhf.machine.processes import pool as pool_module
from r3_openrlhf.machine.processes.pool import ItemLost, ProcessPool
from tests.machine.processes.awkward import Answer
from tests.processes import until

TARGET = "tests.machine.processes.awkward:make_worker"
PATIENCE_S = 300  # never reached


def pool_of(num_workers=2, **options):
    return ProcessPool(
        TARGET,
        answer_type=Answer,
        num_workers=num_workers,
        **{"timeout_s": PATIENCE_S, **options},
    )


@pytest.fixture(scope="module")
def pool():
    with pool_of() as pool:
        yield pool


def text_of(future):
    return future.result(PATIENCE_S).text


def test_a_thread_that_reads_its_answer_late_costs_no_later_item(monkeypatch):
    read = Connection.recv_bytes
    with pool_of(1, timeout_s=0.5) as pool:
        assert text_of(pool.submit("plain 1"))
        monkeypatch.setattr(
            Connection, "recv_bytes", lambda *given: time.sleep(1.5) or read(*given)
        )
        assert text_of(pool.submit("plain 2"))
        monkeypatch.undo()
        assert text_of(pool.submit("plain 3"))


def lost_by(future):
    with pytest.raises(ItemLost) as lost:
        future.result(PATIENCE_S)
    return lost.value


def family():
    return {process.pid for process in psutil.Process().children(recursive=True)}


def ended(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("item", "reason", "detail"),
    [
        ("segfault", "crashed", ""),
        ("exit", "crashed", ""),
        ("raise", "raised", "KeyError: 'the lamp'"),
        ("novel", "talkative", ""),
        ("other", "crashed", "it does not keep to the protocol"),
        ("forge", "crashed", "it does not keep to the protocol"),
    ],
)
def test_a_disaster_is_that_items_reason_and_no_other_ones(pool, item, reason, detail):
    futures = [pool.submit(f"plain {i}") for i in range(20)]
    disaster = pool.submit(item)
    futures += [pool.submit(f"plain {i}") for i in range(20, 40)]
    lost = lost_by(disaster)
    assert (lost.reason, lost.detail) == (reason, detail)
    assert [text_of(future) for future in futures] == [f"plain {i}" for i in range(40)]


@pytest.mark.parametrize("item", ["hang", "spin", "trickle"])
def test_a_deadline_is_that_items_reason_and_its_own_seconds(item):
    with pool_of(timeout_s=1.0) as pool:
        late, others = pool.submit(item), [pool.submit(f"plain {i}") for i in range(20)]
        assert [text_of(future) for future in others] == [f"plain {i}" for i in range(20)]
        lost = lost_by(late)
    assert lost.reason == "timeout" and 1.0 <= lost.seconds < 60


def test_items_are_spread_over_the_processes_which_stay(pool, tmp_path):
    gate = tmp_path / "gate"
    held = [pool.submit(f"until {gate}") for _ in range(2)]
    queued = pool.submit("plain")
    assert not wait(held + [queued], timeout=0.3).done
    gate.touch()
    pids = {future.result(PATIENCE_S).pid for future in held}
    assert len(pids) == 2 and queued.result(PATIENCE_S).pid in pids


def test_an_item_has_other_attempts_when_its_process_is_killed(tmp_path):
    with pool_of(1, attempts=3) as pool:
        assert text_of(pool.submit(f"once {tmp_path / 'met'}")).startswith("once")
        assert lost_by(pool.submit("exit")).reason == "crashed"


def test_what_is_lost_can_be_an_answer():
    with pool_of(1, on_lost=lambda lost: Answer(lost.reason, 0)) as pool:
        assert text_of(pool.submit("exit")) == "crashed"


def test_what_is_cancelled_is_not_begun(pool, tmp_path):
    gate, mark = tmp_path / "gate", tmp_path / "mark"
    held = [pool.submit(f"until {gate}") for _ in range(2)]
    cancelled = pool.submit(f"once {mark}")
    assert cancelled.cancel()
    gate.touch()
    wait(held)
    assert text_of(pool.submit("plain")) == "plain" and not mark.exists()


def test_the_wait_for_a_processor_is_not_an_items_time():
    """Six items that compute for 0.5 s, on one processor, with 1.5 s each."""
    program = f"""
import os
from r3_openrlhf.machine.processes.pool import ProcessPool
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
with ProcessPool({TARGET!r}, num_workers=6, timeout_s=1.5) as pool:
    print(*(future.result()[0] for future in [pool.submit("work 0.5") for _ in range(6)]), sep=",")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout.strip() == ",".join(["work 0.5"] * 6), done.stderr


def test_a_pause_of_everything_is_not_an_items_time(monkeypatch):
    """SIGSTOP for an hour, as job schedulers do it: the clock jumps."""
    clock = fork_server.Clock(os.getpid())
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    assert clock.seconds() <= 2 * fork_server.LOOK_S


def test_confined_workers_have_no_variables_no_memory_and_no_files(monkeypatch, tmp_path):
    monkeypatch.setenv("R3_REWARD_TOKEN", "secret")
    with pool_of(1, memory_bytes=2**30) as pool:
        assert (
            text_of(pool.submit("variables"))
            == "LANG,OMP_NUM_THREADS,OPENBLAS_NUM_THREADS,PATH"
        )
        assert lost_by(pool.submit("hoard")).reason == "crashed"
        assert lost_by(pool.submit(f"once {tmp_path / 'file'}")).detail.startswith(
            "PermissionError"
        )
    with pool_of(1) as pool:
        assert "R3_REWARD_TOKEN" in text_of(pool.submit("variables")).split(",")
        assert (
            lost_by(pool.submit(f"once {tmp_path / 'file'}")).reason == "crashed"
            and (tmp_path / "file").exists()
        )


def test_what_a_worker_prints_goes_nowhere(pool, capfd):
    assert text_of(pool.submit("shout")) == "shout"
    assert capfd.readouterr() == ("", "")


def test_what_is_no_plain_data_is_refused(pool):
    with pytest.raises(TypeError, match="object is no plain data"):
        pool.submit(object())


def test_a_killed_template_costs_nobody_an_answer(pool):
    pool = pool_of(attempts=3)
    before = family()
    text_of(pool.submit("plain"))
    futures = [pool.submit(f"work 0.01 {i}"[:9]) for i in range(50)]
    for child in psutil.Process().children():
        if child.pid not in before:
            child.kill()
    assert [text_of(future) for future in futures] == ["work 0.01"] * 50
    pool.close()


def test_where_no_process_can_be_started_items_are_unavailable_until_one_can(
    monkeypatch, caplog
):
    monkeypatch.setattr(pool_module, "RETRY_START_S", 0.0)
    with pool_of(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/no/such/python")
            assert lost_by(pool.submit("plain")).reason == "unavailable"
        assert text_of(pool.submit("plain")) == "plain"
    with ProcessPool(TARGET, {"broken": True}) as pool:
        lost = lost_by(pool.submit("plain"))
    assert (lost.reason, lost.detail) == ("unavailable", "RuntimeError: no such library")
    assert "RuntimeError: no such library" in caplog.text


def test_closing_answers_what_waits_and_ends_every_process(tmp_path):
    before, pool = family(), pool_of(1)
    text_of(pool.submit("plain"))
    futures = [pool.submit(f"until {tmp_path / 'never'}") for _ in range(5)]
    session = pool.session()
    futures.append(session.submit(f"until {tmp_path / 'never'}"))
    until(lambda: session._worker and futures[0].running())
    processes = [psutil.Process(pid) for pid in family() - before]
    assert len(processes) == 3  # the template and two workers
    pool.close()
    pool.close()
    assert {lost_by(future).reason for future in futures} == {"closed"}
    until(lambda: all(map(ended, processes)))
    assert lost_by(pool.submit("plain")).reason == "closed"


@pytest.mark.parametrize("item", ["spin", "hang"])
def test_no_process_outlives_its_owner_when_that_is_killed(item):
    program = f"""
import sys
from r3_openrlhf.machine.processes.pool import ProcessPool
pool = ProcessPool({TARGET!r}, num_workers=2, timeout_s=1000.0)
pool.submit("plain").result()
for _ in range(4):
    pool.submit({item!r})
print("running", flush=True)
sys.stdin.read()
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    owner.stdout.readline()
    process = psutil.Process(owner.pid)
    until(lambda: len(process.children(recursive=True)) == 3)
    processes = process.children(recursive=True)
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    until(lambda: all(map(ended, processes)))


def test_daemons_end_with_their_worker_and_with_nobody_elses(tmp_path):
    with pool_of() as pool:
        sessions = [pool.session(), pool.session()]
        for session in sessions:
            session.submit(f"daemon {tmp_path / str(id(session))}").result()
        first, second = (
            psutil.Process(int((tmp_path / str(id(session))).read_text()))
            for session in sessions
        )
        pool.timeout_s = 0.2
        assert lost_by(sessions[0].submit("hang")).reason == "timeout"
        pool.timeout_s = PATIENCE_S
        until(lambda: ended(first))
        text_of(pool.submit("plain"))
        assert not ended(second)
    until(lambda: ended(second))


def stop(process):
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: process.status() == psutil.STATUS_STOPPED)


def test_a_stopped_process_holds_an_item_no_longer_than_its_limit(monkeypatch):
    """Neither one that does not read nor a template that does not fork."""
    before = family()
    with pool_of(1, timeout_s=1.0) as pool:
        worker = psutil.Process(pool.submit("plain").result(PATIENCE_S).pid)
        (template,) = [psutil.Process(pid) for pid in family() - before - {worker.pid}]
        stop(worker)
        # it would wait for ever
        assert lost_by(pool.submit("z" * 5_000_000)).reason == "timeout"
        assert text_of(pool.submit("plain")) == "plain"
        stop(template)
        session = pool.session()
        assert session.submit("plain").result(PATIENCE_S).text == "plain"  # of another template
        assert ended(template)


def test_a_session_keeps_its_worker_and_what_is_in_it(pool, monkeypatch):
    first, second = pool.session(), pool.session()
    answers = [
        session.submit(f"keep {word}").result()
        for session, word in ((first, "a"), (second, "b"))
    ]
    again = first.submit("keep c").result()
    assert (again.text, again.pid) == ("a,c", answers[0].pid) and answers[1].pid != again.pid
    first.close()
    third = pool.session()
    assert third.submit("keep d").result().text == "a,c,d"  # free for others, as it is
    monkeypatch.setattr(pool, "timeout_s", 0.5)
    assert lost_by(third.submit("hang")).reason == "timeout" and third._worker is None
    monkeypatch.undo()
    assert third.submit("keep e").result().text == "e"
    for session in (second, third):
        session.close()


def test_a_session_takes_one_item_at_a_time_and_ends_the_one_that_is_given_up(pool, tmp_path):
    session = pool.session()
    waits = session.submit(f"until {tmp_path / 'never'}")
    assert "one item at a time" in lost_by(session.submit("plain")).detail
    until(lambda: session._worker)
    session.close()
    session.close()
    assert lost_by(waits).reason == "closed"
