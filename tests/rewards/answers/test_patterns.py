"""Patterns of the tables: what they are tried on first changes no match, and none of them is quadratic in blanks."""

import re
from re import _parser as tree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.rewards.answers.text import patterns
from r3_openrlhf.rewards.answers.text.patterns import compiled, literals_of, phrases

SECTIONS = [name for name in patterns._PHRASES if name not in ("pieces", "words")]
PHRASES = {
    f"{section}.{name}": phrase
    for section in SECTIONS
    for name, phrase in phrases(section).items()
}
WORDS = sorted({literal for phrase in PHRASES.values() for literal in phrase.literals})
REPEATS = (tree.MAX_REPEAT, tree.MIN_REPEAT)  # a possessive one is not tried again
BLANKS = " \n\t"


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("abc", ["abc"]),
        ("(?:cat|dog)s?", ["cat", "dog"]),
        ("[ab]c+de", ["de"]),
        ("a?b", ["b"]),
        ("(?:x|y*)", []),
        (r"\bnot|never|no\b", ["never", "no"]),
        (r"\d{2,}(?:cm|\ m)", [" m", "cm"]),
        ("Yes(?=!)", ["Yes"]),
    ],
)
def test_every_match_holds_one_of_the_literals(pattern, literals):
    assert literals_of(re.compile(pattern)) == tuple(literals)


def test_case_counts_where_it_counts_in_the_pattern():
    assert compiled("Yes", {}).search("so yes") is None
    assert compiled("Yes", {}, re.IGNORECASE).search("so YES")[0] == "YES"


@given(
    st.lists(
        st.sampled_from(WORDS) | st.text("aA1 .,:$\\{}()<>|=\né是", max_size=4), max_size=8
    ).map("".join)
)
def test_what_is_looked_for_first_changes_no_match(text):
    for name, phrase in PHRASES.items():
        by_pattern = phrase.pattern.search(text)
        match = phrase.search(text)
        assert (match and match.span()) == (by_pattern and by_pattern.span()), name
        assert [one.span() for one in phrase.finditer(text)] == [
            one.span() for one in phrase.pattern.finditer(text)
        ], name


def takes(sequence, sign):
    """Tell whether what is repeated is one sign, and may be this one."""
    parts = list(sequence)
    if len(parts) != 1:
        return False
    operation, argument = parts[0]
    if operation is tree.SUBPATTERN:
        return takes(argument[3], sign)
    if operation is tree.ANY:
        return sign != "\n"
    if operation in (tree.LITERAL, tree.NOT_LITERAL):
        return (chr(argument) == sign) is (operation is tree.LITERAL)
    return operation is tree.IN and is_in(argument, sign)


def is_in(members, sign):
    is_negated = members[0][0] is tree.NEGATE
    found = any(
        (kind is tree.LITERAL and chr(value) == sign)
        or (kind is tree.RANGE and value[0] <= ord(sign) <= value[1])
        or (
            kind is tree.CATEGORY
            and value in (tree.CATEGORY_SPACE, tree.CATEGORY_NOT_WORD, tree.CATEGORY_NOT_DIGIT)
        )
        for kind, value in members
    )
    return found is not is_negated


def may_be_empty(operation, argument):
    if operation in (tree.AT, tree.ASSERT, tree.ASSERT_NOT):
        return True
    if operation in REPEATS:
        return argument[0] == 0
    if operation is tree.SUBPATTERN:
        return all(may_be_empty(*part) for part in argument[3])
    if operation is tree.BRANCH:
        return any(all(may_be_empty(*part) for part in branch) for branch in argument[1])
    return False


def parts_of(operation, argument):
    if operation is tree.BRANCH:
        return argument[1]
    if operation is tree.SUBPATTERN:
        return [argument[3]]
    if operation in (*REPEATS, tree.POSSESSIVE_REPEAT):
        return [argument[2]]
    if operation in (tree.ASSERT, tree.ASSERT_NOT):
        return [argument[1]]
    return [argument] if operation is tree.ATOMIC_GROUP else []


def is_endless(operation, argument):
    return operation in REPEATS and argument[1] == tree.MAXREPEAT


def blanks_taken_twice(sequence):
    """The white space that two endless repetitions, with nothing certain between them, share out in every way."""
    parts = list(sequence)
    for i, (operation, argument) in enumerate(parts):
        for part in parts_of(operation, argument):
            yield from blanks_taken_twice(part)
        if not is_endless(operation, argument):
            continue
        for other, its_argument in parts[i + 1 :]:
            if is_endless(other, its_argument):
                yield from (
                    sign
                    for sign in BLANKS
                    if takes(argument[2], sign) and takes(its_argument[2], sign)
                )
            if not may_be_empty(other, its_argument):
                break


@pytest.mark.parametrize("pattern", [r"\s*x?\s*y", r"a[^x]*(?:b)?\s*$", r"(?:\s*\s*)"])
def test_the_check_of_blanks_can_fail(pattern):
    assert list(blanks_taken_twice(tree.parse(pattern)))


@pytest.mark.parametrize("name", PHRASES)
def test_no_pattern_shares_out_blanks_in_every_way(name):
    pattern = PHRASES[name].pattern
    parsed = tree.parse(pattern.pattern, pattern.flags & (re.VERBOSE | re.IGNORECASE))
    assert list(blanks_taken_twice(parsed)) == []
