"""The pool of grading processes: items that take long have their whole time, and hold up no others."""

import subprocess
import sys
import time
from contextlib import closing, contextmanager

import psutil

from r3_openrlhf.grading.processes.pool import LAST_TURN_S, TURN_GROWTH, WorkerPool, _Worker
from tests.grading.hostile_payloads import ENDLESS_REFERENCE, endless
from tests.grading.processes.pools import SHORTER, SLOW, busy, item, wait_for

LONG = rf"\boxed{{{'x_{x_{x_{x_{x}}}}' * 4}}}"  # about 0.4 s of work
# Where the supervisor gets no processor it is late, and a worker ends itself: RLIMIT_CPU, whole seconds, two to spare.
LATE_S = 3.5


def is_slow(pool, *, symbolic=True):
    """Is there an item beside the places? symbolic: one that is past the cheap comparisons, which may wait for a processor."""
    slow = [worker for worker in list(pool._workers.values()) if worker.slow]
    return any(job.symbolic or not symbolic for worker in slow for job in list(worker.jobs))


@contextmanager
def unseen(pool):
    """What is submitted meanwhile reaches the supervisor at the end, all of it at once; nothing was under way before."""
    with pool._lock:
        pool._awake = True
    yield
    pool._wake_sender.send(b"w")


def test_a_pause_of_everything_is_nobodys_time(tmp_path):
    """SIGSTOP for longer than the deadline, to the process and its workers, as job schedulers do it."""
    program = f"""
from r3_openrlhf.grading.processes.pool import WorkerPool
from r3_openrlhf.grading.answers.request import Item
from r3_openrlhf.grading.processes.wire import encode_item
pool = WorkerPool(num_workers=1, timeout_s=4.0)
def grade(response, reference):
    return pool.submit(encode_item(Item(task="math", response=response, references=(reference,), truncated=False)))
grade("5", "5").result()
future = grade({SLOW!r}, {ENDLESS_REFERENCE!r})
print("running", flush=True)
print(future.result().reason, future.result().seconds, flush=True)
pool.close()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        wait_for(lambda: any(map(busy, family[2:])))
        before = sum(sum(worker.cpu_times()[:2]) for worker in family[2:])
        for member in family:
            member.suspend()
        time.sleep(5)
        for member in reversed(family):  # the worker runs before its supervisor looks
            member.resume()
        wait_for(lambda: sum(sum(worker.cpu_times()[:2]) for worker in family[2:]) > before + 0.2)  # it goes on
        reason, seconds = process.stdout.readline().split()
    assert reason == "timeout" and 4 <= float(seconds) < 4 + LATE_S


def keep_busy(pool, seconds, until=lambda: True):
    """Others that need the place, for so long and `until`; more than a deadline, however fast the machine is."""
    futures, started = [], time.monotonic()
    while time.monotonic() < started + seconds or not until():
        futures += [pool.submit(item(rf"\boxed{{x^2+{len(futures)}}}", f"x*x+{len(futures)}")) for _ in range(20)]
        wait_for(futures[-10].done)
    return futures


def test_the_seconds_of_a_timeout_are_those_that_decided(monkeypatch):
    """A later reading may be smaller: a wait for a processor that has just ended is in the kernel's count then."""
    released, seconds, release = set(), _Worker.seconds, WorkerPool._release
    monkeypatch.setattr(WorkerPool, "_release", lambda self, worker: (release(self, worker), released.add(worker)))
    monkeypatch.setattr(_Worker, "seconds", lambda self: seconds(self) - 0.5 * (self in released))
    with closing(WorkerPool(num_workers=1, timeout_s=1.0)) as pool:
        outcome = pool.submit(item(SLOW, ENDLESS_REFERENCE)).result(300)
    assert outcome.reason == "timeout" and outcome.seconds >= 1.0


def test_a_slow_item_is_paused_while_others_need_its_place(monkeypatch):
    paused, pause = set(), _Worker.pause
    monkeypatch.setattr(_Worker, "pause", lambda self: (paused.add(self.jobs[0].number), pause(self)))
    with closing(WorkerPool(num_workers=1, timeout_s=3.0)) as pool:
        pool.submit(item()).result(300)
        slow = pool.submit(item(SLOW, ENDLESS_REFERENCE))
        number = pool._number
        wait_for(lambda: slow.done() or is_slow(pool))
        futures = keep_busy(pool, 3.0 + LATE_S + 1, until=lambda: slow.done() or number in paused)
        assert number in paused
        assert {future.result(300).verdict for future in futures} == {"correct"}
        outcome = slow.result(300)
    assert outcome.reason == "timeout" and 3.0 <= outcome.seconds < 3.0 + LATE_S  # its pauses not counted


def test_a_long_comparison_among_many_others_has_its_whole_time():
    """About 0.4 s of work, a deadline a few times as long, and work for longer than that beside it."""
    with closing(WorkerPool(num_workers=1, timeout_s=60.0)) as pool:
        timeout_s = max(1.2, 5 * pool.submit(item(LONG, "5")).result(300).seconds)
    with closing(WorkerPool(num_workers=1, timeout_s=timeout_s)) as pool:
        pool.submit(item()).result(300)
        long = pool.submit(item(LONG, "5"))
        wait_for(lambda: long.done() or is_slow(pool, symbolic=False))
        futures = keep_busy(pool, timeout_s + 0.3)
        outcome = long.result(300)
        assert (outcome.verdict, outcome.reason) == ("wrong", "wrong") and outcome.seconds < timeout_s + LATE_S
        assert {future.result(300).verdict for future in futures} == {"correct"}


def test_the_wait_for_a_processor_is_nobodys_time():
    """One processor, and enough that wants it: an item of 0.4 s takes longer than its deadline and is graded all the
    same. Without the processors' queue taken off it was ungraded on a busy machine."""
    program = f"""
import os, subprocess, sys, time
from r3_openrlhf.grading.processes.pool import WorkerPool
from r3_openrlhf.grading.processes.wire import Item, encode_item
def grade(response, reference):
    return pool.submit(encode_item(Item(task="math", response=response, references=(reference,), truncated=False)))
pool = WorkerPool(num_workers=1, timeout_s=60.0)
timeout_s = max(1.2, 5 * grade({LONG!r}, "5").result().seconds)
pool.close()
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})  # of this thread and all that it starts from now on
pool = WorkerPool(num_workers=1, timeout_s=timeout_s)
grade("5", "5").result()
spin = "print(flush=True)\\nwhile True: pass"
crowd = [subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) for _ in range(2)]
try:
    for process in crowd:
        process.stdout.readline()
    started = time.monotonic()
    outcome = grade({LONG!r}, "5").result()
    took = time.monotonic() - started
    print(outcome.reason, outcome.seconds < timeout_s + {LATE_S} or outcome, took > timeout_s or (took, timeout_s))
finally:
    for process in crowd:
        process.kill()
        process.wait()
pool.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["wrong", "True", "True"], done.stdout + done.stderr


def test_however_many_items_are_slow_there_is_a_bound_on_processes_and_others_are_graded():
    with closing(WorkerPool(num_workers=1, timeout_s=1.0, max_slow_workers=1, max_paused_workers=2)) as pool:
        pool.submit(item()).result(300)
        hanging = [pool.submit(item(rf"\boxed{{{endless(i)}}}", f"{ENDLESS_REFERENCE}+{i}")) for i in range(6)]
        benign = [pool.submit(item(rf"\boxed{{x^2+{i}}}", f"x*x+{i}")) for i in range(50)]
        most = 0
        while not all(future.done() for future in hanging):
            most = max(most, len(pool._workers))
            time.sleep(0.001)  # the pace of looking; without it the supervisor, a thread of this process, hardly runs
        assert {future.result().reason for future in hanging} == {"timeout"}
        assert {future.result(300).verdict for future in benign} == {"correct"}
        assert most <= 1 + 1 + 1 + 2  # places, one to spare, beside them, paused


def test_one_that_is_nearly_done_need_not_wait_for_the_end_of_endless_ones():
    """Two may be slow and seven are; the last has 0.1 s of work. It is begun again for turns that grow, as they go on."""
    with closing(WorkerPool(num_workers=1, timeout_s=20.0, max_slow_workers=1, max_paused_workers=1)) as pool:
        pool.submit(item()).result(300)
        hanging = [pool.submit(item(rf"\boxed{{{endless(i)}}}", f"{ENDLESS_REFERENCE}+{i}")) for i in range(6)]
        wait_for(lambda: sum(worker.slow for worker in list(pool._workers.values())) == 2)
        assert pool.submit(item(SHORTER, "5")).result(300).verdict == "wrong"
        assert not any(future.done() for future in hanging)


def test_slow_items_take_turns_until_each_has_had_a_last_one():
    """With a low priority as well: the supervisor once slept until the first one's deadline, while the others waited."""
    seen = []

    def look(_):  # in the supervisor's own thread
        seen.append([worker.processor_seconds() for worker in pool._workers.values() if worker.jobs])

    with closing(WorkerPool(num_workers=1, timeout_s=2.0, max_slow_workers=1)) as pool:
        pool.submit(item()).result(300)
        with unseen(pool):
            hanging = [pool.submit(item(rf"\boxed{{{endless(i)}}}", f"{ENDLESS_REFERENCE}+{i}")) for i in range(3)]
            for future in hanging:
                future.add_done_callback(look)
        assert {future.result(300).reason for future in hanging} == {"timeout"}
        assert len(seen[0]) == 2 and min(seen[0]) > LAST_TURN_S / TURN_GROWTH


def test_items_of_a_subject_that_is_known_to_be_slow_come_last():
    order, begun = [], []

    def look(name):  # in the supervisor's own thread
        order.append(name)
        if name == "other":
            jobs = [job for worker in pool._workers.values() for job in worker.jobs]
            begun.extend(job.number for job in jobs if job.symbolic and job.future in more)

    with closing(WorkerPool(num_workers=1, timeout_s=0.6, max_slow_workers=1)) as pool:
        pool.submit(item()).result(300)
        first = [pool.submit(item(rf"\boxed{{{endless(i)}}}", ENDLESS_REFERENCE)) for i in range(2)]
        assert {future.result(300).reason for future in first} == {"timeout"}
        with unseen(pool):
            more = [pool.submit(item(rf"\boxed{{{endless(i)}}}", ENDLESS_REFERENCE)) for i in range(2, 4)]
            # more complex than the hanging ones, so that only what is known of these can be why they come later
            others = [pool.submit(item(rf"\boxed{{x^7+y^5+x^3y^2+z+w+a+b+{i}}}", "5-x*y*z")) for i in range(4)]
            for name, futures in (("hanging", more), ("other", others)):
                for future in futures:
                    future.add_done_callback(lambda _, name=name: look(name))
        wait_for(lambda: len(order) == 6)
    assert begun == []  # they wait before anything has been computed for them
    assert order[:4] == ["other"] * 4, order
