"""The room of the reward service: whoever has nothing in it can put something in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.rewards.server.admission_queue import Room

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def fill(room, client, amount):
    """As many requests of `amount` as are accepted; what they hold in sum."""
    held = 0
    while room.has_place(client, amount):
        room.take(client, amount)
        held += amount
    return held


def test_by_hand():
    room = Room(64)
    room.take(A, 4)
    room.take(A, 4)  # it could take (64 - 8 - 8) / 2 = 24 more, one request half of that
    assert room.has_place(A, 12) and not room.has_place(A, 13)
    assert room.has_place(B, 14) and not room.has_place(B, 15)  # (64 - 8) / 2 / 2


@pytest.mark.parametrize("size", [64, 2048, 32768])
def test_one_client_who_takes_what_it_gets_leaves_room_to_a_second_and_a_third(size):
    room = Room(size)
    assert size // 4 <= fill(room, A, 1) <= size // 2
    assert fill(room, B, 1) >= size // 8
    assert fill(room, C, 1) >= size // 16


def test_where_large_requests_are_refused_a_small_one_of_the_same_client_is_not():
    room = Room(8192)
    fill(room, A, 200)
    assert room.has_place(A, 64) and not room.has_place(A, 200)


@pytest.mark.parametrize("amount", [40, 400])
def test_a_request_that_is_larger_than_the_room_is_accepted_alone_and_keeps_nobody_out(amount):
    room = Room(40)
    assert room.has_place(A, amount)
    places = room.take(A, amount)
    assert not room.has_place(A, 40) and not room.has_place(B, 40)
    assert room.has_place(A, 1) and room.has_place(B, 1)
    room.give_back(A, places)
    assert room.has_place(B, amount)


CLIENTS = st.sampled_from(["a", "b", "c"])


@given(st.integers(64, 4096), st.lists(st.tuples(CLIENTS, st.integers(1, 600)), max_size=80))
def test_what_is_held_never_exceeds_the_room_and_what_is_given_back_is_free(size, requests):
    room, accepted = Room(size), []
    for client, amount in requests:
        if room.has_place(client, amount):
            accepted.append((client, room.take(client, amount), amount))
    assert sum(amount for *_, amount in accepted[1:]) <= size  # the first one came into an empty room
    assert room.has_place("somebody else", 1)
    for client, places, _ in accepted:
        room.give_back(client, places)
    assert room.has_place(A, 10**9)
