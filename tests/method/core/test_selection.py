"""Which problems are asked: by hand, the floor as a law, and the choice written out another way."""

import itertools
import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.method.core.groups import GroupState, group_state
from r3_openrlhf.method.core.selection import (
    ProblemSelection,
    Visits,
    adapted,
    after_visit,
    draws_on,
    nearest_half,
    visit_probability,
)
from r3_openrlhf.method.types import Verdict

ALL, NONE, MIXED = GroupState.ALL_CORRECT, GroupState.NONE_CORRECT, GroupState.MIXED
GROUPS = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda pair: (min(pair), max(pair)))  # (correct, graded)


def selection(rule="skip_collapsed", **settings):
    defaults = dict(
        floor=0.1,
        keep=0.5,
        adapt=0.0,
        target_all_correct=0.1,
        target_none_correct=0.2,
        candidates=2,
        memory=0.5,
    )
    return ProblemSelection(rule=rule, **(defaults | settings))


def chosen(made, uids, *, count, seed=0):
    return list(itertools.islice(made.choose(iter(uids), count=count, uid=str, rng=random.Random(seed)), count))


# ── by hand ──


def test_the_record_of_a_problem_by_hand():
    """wrong, wrong, mixed, right, right of four: runs 1, 2, 0, 1, 2. Memory .5: (1, 5), (1, 7), (3, 6), (6, 3.5), (7.5, 2.25)."""
    visits, found = Visits(), []
    for num_correct in (0, 0, 2, 4, 4):
        visits = after_visit(visits, num_correct=num_correct, num_graded=4, memory=0.5)
        found.append((visits.state, visits.run, visits.right, visits.wrong))
    assert found == [
        (NONE, 1, 1.0, 5.0),
        (NONE, 2, 1.0, 7.0),
        (MIXED, 0, 3.0, 6.0),
        (ALL, 1, 6.0, 3.5),
        (ALL, 2, 7.5, 2.25),
    ]


def test_a_run_begins_again_when_a_group_collapses_in_the_other_way():
    visits = after_visit(Visits(state=NONE, run=5), num_correct=4, num_graded=4, memory=0.5)
    assert (visits.state, visits.run) == (ALL, 1)


def test_a_group_with_one_graded_rollout_shows_nothing():
    before = Visits(state=NONE, run=5, right=2, wrong=7)
    assert after_visit(before, num_correct=1, num_graded=1, memory=0.5) is before


def test_probabilities_by_hand():
    keep = dict(keep_all_correct=0.5, keep_none_correct=0.8, floor=0.1)
    assert visit_probability(Visits(), **keep) == visit_probability(Visits(state=MIXED), **keep) == 1.0
    assert visit_probability(Visits(state=ALL, run=2), **keep) == 0.25
    assert visit_probability(Visits(state=NONE, run=2), **keep) == approx(0.64)
    assert visit_probability(Visits(state=ALL, run=9), **keep) == 0.1


def test_the_probability_moves_against_the_share():
    assert adapted(0.5, share=0.3, target=0.25, step=0.01) == approx(0.49)
    assert adapted(0.5, share=0.25, target=0.25, step=0.01) == approx(0.51)
    assert (
        adapted(0.05, share=1.0, target=0.0, step=0.2) == 0.05 and adapted(0.95, share=0, target=1, step=0.2) == 0.95
    )
    assert adapted(1.0, share=1.0, target=0.0, step=0.0) == 1.0  # 0: as it is, even outside GRESO's bounds


def test_the_nearest_to_one_half_by_hand():
    sure = [(1e6, 1.0), (1e6, 1e6), (1.0, 1e6), (1e6, 3e6)]  # 1, 1/2, 0, 1/4, with next to no spread
    assert nearest_half(sure, count=2, floor=0.0, rng=random.Random(0)) == [1, 3]
    assert nearest_half(sure, count=9, floor=0.0, rng=random.Random(0)) == [0, 1, 2, 3]


# ── laws ──


@given(st.lists(GROUPS, max_size=30), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_no_history_of_a_problem_brings_it_below_the_floor(history, floor, keep_all, keep_none, memory):
    visits = Visits()
    for num_correct, num_graded in history:
        visits = after_visit(visits, num_correct=num_correct, num_graded=num_graded, memory=memory)
        found = visit_probability(visits, keep_all_correct=keep_all, keep_none_correct=keep_none, floor=floor)
        assert floor <= found <= 1.0
        assert visits.right > 0 and visits.wrong > 0
        if visits.state is MIXED:
            assert found == 1.0


class EveryLot(random.Random):
    """Draws the given lot; Beta variates are the means, so that one problem is surely the furthest from one half."""

    def __init__(self, lot):
        super().__init__(0)
        self.lot = lot

    def sample(self, population, k, **others):
        assert k == len(self.lot)
        return list(self.lot)

    def betavariate(self, alpha, beta):
        return alpha / (alpha + beta)


@given(st.integers(1, 7), st.integers(1, 7), st.floats(0.01, 1))
def test_the_furthest_problem_is_asked_as_often_as_the_floor_says(num_problems, count, floor):
    """Exact: over every lot that can be drawn, all equally likely. Problem 0 never solves, the others half of the time."""
    by_lot = -int(-floor * num_problems // 1)
    posteriors = [(1.0, 10.0**9)] + [(5.0, 5.0)] * (num_problems - 1)
    if by_lot > min(count, num_problems):
        with pytest.raises(ValueError, match="must be asked, but only"):
            nearest_half(posteriors, count=count, floor=floor, rng=random.Random(0))
        return
    lots = list(itertools.combinations(range(num_problems), by_lot))
    asked = [0 in nearest_half(posteriors, count=count, floor=floor, rng=EveryLot(lot)) for lot in lots]
    assert sum(asked) / len(lots) >= floor - 1e-12


@pytest.mark.parametrize("rule", ["skip_collapsed", "near_half"])
def test_over_many_epochs_every_problem_is_asked_as_often_as_the_floor_says(rule):
    """Five hopeless problems, five solved ones, ten mixed ones; 2,000 epochs without any change of the policy."""
    made = selection(rule, floor=0.15)
    uids = [f"{kind}{i}" for kind, number in (("w", 5), ("c", 5), ("m", 10)) for i in range(number)]
    shows = {"w": (0, 8), "c": (8, 8), "m": (4, 8)}
    asked = Counter()
    for epoch in range(2000):
        order = random.Random(f"order {epoch}").sample(uids, len(uids))
        items = iter(order)
        rng = random.Random(f"rng {epoch}")
        while batch := list(itertools.islice(made.choose(items, count=4, uid=str, rng=rng), 4)):
            asked.update(batch)
            made.observe({uid: shows[uid[0]] for uid in batch})
    rates = {uid: asked[uid] / 2000 for uid in uids}
    # 2,000 draws: 4 standard deviations are 0.032. The collapsed come as rarely as they may, the mixed more often
    assert all(rate > 0.15 - 0.032 for rate in rates.values())
    collapsed, mixed = ([rates[uid] for uid in uids if (uid[0] == "m") is is_mixed] for is_mixed in (False, True))
    assert max(collapsed) + 0.1 < min(mixed)


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), GROUPS, max_size=4), max_size=8), st.randoms())
def test_a_selection_goes_on_exactly_from_its_state(steps, draw):
    """Cut anywhere, through JSON: what follows is what would have followed."""
    for rule in ("skip_collapsed", "near_half"):
        whole, cut = selection(rule, adapt=0.01), draw.randint(0, len(steps))
        for counts in steps[:cut]:
            whole.observe(counts)
        resumed = selection(rule, adapt=0.01)
        resumed.restore(json.loads(json.dumps(whole.state())))
        for seed, counts in enumerate(steps[cut:]):
            assert chosen(whole, "abcdef", count=2, seed=seed) == chosen(resumed, "abcdef", count=2, seed=seed)
            whole.observe(counts)
            resumed.observe(counts)
        assert whole.state() == resumed.state()
        whole.restore(None)
        assert whole.state() == selection(rule).state()


def test_a_problem_that_never_differs_is_asked_once_in_twenty_times():
    """With the values that a run has."""
    of_a_run = ProblemSelection(rule="skip_collapsed")
    for _ in range(50):
        of_a_run.observe({"a": (0, 8)})
    assert of_a_run.probability("a") == 0.05


# ── agreement ──


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(GROUPS, max_size=6)), st.integers(0, 10**6))
def test_skipping_agrees_with_runs_counted_from_the_end(histories, seed):
    """Independent: a problem's run is read off the list of all its groups, backwards; one uniform number a problem."""
    made, order, draw = selection(), "abcdefgh", random.Random(seed)
    made.keep[NONE] = 0.7
    for step in range(max(map(len, histories.values()), default=0)):
        made.observe({uid: groups[step] for uid, groups in histories.items() if step < len(groups)})
    expected = []
    for uid in order:
        kinds = [c / g if c in (0, g) else None for c, g in histories.get(uid, []) if g > 1]
        run = 0
        while run < len(kinds) and kinds[-1] is not None and kinds[-1 - run] == kinds[-1]:
            run += 1
        keep = 0.5 if kinds and kinds[-1] == 1 else 0.7
        if draw.random() < max(keep**run, 0.1):
            expected.append(uid)
    assert chosen(made, order, count=8, seed=seed) == expected


def test_nothing_is_taken_from_the_epoch_that_the_batch_does_not_need():
    """The loader's state in a checkpoint must be that of the step's end."""
    made = selection()
    made.observe({uid: (0, 4) for uid in "abcdefgh"})
    items = iter("abcdefghij")
    batch = list(itertools.islice(made.choose(items, count=3, uid=str, rng=random.Random(1)), 3))
    assert "".join(items) == "abcdefghij"["abcdefghij".index(batch[-1]) + 1 :]
    near = selection("near_half", candidates=2)
    items = iter("abcdefghij")
    assert len(list(itertools.islice(near.choose(items, count=3, uid=str, rng=random.Random(1)), 3))) == 3
    assert "".join(items) == "ghij"
    # the last candidates of an epoch: one in two of four
    assert len(list(near.choose(iter("ghij"), count=3, uid=str, rng=random.Random(1)))) == 2
    assert near.take_metrics() == {"r3/select/came_up": 10.0, "r3/select/skipped": 5.0}
    assert near.take_metrics() == {"r3/select/came_up": 0.0, "r3/select/skipped": 0.0}


def test_the_probabilities_follow_what_the_asked_groups_show():
    """Two of four asked groups are all wrong (above .2), one all right (not above .25)."""
    made = selection(adapt=0.01, target_all_correct=0.25, target_none_correct=0.2)
    made.observe({"a": (0, 4), "b": (0, 4), "c": (4, 4), "d": (1, 4), "e": (1, 1)})
    found = made.take_metrics()
    assert found["r3/select/keep_none_correct"] == approx(0.49) and found["r3/select/keep_all_correct"] == approx(0.51)
    made.observe({"e": (0, 1)})  # nothing was shown
    assert made.take_metrics() == found


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: after_visit(Visits(), num_correct=3, num_graded=2, memory=0.5), "num_correct is 3, above num_graded"),
        (lambda: after_visit(Visits(), num_correct=1, num_graded=2, memory=1.5), "memory is 1.5"),
        (
            lambda: visit_probability(Visits(), keep_all_correct=2, keep_none_correct=0, floor=0),
            "keep_all_correct is 2",
        ),
        (lambda: nearest_half([(0.0, 1.0)], count=1, floor=0, rng=random.Random(0)), "two parameters above 0"),
        (lambda: nearest_half([(1.0, 1.0)], count=0, floor=0, rng=random.Random(0)), "count"),
        (lambda: selection("near_haf"), "did you mean 'near_half'"),
    ],
)
def test_what_cannot_be(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# ── responses in two draws ──

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED


def test_a_second_draw_by_hand():
    assert [draws_on(v) for v in ([W, W], [C, C], [C, W], [W, U, C], [W, U], [])] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("first", [2, 3, 4])
def test_two_draws_end_with_a_difference_where_one_would_have(first):
    """Every sequence of five verdicts, ungraded ones among them: the second draw is left out only where it decides nothing."""
    for verdicts in itertools.product((C, W, U), repeat=5):
        drawn = verdicts if draws_on(verdicts[:first]) else verdicts[:first]
        assert (group_state(drawn) is MIXED) == (group_state(verdicts) is MIXED)


@given(st.integers(2, 5), st.integers(1, 4), st.floats(0, 1))
def test_the_expected_number_of_responses_is_that_of_the_formula(first, rest, p):
    """Independent: the sum over every sequence of verdicts of its probability times what is drawn."""
    total = 0.0
    for verdicts in itertools.product((C, W), repeat=first):
        correct = verdicts.count(C)
        total += p**correct * (1 - p) ** (first - correct) * (first + rest * draws_on(verdicts))
    assert total == approx(first + rest * (p**first + (1 - p) ** first))
