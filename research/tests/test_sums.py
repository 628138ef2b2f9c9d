"""The recipe of the lab's model: what its training examples say, not how well it learns them."""

import random

import pytest

from r3_openrlhf.method.core.reflection import ATTEMPT_BEGINS, GUIDANCE
from research import sums


@pytest.fixture(scope="module")
def tokenizer():
    return sums.train_tokenizer()


def test_the_classes_of_facts_have_their_shares():
    rates = [rate for rate, _ in sums.FACTS.values()]
    assert len(rates) == 110
    for share, rate in sums.FACT_CLASSES:
        assert rates.count(rate) == pytest.approx(share * 110, abs=1)


def test_a_solution_is_right_exactly_when_nothing_slipped():
    rng = random.Random(0)
    right = 0
    for _ in range(500):
        terms = sums.draw_terms(rng)
        totals, slipped = sums.work_out(terms, rng)
        text = sums.word_solution(terms, totals, rng)
        correct = sums.is_right(text, (str(sum(terms)),))
        assert correct == (totals[-1] == sum(terms))
        assert correct or slipped
        right += correct
    assert 50 < right < 250


def test_after_a_wrong_attempt_its_facts_slip_less_often():
    rng = random.Random(0)
    terms = [
        1,
        *next(fact for fact, (rate, _) in sums.FACTS.items() if fact[0] == 1 and rate > 0.3)[
            1:
        ],
    ]
    fact = (1, terms[1])
    again = [bool(sums.work_out(terms, rng)[1]) for _ in range(4000)]
    avoiding = [
        bool(sums.work_out(terms, rng, avoid=frozenset([fact]))[1]) for _ in range(4000)
    ]
    assert sum(avoiding) / sum(again) == pytest.approx(sums.REFLECTION_FACTOR, abs=0.05)


def test_prompts_are_short_and_read_back(tokenizer):
    rng = random.Random(0)
    message, solution = sums.draw_reflection(rng, cut=lambda attempt: attempt)
    assert ATTEMPT_BEGINS in message and GUIDANCE in message
    ids = tokenizer(message)["input_ids"]
    assert len(ids) < 120  # the fixed lines are a token each
    assert tokenizer.decode(ids) == message
    assert tokenizer.decode(tokenizer(solution)["input_ids"]) == solution
    assert max(ids) < sums.VOCAB_SIZE
