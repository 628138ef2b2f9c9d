"""Which symbolic comparison is expected to be short."""

from r3_openrlhf.grading.answers.request import Item
from r3_openrlhf.grading.answers.tasks import complexity_of, subject_of
from r3_openrlhf.grading.processes import forecast
from r3_openrlhf.grading.processes.forecast import Forecast, expected_seconds


def item(answer, *references, task="math"):
    return Item(task, rf"So it is \boxed{{{answer}}}.", references, False)


def test_complexity_counts_operators_and_commands_of_both_sides():
    assert complexity_of(item("5", "7")) == 0
    assert complexity_of(item("x^2+1", "7")) == 2
    assert complexity_of(item(r"\frac{1}{2}", r"\sqrt{2}-x")) == 3
    assert complexity_of(item("5", "x", "a+b+c")) == 2  # the longest reference
    assert complexity_of(Item("math", "", ("7",), False)) == 0
    assert complexity_of(item("x+1", "7", task="exact")) == 0


def test_more_operators_are_expected_to_take_longer_up_to_a_bound():
    assert expected_seconds(-3) == 0.0 < expected_seconds(1) < expected_seconds(100) == expected_seconds(10**9) < 1.0


def test_items_with_the_same_references_are_one_subject_unless_these_are_plain():
    assert subject_of(item("1", "x+1")) == subject_of(item("2", "x+1")) != 0
    assert subject_of(item("1", "x+1")) != subject_of(item("1", "x+2"))
    assert subject_of(item("1", "x", "y+1")) != subject_of(item("1", "x\0y+1", ""))
    assert subject_of(item("x+1", "9")) == 0
    assert subject_of(item("x+1", "9", task="reasoning_gym")) != 0
    assert subject_of(item("1", "x+\ud800")) != 0


def test_a_subject_is_slow_when_two_of_its_items_were():
    known = Forecast()
    known.learn_slow(7, 1, 0.1)
    known.learn_slow(7, 1, 0.4)  # the same item, later
    assert known.known_seconds(7) == 0.0
    known.learn_slow(7, 2, 0.2)
    assert known.known_seconds(7) == 0.2
    known.learn_slow(7, 3, 2.0)  # the last two: 0.2 and 2.0
    known.learn_slow(7, 2, 2.0)
    assert known.known_seconds(7) == 2.0
    assert known.known_seconds(8) == 0.0
    known.learn_fast(7)
    assert known.known_seconds(7) == 0.0


def test_no_subject_is_never_slow():
    known = Forecast()
    known.learn_slow(0, 1, 2.0)
    known.learn_slow(0, 2, 2.0)
    assert known.known_seconds(0) == 0.0


def test_memory_is_bounded_and_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(forecast, "MAX_SUBJECTS", 3)
    known = Forecast()
    for subject in range(1, 6):
        known.learn_slow(subject, 1, 1.0)
        known.learn_slow(subject, 2, 1.0)
    assert [known.known_seconds(subject) for subject in range(1, 6)] == [0.0, 0.0, 1.0, 1.0, 1.0]
