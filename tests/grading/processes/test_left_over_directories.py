"""The temporary directories of grading processes: gone at the end, also when everybody was killed at once."""

import os
import signal
import subprocess
import sys

import psutil

PROGRAM = """
import sys
from r3_openrlhf.grading.answers.request import Item
from r3_openrlhf.grading.processes.pool import WorkerPool
from r3_openrlhf.grading.processes.wire import encode_item
pool = WorkerPool(num_workers=1, timeout_s=60.0)
item = encode_item(Item(task="exact", response="5", references=("5",), truncated=False))
print(pool.submit(item).result().verdict, flush=True)
sys.stdin.read()
pool.close()
"""


def start(directory):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"TMPDIR": str(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "correct\n"
    return process


def end(process):
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_what_a_double_kill_leaves_behind_goes_at_the_next_start_and_what_is_in_use_stays(tmp_path):
    killed = start(tmp_path)
    (nursery,) = psutil.Process(killed.pid).children()
    nursery.suspend()  # so that it cannot tidy up when its parent ends
    killed.kill()
    killed.communicate()
    nursery.send_signal(signal.SIGKILL)
    nursery.wait()
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))

    first = start(tmp_path)
    assert not left.exists()
    (in_use,) = tmp_path.iterdir()
    os.utime(in_use, (0, 0))
    second = start(tmp_path)
    assert in_use.exists() and len(list(tmp_path.iterdir())) == 2
    end(second)
    end(first)
    assert list(tmp_path.iterdir()) == []
