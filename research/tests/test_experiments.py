"""The world of false positives is what its name says."""

import itertools
import random
import re

from r3_openrlhf.problems.held_out import held_out_data
from r3_openrlhf.problems.sources import load_problems
from research import load, sums


def test_no_problem_comes_twice_and_each_has_a_misconceived_fact_on_its_way():
    rows = [row for part in ("train", "held_out") for row in sums.false_positives(part=part)]
    assert len({row["problem"] for row in rows}) == len(rows) == 128 + 256
    for row in rows:
        terms = [int(term) for term in re.findall(r"\d+", row["problem"])]
        facts = [(total % 10, term) for total, term in zip(itertools.accumulate(terms), terms[1:], strict=False)]
        assert row["answer"] == str(sum(terms)) and max(sums.FACTS[fact][0] for fact in facts) == 0.93


def test_most_right_answers_have_wrong_steps():
    """Of solutions as the model is taught them."""
    config, rng = load("lab_false_positives", []), random.Random(0)
    assert len(load_problems(held_out_data(config)).labels) == 256
    right = earned = 0
    for label in load_problems(config.data).labels * 40:
        terms = [int(term) for term in re.findall(r"\d+", label.problem)]
        totals, slipped = sums.work_out(terms, rng)
        right += totals[-1] == sum(terms)
        earned += not slipped
    assert right > 400 and earned < 0.25 * right
