"""When a run ends before its end: the file that asks it, and the arithmetic of the time that is left."""

import os
import signal
import subprocess
import sys

import pytest

from r3_openrlhf.runs.stop_request import DEADLINE, RESERVE_S, StepClock, StopRequest


class Clock:
    """A clock that is put forward by hand, in seconds."""

    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def now():
    return Clock()


def step(clock, now, seconds):
    clock.next_step()
    now.time += seconds
    clock.step_ended()


def test_a_request_is_the_content_of_a_file(tmp_path):
    stop = StopRequest(tmp_path / "stop_request")
    assert stop.reason() is None  # before the run is there
    stop.ask("")
    assert stop.reason() is None
    stop.ask("a reason")
    assert StopRequest(stop.path).reason() == "a reason"
    stop.ask("")
    assert stop.reason() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_and_a_second_one_does_no_harm(tmp_path, number):
    stop = StopRequest(tmp_path / "stop_request")
    before = signal.getsignal(number)
    restore = stop.on_signals()
    try:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert stop.reason() == f"signal {number.name}"
    finally:
        restore()
    assert signal.getsignal(number) is before


LISTENER = """
import os, pathlib, sys, time, types
from r3_openrlhf.runs import stop_request
stop = stop_request.StopRequest(pathlib.Path(sys.argv[1]))
clock = stop.path.with_name("clock")  # its bytes are the seconds: a busy machine makes no second late
stop_request.time = types.SimpleNamespace(monotonic=lambda: clock.stat().st_size)
under_way, deaf = None if sys.argv[2] == "nothing" else sys.argv[2], sys.argv[3:]
stop.on_signals(under_way=lambda: under_way, say=lambda text: print(text, flush=True), ends_at_once=True, kill=lambda sentence: os._exit(9))
print("listens", flush=True)
while deaf:  # the main thread is busy with what no signal ends, as in a compiled library
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        continue
time.sleep(60)
"""


def listener(tmp_path, *arguments):
    (tmp_path / "clock").touch()
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER, str(tmp_path / "stop_request"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a background job ignores it
    )
    assert process.stdout.readline() == "listens\n"
    return process


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("deaf", [(), ("deaf",)], ids=["", "deaf"])
def test_the_first_signal_is_answered_and_the_second_ends_the_process(tmp_path, name, deaf):
    number = signal.Signals[name]
    with listener(tmp_path, "step 3", *deaf) as process:
        process.send_signal(number)
        assert (
            process.stdout.readline()
            == f"{name}: finishing step 3, then saving; again to stop now\n"
        )
        assert (tmp_path / "stop_request").read_text() == f"signal {name}"
        process.send_signal(number)  # the same one, from somebody who passes it on
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        os.truncate(tmp_path / "clock", 1)
        process.send_signal(number)
        assert process.wait(timeout=300) == (9 if deaf else 1)
        assert deaf or f"Stopped: stopped by a second {name}" in process.stderr.read()


def test_where_no_step_has_begun_the_first_one_ends_it(tmp_path):
    with listener(tmp_path, "nothing") as process:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=300)
        assert (
            "asked to end (signal SIGTERM) before a step began; nothing was lost"
            in process.stderr.read()
        )
        assert not (tmp_path / "stop_request").exists()  # it may be another run's


def test_another_step_and_a_checkpoint_must_fit_before_the_deadline(now):
    """Steps of 100 s, a checkpoint of 20 s: 120 + 30 + 30 s are needed."""
    clock = StepClock(deadline=2000.0, now=now)
    step(clock, now, 100)
    clock.saved(20)
    now.time = 2000.0 - (120 + 30 + RESERVE_S)
    assert clock.reason_to_stop() is None
    now.time += 1
    assert clock.reason_to_stop() == "179 s are left, a step takes 100 s and a checkpoint 20 s"
    # none yet: as long as a step
    clock = StepClock(deadline=now.time + 100 + 120 + 150 + RESERVE_S, now=now)
    step(clock, now, 100)
    assert clock.reason_to_stop() is None
    now.time += 1
    assert clock.reason_to_stop() is not None


def test_without_a_deadline_nothing_ends(now):
    clock = StepClock.from_environment(save_minutes=None, environment={DEADLINE: ""})
    assert clock.reason_to_stop() is None
    assert (
        StepClock.from_environment(
            save_minutes=None, environment={DEADLINE: "5"}
        ).reason_to_stop()
        is not None
    )


def test_minutes_between_checkpoints(now):
    clock = StepClock(save_minutes=2, now=now)
    step(clock, now, 119)
    assert not clock.is_time_to_save()
    step(clock, now, 1)
    assert clock.is_time_to_save()
    clock.saved(3)
    assert not clock.is_time_to_save()
    assert not StepClock(now=now, started=0).is_time_to_save()
