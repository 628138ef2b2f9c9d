"""The rules of spelling.toml, each on its own; what they come to together is in the pairs of the other tests."""

import pytest

from r3_openrlhf.rewards.answers.formulas import spelling
from tests.tables import tables_beside

TABLES = tables_beside(__file__)
RULES = list(zip(TABLES["examples"], spelling._REWRITES, strict=True))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_a_rule_does_what_its_example_says(rule):
    example, (pattern, replacement) = rule
    before, _, after = example.partition(" => ")
    assert pattern.sub(replacement, before) == after


@pytest.mark.parametrize(
    "form", [r"\text{The area is %s} = 12", r"\text{%s} = 12", r"\text{%s = }12"]
)
def test_a_word_that_bounds_or_denies_is_no_name_of_a_value(form):
    hedges = spelling._TABLE["leads"]["hedges"].replace("\\", "").split("|")
    assert [hedge for hedge in hedges if spelling.unify(form % hedge.strip()) == "12"] == []
