"""The rules of spelling.toml, each on its own; what they come to together is in the pairs of the other tests."""

import pytest

from r3_openrlhf.rewards.answers import spelling

RULES = list(zip(spelling._TABLE["rewrite"], spelling._REWRITES, strict=True))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0]["example"])
def test_a_rule_does_what_its_example_says(rule):
    described, (_, pattern, replacement) = rule
    before, _, after = described["example"].partition(" => ")
    assert pattern.sub(replacement, before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (r"\text{The area is }42", "42"),
        (r"\text{He has }5", "5"),
        (r"\textbf{Answer}: 5", "5"),
        (r"\text{Therefore, it is }5", "5"),
        (r"\text{at least }5", r"\text{at least }5"),
        (r"\text{twice }5", r"\text{twice }5"),
        (r"\text{It isn't }5", r"\text{It isn't }5"),
        (r"\text{Ten plus }5", r"\text{Ten plus }5"),
        (r"\text{Ann: }3,\text{ Bob: }5", r"\text{Ann: }3,\text{ Bob: }5"),
    ],
)
def test_words_before_a_value_are_left_out_where_they_say_nothing_else(before, after):
    assert spelling.unify(before) == after
