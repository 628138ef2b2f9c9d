"""When a run ends before its end: the file that asks it, and the arithmetic of the time that is left."""

import os
import signal

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
    stop.clear()
    assert stop.reason() is None
    stop.ask("a reason")
    assert StopRequest(stop.path).reason() == "a reason"
    stop.clear()
    assert stop.reason() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_and_a_second_one_does_no_harm(tmp_path, number):
    stop = StopRequest(tmp_path / "stop_request")
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        stop.on_signals()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert stop.reason() == f"signal {number.name}"
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_another_step_and_a_checkpoint_must_fit_before_the_deadline(now):
    """Steps of 100 s, a checkpoint of 20 s: 120 + 30 + 30 s are needed."""
    clock = StepClock(deadline=2000.0, now=now)
    step(clock, now, 100)
    clock.saved(20)
    now.time = 2000.0 - (120 + 30 + RESERVE_S)
    assert clock.reason_to_stop() is None
    now.time += 1
    assert clock.reason_to_stop() == "179 s are left, a step takes 100 s and a checkpoint 20 s"


def test_a_checkpoint_that_was_never_made_counts_as_long_as_a_step(now):
    clock = StepClock(deadline=1000.0 + 100 + 120 + 150 + RESERVE_S, now=now)
    step(clock, now, 100)
    assert clock.reason_to_stop() is None
    now.time += 1
    assert clock.reason_to_stop() is not None


def test_without_a_deadline_nothing_ends(now):
    clock = StepClock.from_environment(save_minutes=None, environment={DEADLINE: ""})
    assert clock.reason_to_stop() is None
    assert StepClock.from_environment(save_minutes=None, environment={DEADLINE: "5"}).reason_to_stop() is not None


def test_minutes_between_checkpoints(now):
    clock = StepClock(save_minutes=2, now=now)
    step(clock, now, 119)
    assert not clock.is_time_to_save()
    step(clock, now, 1)
    assert clock.is_time_to_save()
    clock.saved(3)
    assert not clock.is_time_to_save()
    assert not StepClock(now=now, started=0).is_time_to_save()
