"""What tests of the pool of grading processes share: items, and a look at the processes."""

import time

import psutil

from r3_openrlhf.grading.answers.request import Item
from r3_openrlhf.grading.processes.wire import encode_item
from tests.grading.hostile_payloads import endless

SHORTER = rf"\boxed{{{'x_{x_{x_{x_{x}}}}' * 2}}}"  # about 0.1 s of work
SLOW = rf"\boxed{{{endless()}}}"


def item(response=r"\boxed{5}", reference="5", task="math", metadata=None):
    return encode_item(Item(task=task, response=response, references=(reference,), truncated=False, metadata=metadata))


def workers(pool):
    """The nursery of the pool and its workers; none before the first item."""
    if pool._thread is None or getattr(pool, "_nursery", None) is None:
        return [], []
    nursery = psutil.Process(pool._nursery._process.pid)
    return [nursery], nursery.children()


def wait_for(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.01)


def busy(worker):
    try:
        return worker.cpu_times().user > 0.05
    except psutil.NoSuchProcess:
        return False


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
