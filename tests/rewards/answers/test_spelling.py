"""The rules of spelling.toml, each on its own; what they come to together is in the pairs of the other tests."""

from pathlib import Path

import pytest

from r3_openrlhf.rewards.answers import spelling

HERE = Path(__file__).parent
RULES = list(zip(spelling._TABLE["rewrite"], spelling._REWRITES, strict=True))
PAIRS = [
    text
    for name in ("pairs_correct.txt", "pairs_wrong.txt")
    for line in (HERE / name).read_text(encoding="utf-8").splitlines()
    for text in line.split(" === ")
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0]["example"])
def test_a_rule_does_what_its_example_says(rule):
    described, (_, pattern, replacement) = rule
    before, _, after = described["example"].partition(" => ")
    assert pattern.sub(replacement, before) == after


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0]["example"])
def test_a_rule_that_is_passed_over_would_have_changed_nothing(rule):
    described, (needs, pattern, replacement) = rule
    texts = [described["example"].partition(" => ")[0], *PAIRS]
    passed_over = [text for text in texts if not any(needed in text for needed in needs)]
    assert [text for text in passed_over if pattern.sub(replacement, text) != text] == []


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
