"""The pool of grading processes: what happens to items when processes are killed from outside."""

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from contextlib import closing

import psutil
import pytest

from r3_openrlhf.errors import GradingError
from r3_openrlhf.grading.processes.line import Job
from r3_openrlhf.grading.processes.pool import WorkerPool
from r3_openrlhf.grading.processes.wire import DEFERRED, Outcome
from tests.grading.hostile_payloads import ENDLESS_REFERENCE
from tests.grading.processes.pools import SLOW, alive, busy, item, wait_for, workers


@pytest.fixture
def pool():
    pool = WorkerPool(num_workers=2, timeout_s=2.0)
    yield pool
    pool.close()


def test_nothing_is_started_before_the_first_item(own_nurseries, pool):
    assert workers(pool) == ([], [])
    assert pool.submit(item()).result(300).verdict == "correct"
    assert len(workers(pool)[0]) == 1


def test_an_item_whose_worker_is_killed_by_somebody_else_is_graded_again():
    with closing(WorkerPool(num_workers=2, timeout_s=3.0)) as pool:
        pool.submit(item()).result(300)
        future = pool.submit(item(SLOW, ENDLESS_REFERENCE))
        wait_for(lambda: any(map(busy, workers(pool)[1])))
        for worker in list(filter(busy, workers(pool)[1])):
            worker.kill()
        assert future.result(300).reason == "timeout"  # it ran a second time, up to the deadline
        assert pool.submit(item()).result(300).verdict == "correct"
        assert pool.restarts["crashed"] >= 1


def test_an_item_whose_worker_dies_three_times_is_ungraded():
    with closing(WorkerPool(num_workers=2, timeout_s=20.0)) as pool:
        pool.submit(item()).result(300)
        future = pool.submit(item(SLOW, ENDLESS_REFERENCE))
        killed = set()
        while not future.done():
            for worker in workers(pool)[1]:
                try:
                    if worker.pid not in killed and busy(worker):
                        worker.kill()
                        killed.add(worker.pid)
                except psutil.NoSuchProcess:
                    pass
    assert (future.result().verdict, future.result().reason, len(killed)) == ("ungraded", "crashed", 3)


def test_a_killed_nursery_costs_nobody_his_grade(pool):
    pool.submit(item()).result(300)
    futures = [pool.submit(item(rf"\boxed{{x^2+{i}}}", f"x*x+{i}")) for i in range(60)]
    workers(pool)[0][0].kill()
    assert [future.result(300).verdict for future in futures] == ["correct"] * 60
    wait_for(lambda: pool.restarts["nursery"] == 1)


def test_a_nursery_that_ends_by_itself_is_replaced(pool):
    """SIGTERM lets it tidy up, its directory included."""
    pool.submit(item()).result(300)
    workers(pool)[0][0].terminate()
    wait_for(lambda: pool.restarts["nursery"] == 1)
    assert pool.submit(item()).result(300).verdict == "correct"


def test_where_no_process_can_be_started_items_are_ungraded_until_one_can(own_nurseries, pool, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such/python")
        assert pool.submit(item()).result(300).reason == "unavailable"
        assert pool.submit(item()).result(300).reason == "unavailable"
    assert pool.submit(item()).result(300).verdict == "correct"


def test_a_process_that_names_what_cannot_exist_is_not_believed():
    pool, data_set = WorkerPool(num_workers=1, timeout_s=1.0), "é" * 60
    with pytest.raises(ValueError, match="cannot exist"):
        pool._take_outcome(Job(item(), Future(), 1, 0.0), Outcome(1, DEFERRED, data_set, None, None, 0.0))
    pool.close()


def test_a_stopped_worker_is_replaced_at_the_deadline(pool):
    """A process that neither computes nor answers."""
    pool.submit(item()).result(300)
    # one to spare, or two: on a busy machine the first item may have been slow
    wait_for(lambda: len(workers(pool)[1]) == len(pool._workers) >= 3)
    stopped = workers(pool)[1]
    for worker in stopped:
        worker.suspend()
    futures = [pool.submit(item()) for _ in range(2)]  # nobody waits, so nobody is paused and sent on again
    assert [future.result(300).reason for future in futures] == ["timeout"] * 2
    spare = len(stopped) - 2
    reasons = [pool.submit(item()).result(300).reason for _ in range(spare + 2)]  # the spare ones were stopped too
    assert reasons[spare:] == ["correct"] * 2 and set(reasons[:spare]) <= {"timeout", "correct"}


def test_cancelled_items_are_not_graded(pool):
    pool.submit(item()).result(300)
    futures = [pool.submit(item(SLOW, ENDLESS_REFERENCE)) for _ in range(200)]
    for future in futures:
        future.cancel()
    assert pool.submit(item()).result(300).verdict == "correct"


def test_close_answers_what_is_waiting_and_ends_every_process():
    pool = WorkerPool(num_workers=1, timeout_s=30.0, max_slow_workers=1)
    futures = [pool.submit(item(SLOW, ENDLESS_REFERENCE)) for _ in range(5)]
    wait_for(lambda: any(map(busy, workers(pool)[1])))
    (nursery,), children = workers(pool)
    pool.close()
    pool.close()
    assert [future.result(300).reason for future in futures] == ["closed"] * 5
    assert not nursery.is_running()
    wait_for(lambda: not any(map(alive, children)))
    with pytest.raises(GradingError, match="closed"):
        pool.submit(item())


def test_only_data_sets_that_exist_are_prepared(pool):
    """Neither a name that is cut inside a letter, nor very many names, reach the nursery."""
    names = ["x" + "é" * 99, "\x00", "", "coin_flip", *map(str, range(60)), "countdown"]
    entries = [{"answer": "4", "metadata": {"source_dataset": name}} for name in names]
    futures = [pool.submit(item(task="reasoning_gym", metadata=entry)) for entry in entries]
    assert {future.result(300).reason for future in futures} == {"bad_reference"}
    wait_for(lambda: not any(worker.jobs for worker in list(pool._workers.values())))
    assert (pool.restarts, pool._prepared) == ({"timeout": 0, "crashed": 0, "nursery": 0}, {"countdown"})


def test_metadata_that_is_not_plain_data_is_refused():
    with pytest.raises(GradingError, match="object"):
        item(metadata={"x": object()})


def test_processes_and_directories_end_with_a_process_that_is_killed(tmp_path):
    program = f"""
import sys, tempfile
tempfile.tempdir = {str(tmp_path)!r}
from r3_openrlhf.grading.processes.pool import WorkerPool
from r3_openrlhf.grading.answers.request import Item
from r3_openrlhf.grading.processes.wire import encode_item
pool = WorkerPool(num_workers=2, timeout_s=60.0)
item = encode_item(Item(task="math", response={SLOW!r}, references=({ENDLESS_REFERENCE!r},), truncated=False))
for _ in range(4):
    pool.submit(item)
print("running", flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    parent.stdout.readline()
    process = psutil.Process(parent.pid)
    wait_for(
        lambda: len(process.children(recursive=True)) >= 3 and any(map(busy, process.children(recursive=True)[1:]))
    )
    family = process.children(recursive=True)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not any(map(alive, family)))
    wait_for(lambda: os.listdir(tmp_path) == [])
    parent.stdout.close()
    parent.stdin.close()
