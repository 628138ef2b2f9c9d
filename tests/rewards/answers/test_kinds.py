"""Laws of every kind of answers, on problems that the kinds make up: equal and unequal siblings, in any wrapping, and sentences that
deny, scale or go on. A new kind is tested by being there."""

import inspect
import random
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf import grade, read_reference
from r3_openrlhf.rewards.answers.kinds import ORDER, Kind, kind_of, kinds
from tests.rewards.answers.siblings import SIBLINGS
from tests.tables import tables_beside

TABLES = tables_beside(__file__)
SEEDS = st.integers(0, 10**6)


def verdict(response, reference, problem):
    return grade(response, reference, problem=problem).verdict


def siblings(name, rng):
    """Problem, reference, answers that equal it and answers that do not, of one draw."""
    drawn = SIBLINGS[name].draw(rng)
    equal = [*drawn.references, *drawn.equal]
    return drawn.problem, rng.choice(drawn.references), equal, drawn.unequal


def test_every_kind_has_siblings():
    assert set(SIBLINGS) >= set(kinds())


def test_every_file_of_a_kind_is_in_the_order():
    files = [path.stem for path in Path(inspect.getfile(Kind)).parent.glob("*.py")]
    assert sorted([*ORDER, "__init__"]) == sorted(files)


@pytest.mark.parametrize("name", SIBLINGS)
@given(seed=SEEDS)
@settings(max_examples=6, deadline=None)
def test_equal_siblings_are_right_and_neighbours_wrong_in_any_wrapping(name, seed):
    rng = random.Random(seed)
    problem, reference, equal, unequal = siblings(name, rng)
    kind = kind_of(reference, problem)
    expected_kind = SIBLINGS[name].kind
    if expected_kind is None:
        expected_kind = name if name in kinds() else ""
    assert (kind[0].name if kind else "") == expected_kind, reference
    wrapping, section = rng.choice(TABLES["wrappings"]), rng.choice(TABLES["sections"])
    for expected, answers in (("correct", equal), ("wrong", unequal)):
        for answer in answers:
            response = section % (wrapping % answer)
            assert verdict(response, reference, problem) == expected, (response, reference)


@pytest.mark.parametrize("name", SIBLINGS)
@given(seed=SEEDS)
@settings(max_examples=6, deadline=None)
def test_what_denies_an_answer_or_belongs_to_another_question_is_not_it(name, seed):
    rng = random.Random(seed)
    problem, reference, equal, _ = siblings(name, rng)
    form = rng.choice(TABLES["denied"])
    answer = rng.choice([text for text in equal if "answer" not in text])
    response = form.replace("%s", answer)
    assert verdict(response, reference, problem) == "wrong", response


@settings(max_examples=20, deadline=None)
@given(
    value=st.integers(2, 99),
    form=st.sampled_from(TABLES["scaled"]),
    wrapping=st.sampled_from(["The answer is %s.", r"\boxed{\text{%s}}"]),
    scale=st.sampled_from(["million", "thousand", "dozen"]),
)
def test_a_scaled_number_is_another_one(value, form, wrapping, scale):
    assert verdict(rf"So $\boxed{{{value}}}$ {scale}.", str(value), "How many?") == "wrong"
    assert (
        verdict(rf"So $\boxed{{{value}}}$ {scale}.", str(value), f"How many {scale}?")
        == "correct"
    )
    assert verdict(wrapping % (form % value), str(value), "How many?") == "wrong"
    assert verdict(wrapping % value, str(value), "How many?") == "correct"


@settings(max_examples=20, deadline=None)
@given(
    v=st.integers(5, 99),
    form=st.sampled_from(TABLES["computed"]),
    plain=st.sampled_from(TABLES["plain"]),
)
def test_a_box_in_a_formula_is_read_with_it(v, form, plain):
    assert verdict(form[0] % v, str(v), "") == "wrong"
    assert verdict(form[0] % v, str(eval(form[1])), "") == "correct"
    assert verdict(plain % v, str(v), "") == "correct"
    assert verdict(rf"$\boxed{{{v}}}+1=9$", str(v), r"Fill in $\boxed{?}+1=9$.") == "correct"


@settings(max_examples=60, deadline=None)
@given(
    top=st.integers(1, 200),
    bottom=st.integers(2, 97),
    digits=st.integers(4, 9),
    off=st.integers(-2, 2),
)
def test_a_decimal_of_four_digits_is_what_rounds_to_it(top, bottom, digits, off):
    value = Fraction(top, bottom)
    rounded = round(value, digits) + Fraction(off, 10**digits)
    error = abs(rounded - value)
    half = Fraction(1, 2 * 10**digits)
    text = f"{rounded.numerator * 10**digits // rounded.denominator:0{digits + 1}d}"
    decimal = f"{text[:-digits]}.{text[-digits:]}"
    enough = len(text.lstrip("0")) >= 3
    expected = "correct" if error <= half and enough or error == 0 else "wrong"
    assert verdict(rf"\boxed{{{decimal}}}", f"{top}/{bottom}", "") == expected


@settings(max_examples=20, deadline=None)
@given(
    value=st.integers(2, 500),
    nouns=st.sampled_from(
        ["cars came in", "trucks are needed for", "people left within", "boats sank during"]
    ),
)
def test_the_number_of_the_subject_answers_a_sentence(value, nouns):
    assert (
        verdict(f"{value} {nouns} the first {value + 7} minutes.", str(value), "") == "correct"
    )
    assert (
        verdict(f"{value} {nouns} the first {value + 7} minutes.", str(value + 7), "")
        == "wrong"
    )


@settings(max_examples=20, deadline=None)
@given(
    rate=st.sampled_from(
        [("dollars", "cents", 100), ("hours", "minutes", 60), ("meters", "cm", 100)]
    ),
    value=st.integers(2, 90),
)
def test_another_unit_than_the_problem_asks_for_is_another_amount(rate, value):
    unit, small, factor = rate
    problem = f"How many {unit} is it?"
    assert verdict(rf"\boxed{{{value}\text{{ {small}}}}}", str(value), problem) == "wrong"
    assert (
        verdict(rf"\boxed{{{value * factor}\text{{ {small}}}}}", str(value), problem)
        == "correct"
    )
    assert verdict(rf"\boxed{{{value}\text{{ {unit}}}}}", str(value), problem) == "correct"
    for asked in (problem, f"What is it in {unit}?"):
        assert verdict(rf"\boxed{{{value}\text{{ kg}}}}", str(value), asked) == "wrong"
    for asked in (f"{problem} How many kg are there?", f"How many kg are there? {problem}"):
        assert verdict(rf"\boxed{{{value}\text{{ kg}}}}", str(value), asked) == "correct"


@settings(max_examples=20, deadline=None)
@given(
    form=st.sampled_from(["%d", "-%d", r"\frac{%d}{211}", r"\sqrt{%d}", "(%d,1)", "%d+x"]),
    members=st.lists(st.integers(2, 99), min_size=2, max_size=20, unique=True),
    rng=st.randoms(use_true_random=False),
)
def test_a_list_of_any_length_may_be_in_any_order(form, members, rng):
    reference = ", ".join(form % member for member in members)
    shuffled = rng.sample(members, len(members))
    assert (
        verdict(rf"\boxed{{{', '.join(form % member for member in shuffled)}}}", reference, "")
        == "correct"
    )
    assert (
        verdict(
            rf"\boxed{{{', '.join(form % member for member in [*shuffled[1:], 1])}}}",
            reference,
            "",
        )
        == "wrong"
    )


@settings(max_examples=30, deadline=None)
@given(
    value=st.integers(12, 500),
    form=st.sampled_from(TABLES["sentences"]),
    other=st.sampled_from(TABLES["no_sentences"]),
)
def test_a_last_sentence_states_denies_or_bounds_its_number(value, form, other):
    for text, expected in ((form, "correct"), (other, "wrong")):
        response = text.replace("%%", "%").replace("%d", str(value))
        assert verdict(response, str(value), "How many pages are there?") == expected, response


ATOMS = st.sampled_from(["n", "x", "2", "10", "7", "99", r"\pi", "e", "i", "0", "0.5"])
FORMULAS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        inner.map("({})!".format),
        inner.map("({})!!".format),
        inner.map(r"\Gamma({})".format),
        inner.map(r"\sqrt{{{}}}".format),
        st.tuples(inner, inner).map("{%s}^{%s}".__mod__),
        st.tuples(inner, inner).map(r"\frac{%s}{%s}".__mod__),
        st.tuples(inner, inner).map(r"\binom{%s}{%s}".__mod__),
        st.tuples(inner, inner).map("%s+%s".__mod__),
        inner.map(r"\sin({})".format),
        inner.map(r"\log({})".format),
        st.tuples(inner, inner).map("(%s,%s)".__mod__),
        st.tuples(inner, inner).map("%s=%s".__mod__),
        st.tuples(inner, inner).map(r"%s\cdot %s".__mod__),
        inner.map(r"|{}|".format),
        inner.map(r"\lfloor {}\rfloor".format),
        inner.map(r"\{{ {} \}}".format),
    ),
    max_leaves=6,
)
REFERENCES = st.one_of(
    FORMULAS,
    st.builds(
        lambda name, seed: siblings(name, random.Random(seed))[1],
        st.sampled_from(list(kinds())),
        SEEDS,
    ),
)


@given(answer=FORMULAS, reference=REFERENCES)
@settings(max_examples=60, deadline=None)
def test_any_answer_is_graded_within_a_second_and_always_alike(answer, reference):
    grade("n", "n")  # loads what is loaded late
    verdicts = []
    for _ in range(2):
        begin = time.process_time()
        verdicts.append(grade(rf"\boxed{{{answer}}}", reference))
        assert time.process_time() - begin < 1.0, (answer, reference)
    assert verdicts[0] == verdicts[1]


@given(formula=FORMULAS)
@settings(max_examples=40, deadline=None)
def test_a_reference_equals_itself(formula):
    assert (
        grade(rf"\boxed{{{formula}}}", formula).verdict == "correct"
        or grade(r"\boxed{1}", formula).verdict == "ungraded"
    )


OPTIONS = "Which gas is it? (A) oxygen (B) helium (C) neon"


@pytest.mark.parametrize("form", TABLES["no_choices"])
def test_a_letter_that_a_sentence_denies_is_no_choice(form):
    for letter in "ABC":
        assert verdict(form % letter, letter, OPTIONS) == "wrong"


@pytest.mark.parametrize(("task", "response", "reference", "score"), TABLES["tasks"])
def test_tasks_by_name(task, response, reference, score):
    assert grade(response, reference, task=task, problem=OPTIONS).score == score


def test_a_reference_says_its_kind():
    assert (
        read_reference("1, 2, 3", "List them from least to greatest.").kind
        == "ordered list: 3 values, order counts"
    )
    assert read_reference("2024-03-05").kind == "date" and read_reference("7").kind == ""


def test_another_answer_before_a_sentence_is_not_left_out_with_its_subject():
    reference = "the sum of two odd numbers is always an even number"
    assert verdict(rf"\boxed{{{reference}}}", reference, "") == "correct"
    assert verdict(rf"\boxed{{1234567}}, \boxed{{{reference}}}", reference, "") == "wrong"


@settings(max_examples=40, deadline=None)
@given(value=st.integers(2, 500), form=st.sampled_from(TABLES["guessed"]))
def test_a_sentence_that_guesses_in_any_language_has_no_answer(value, form):
    assert verdict(form % value, str(value), "") == "wrong"


@settings(max_examples=20, deadline=None)
@given(
    names=st.permutations(["Alice", "Bob", "Clara"]),
    form=st.sampled_from(TABLES["several_subjects"]),
    plain=st.sampled_from(TABLES["one_subject"]),
)
def test_a_name_is_the_answer_only_where_the_text_marks_one(names, form, plain):
    name, other, _ = names
    assert verdict(form.format(name, other), name, "Who did it?") == "wrong"
    assert verdict(plain.format(name), name, "Who did it?") == "correct"
    assert verdict(plain.format(other), name, "Who did it?") == "wrong"
