"""Who leaves, by hand and by law."""

import collections
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.history.codec import digest
from r3_openrlhf.history.eviction import Candidate, rows_to_evict
from r3_openrlhf.types import Context, Eviction, Verdict


def candidate(name, *, step=0, num_tokens=1, context=Context.PLAIN):
    return Candidate(None, context, step, num_tokens, digest(str(name).encode()))


def evict(candidates, cap, policy, verdict=Verdict.CORRECT, seed=0):
    return rows_to_evict(candidates, cap=cap, policy=policy, verdict=verdict, seed=seed)


candidates_ = st.lists(
    st.builds(
        candidate,
        st.integers(0, 10**9),
        step=st.integers(0, 5),
        num_tokens=st.integers(0, 5),
        context=st.sampled_from(Context),
    ),
    max_size=12,
    unique_by=lambda c: c.content,
)


def test_the_oldest_leave_first():
    first, second, third = (candidate(step, step=step) for step in (3, 5, 9))
    assert evict([third, first, second], 1, "oldest") == [first, second]


def test_of_correct_ones_the_longest_leave_first():
    short, middle, long = (candidate(n, num_tokens=n, step=-n) for n in (10, 20, 30))
    assert evict([short, long, middle], 1, "shortest_correct") == [long, middle]


def test_of_wrong_ones_the_oldest_leave_first_whatever_their_length():
    old, new = candidate("old", step=1, num_tokens=5), candidate("new", step=2, num_tokens=50)
    assert evict([new, old], 1, "shortest_correct", Verdict.WRONG) == [old]


@pytest.mark.parametrize("policy", list(Eviction))
def test_rows_from_reflection_prompts_leave_before_plain_ones(policy):
    plain = candidate("plain", step=0, num_tokens=100)
    reflections = [candidate(n, step=9, num_tokens=1, context=Context.REFLECTION) for n in range(3)]
    assert set(evict([plain, *reflections], 1, policy)) == set(reflections)


@given(
    candidates_, st.integers(1, 6), st.sampled_from(list(Eviction)), st.sampled_from([Verdict.CORRECT, Verdict.WRONG])
)
def test_the_cap_is_met_exactly_and_arrival_does_not_matter(candidates, cap, policy, verdict):
    leaving = evict(candidates, cap, policy, verdict)
    assert len(leaving) == max(0, len(candidates) - cap)
    shuffled = random.Random(1).sample(candidates, len(candidates))
    assert evict(shuffled, cap, policy, verdict) == leaving


@given(candidates_, candidates_, st.integers(1, 4))
def test_a_reservoir_in_two_parts_is_the_reservoir_of_the_whole(first, second, cap):
    """What makes it a sample of everything ever seen: nothing that left could have been kept by a later choice."""
    both = list({c.content: c for c in first + second}.values())
    kept = [c for c in first if c not in evict(first, cap, "reservoir")]
    union = list({c.content: c for c in kept + second}.values())
    in_parts = {c.content for c in union} - {c.content for c in evict(union, cap, "reservoir")}
    at_once = {c.content for c in both} - {c.content for c in evict(both, cap, "reservoir")}
    # Only where an item comes in both parts with another context can the two differ: equal items are equal here.
    if all(c.context is Context.PLAIN for c in both):
        assert in_parts == at_once


def test_a_reservoir_keeps_everyone_equally_often():
    """10 items, 5 places, 2000 seeds: each is kept 1000 times in expectation, standard deviation 22."""
    items = [candidate(n, step=n) for n in range(10)]
    kept = collections.Counter()
    for seed in range(2000):
        leaving = {c.content for c in evict(items, 5, "reservoir", seed=seed)}
        kept.update(c.content for c in items if c.content not in leaving)
    assert all(890 < kept[c.content] < 1110 for c in items)  # five standard deviations
