"""Who goes next, without processes: time is the number that a job was submitted at."""

from collections import deque
from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.grading.answers.request import Item
from r3_openrlhf.grading.processes.line import MAX_BATCH, MAX_PATIENCE_S, Job, Line
from r3_openrlhf.grading.processes.wire import encode_item

ITEM = encode_item(Item("math", "5", ("5",), False))


def job(number, submitted=0.0):
    return Job(ITEM, Future(), number, submitted)


def take(line, *, front=float("inf"), room=8, room_paused=40, num_workers=1, least_s=0.0):
    batch = line.next_batch(num_workers=num_workers, front=front, room=room, room_paused=room_paused, least_s=least_s)
    return [one.number for one in batch]


def take_all(line):
    numbers = []
    while batch := take(line):
        numbers += batch
    return numbers


def line_of(*symbolic):
    """(complexity, subject) or (complexity, subject, submitted) of jobs that are numbered from 0."""
    line = Line()
    for number, (complexity, subject, *submitted) in enumerate(symbolic):
        line.add_symbolic(job(number, *submitted), complexity=complexity, subject=subject)
    return line


def slow(line, subject):
    line.forecast.learn_slow(subject, 1001, 2.0)
    line.forecast.learn_slow(subject, 1002, 2.0)


def test_cheap_ones_go_in_batches_in_their_order():
    line = Line()
    line.add(job(number) for number in range(100))
    assert take(line, num_workers=2) == list(range(25))  # a quarter: every process has two batches
    assert take(line) == list(range(25, 25 + MAX_BATCH))
    assert sorted(take_all(line)) == list(range(57, 100)) and not line


def test_one_that_ended_a_process_goes_alone():
    line = Line()
    jobs = [job(number) for number in range(40)]
    jobs[2].attempts = 1
    line.add(jobs)
    assert [take(line), take(line)] == [[0, 1], [2]]


def test_symbolic_ones_wait_for_the_cheap_and_the_simple_go_first():
    line = line_of((9, 0), (1, 0), (5, 0))
    line.add([job(7)])
    assert take_all(line) == [7, 1, 2, 0]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_nobody_lets_others_pass_for_longer_than_the_bound(complexity, other):
    line = line_of((complexity, 0, 0.0), (other, 0, MAX_PATIENCE_S + 0.001))
    assert take_all(line) == [0, 1]


def test_items_of_a_slow_subject_are_set_back():
    line = line_of((1, 7), (50, 0), (2, 7))
    slow(line, 7)
    assert take_all(line) == [1, 0, 2]


def test_what_would_only_be_paused_is_not_begun():
    line = line_of((1, 7), (50, 0))
    slow(line, 7)
    line.set_back(job(5))  # it was slow itself, its subject is not known to be
    assert take(line, room=0) == [1]
    assert take(line, room=0) == [5]
    assert take(line, room=0) == []
    assert take(line, room=1) == [0] and not line


def test_without_room_even_to_pause_nothing_slow_is_begun():
    line = Line()
    line.set_back(job(5))
    assert take(line, room=0, room_paused=0) == [] and len(line) == 1


def test_without_room_one_is_begun_for_a_turn_no_longer_than_the_next_of_the_slow_ones_had():
    line = Line()
    for number, turn_s in ((5, 0.12), (6, 0.06), (7, 0.12)):
        waiting = job(number)
        waiting.turn_s = turn_s
        line.set_back(waiting)
    full = {"room": 0, "room_paused": 0}
    assert take(line, **full, least_s=0.03) == []
    assert take(line, **full, least_s=0.06) == [6]  # the shortest turn
    assert take(line, **full, least_s=0.06) == []  # the others would get further than the slow ones are
    assert [take(line, **full, least_s=0.12) for _ in range(3)] == [[5], [7], []]


def test_the_shortest_of_those_that_are_set_back_is_next():
    line = line_of((0, 7), (0, 8))
    slow(line, 7)
    line.forecast.learn_slow(8, 1, 0.06)
    line.forecast.learn_slow(8, 2, 0.06)
    assert take_all(line) == [1, 0]


def test_while_nobody_else_waits_those_that_are_set_back_go_by_length_and_not_by_age():
    line = Line()
    slow(line, 7)
    old, young = job(0), job(1)
    old.subject = 7
    line.set_back(old)
    line.set_back(young)
    assert take_all(line) == [1, 0]


def test_one_that_is_set_back_passes_those_that_came_much_later():
    line = Line()
    line.set_back(job(0, 0.0))
    line.add([job(1, MAX_PATIENCE_S - 1)])
    line.add([job(2, MAX_PATIENCE_S + 1)])
    assert take(line) == [1]
    assert take(line, front=MAX_PATIENCE_S - 1) == [2]  # one that came earlier is still being graded
    line.add([job(3, MAX_PATIENCE_S + 2)])
    assert take(line, room=0) == [3]
    line.add([job(4, MAX_PATIENCE_S + 3)])
    assert take_all(line) == [0, 4]


def test_who_is_put_back_is_where_he_was():
    line = line_of((1, 0), (5, 0), (9, 0))
    line.add([job(7), job(8), job(9), job(10)])
    batch = line.next_batch(num_workers=1, front=0.0, room=8, room_paused=8)
    assert [one.number for one in batch] == [7, 8]
    held = deque(batch)
    line.put_back(held)
    assert not held and take_all(line) == [7, 8, 9, 10, 0, 1, 2]


def test_a_symbolic_one_that_is_put_back_keeps_its_rank():
    line = line_of((1, 0), (5, 0))
    held = deque(line.next_batch(num_workers=1, front=0.0, room=8, room_paused=8))
    line.put_back(held)
    assert take_all(line) == [0, 1]


def test_nobody_is_handed_out_whose_caller_has_gone():
    line = line_of((1, 0), (2, 7), (3, 0))
    slow(line, 7)
    line.add([job(5), job(6)])
    line.set_back(job(9))
    everybody = [*line._cheap, *line._symbolic, *line._set_back]
    for one in everybody:
        if one.number in (5, 0, 9):
            one.future.cancel()
    assert take_all(line) == [6, 2, 1] and not line


def test_nobody_in_the_middle_of_those_that_are_set_back_is_begun_for_a_caller_who_has_gone():
    line = Line()
    jobs = [job(2), job(1), job(3)]
    for one in jobs:
        line.set_back(one)
    jobs[1].future.cancel()
    assert take_all(line) == [2, 3] and not line


def test_take_all_leaves_nothing():
    line = line_of((1, 0), (2, 0))
    line.add([job(5)])
    line.set_back(job(9))
    assert (len(line), line.num_fresh) == (4, 3)
    assert sorted(one.number for one in line.take_all()) == [0, 1, 5, 9]
    assert not line and line.front() == float("inf")
