"""Time to go, and what counts as slow, worked by hand."""

import pytest

from r3_openrlhf.runs.pace import duration, slower_than_usual, to_go_s


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (2 * 86400, "2.0 days")],
)
def test_a_duration_in_words(seconds, text):
    assert duration(seconds) == text


def line(step, seconds, **more):
    return {"step": step, "timing/step_total": seconds, **more}


def test_the_steps_that_are_left_take_the_median():
    lines = [line(1, 100.0), line(2, 10.0), line(3, 12.0)]
    assert to_go_s(lines, num_steps=8) == 5 * 12.0
    assert to_go_s(lines, num_steps=3) == 0.0
    assert to_go_s(lines, num_steps=None) is None
    assert to_go_s([], num_steps=8) is None
    assert to_go_s([{"step": 1, "timing/step_total": None}], num_steps=8) is None
    assert to_go_s([{"step": 1, "time/step_s": 2.0}], num_steps=8) == 14.0  # a run of the lab


def test_tokens_may_end_a_run_before_its_steps_do():
    lines = [line(1, 10.0, generated_tokens=100.0, generated_tokens_total=100.0)]
    assert to_go_s(lines, num_steps=100, max_tokens=300) == 20.0
    assert to_go_s(lines, num_steps=2, max_tokens=300) == 10.0
    assert to_go_s(lines, num_steps=None, max_tokens=50) == 0.0


def test_a_slow_step_names_the_phase_that_grew():
    usual = [line(step, 20.0, **{"timing/generation": 8.0, "timing/ppo_train": 10.0}) for step in (1, 2, 3)]
    slow = line(4, 100.0, **{"timing/generation": 30.0, "timing/ppo_train": 65.0})
    assert slower_than_usual([*usual, slow]) == (
        "slower than usual: 2 min instead of 20 s, above all policy update, 65 s instead of 10 s"
    )
    assert slower_than_usual([*usual, line(4, 40.0)]) == "slower than usual: 40 s instead of 20 s"
    assert slower_than_usual([*usual, line(4, 29.0)]) is None
    assert slower_than_usual([*usual[1:], slow]) is None  # two steps are no habit
    assert slower_than_usual([line(1, 0.1), line(2, 0.1), line(3, 0.1), line(4, 1.9)]) is None
