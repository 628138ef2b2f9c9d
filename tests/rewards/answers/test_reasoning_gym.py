"""Answers to reasoning_gym's problems: its own scorers, without what they would evaluate."""

import json
import subprocess
import sys

import pytest
import reasoning_gym

import r3_openrlhf
from r3_openrlhf.config.answer_tasks import REFUSED_DATA_SETS, check_data_set
from r3_openrlhf.method.errors import ConfigError

NAMES = [
    "chain_sum",
    "basic_arithmetic",
    "gsm_symbolic",
    "countdown",
    "simple_equations",
    "polynomial_equations",
    "word_sorting",
    "sudoku",
    "n_queens",
    "spiral_matrix",
    "string_insertion",
    "bitwise_arithmetic",
    "simple_integration",
    "polynomial_multiplication",
    "arc_agi",
    "knights_knaves",
    "prime_factorization",
    "leg_counting",
]


@pytest.fixture(scope="module")
def entries():
    return [
        entry for name in NAMES for entry in reasoning_gym.create_dataset(name, size=2, seed=5)
    ]


def test_an_entry_s_own_answer_is_correct_and_another_one_is_not(grade_many, entries):
    own = grade_many(
        [(rf"So it is <answer>{e['answer']}</answer>", e["answer"]) for e in entries],
        task="reasoning_gym",
        metadata=entries,
    )
    assert [
        (e["metadata"]["source_dataset"], g)
        for e, g in zip(entries, own, strict=True)
        if g.verdict.value != "correct"
    ] == []
    other = grade_many(
        [("<answer>zebra</answer>", e["answer"]) for e in entries],
        task="reasoning_gym",
        metadata=entries,
    )
    assert [
        (e["metadata"]["source_dataset"], g)
        for e, g in zip(entries, other, strict=True)
        if g.verdict.value != "wrong"
    ] == []


def test_it_also_works_after_json(grade_many, entries):
    """The way to a reward server."""
    sent = [
        json.loads(json.dumps(entry, default=lambda value: value.tolist())) for entry in entries
    ]
    grades = grade_many(
        [(f"<answer>{e['answer']}</answer>", "") for e in sent],
        task="reasoning_gym",
        metadata=sent,
    )
    assert {grade.verdict.value for grade in grades} == {"correct"}


def test_where_the_answer_is_found(grade_many):
    entry = {"question": "", "answer": "4", "metadata": {"source_dataset": "chain_sum"}}
    responses = [
        r"\boxed{4}",
        "<answer>4</answer>",
        "It is\n4",
        r"<think>5</think>\boxed{4}",
        "It is 5",
    ]
    grades = grade_many(
        [(r, "4") for r in responses], task="reasoning_gym", metadata=[entry] * 5
    )
    assert [g.verdict.value for g in grades] == ["correct"] * 4 + ["wrong"]


def test_partial_credit_is_wrong_and_keeps_its_score(grade_many):
    entry = {
        "question": "",
        "answer": "ABCDE",
        "metadata": {"source_dataset": "string_insertion"},
    }
    (grade,) = grade_many(
        [("<answer>['A','B','C','D','E']</answer>", "")], task="reasoning_gym", metadata=[entry]
    )
    # a reward is 0 or at least 1
    assert (grade.verdict.value, grade.score, grade.reward) == (
        "wrong",
        0.1,
        0.0,
    )


def test_an_entry_that_cannot_be_scored_is_ungraded(grade_many):
    bad = [
        None,
        {},
        {"answer": "4", "metadata": {}},
        {"answer": "4", "metadata": {"source_dataset": "poetry"}},
        {"answer": "4", "metadata": {"source_dataset": ["chain_sum"]}},
        {"answer": "4", "metadata": {"source_dataset": "x" + "é" * 99}},
        {"answer": "4", "metadata": {"source_dataset": "countdown"}},
        {"answer": "4", "metadata": {"source_dataset": "coin_flip"}},
    ]
    grades = grade_many(
        [("<answer>5</answer>", "4")] * len(bad), task="reasoning_gym", metadata=bad
    )
    assert {(g.verdict.value, g.reason, g.reward) for g in grades} == {
        ("ungraded", "bad_reference", None)
    }


def test_an_unevaluated_integral_is_no_answer(grade_many):
    """reasoning_gym's own scorer calls it correct: it evaluates the answer, and the derivative of the integral is the integrand."""
    entry = {
        "question": "",
        "answer": "x**2 + C",
        "metadata": {
            "source_dataset": "simple_integration",
            "variable": "x",
            "integrand": "2*x",
        },
    }
    responses = [
        "<answer>x**2 + C</answer>",
        "<answer>x**2 + 17</answer>",
        "<answer>Integral(2*x, x)</answer>",
    ]
    grades = grade_many(
        [(r, "") for r in responses], task="reasoning_gym", metadata=[entry] * 3
    )
    assert [g.verdict.value for g in grades] == ["correct", "correct", "wrong"]


def test_refused_data_sets_are_named_with_the_reason():
    for name in REFUSED_DATA_SETS:
        with pytest.raises(ConfigError, match=name):
            check_data_set(name)
    check_data_set("chain_sum")


AGREEMENT = """
import reasoning_gym
names = "countdown n_queens binary_matrix number_sorting spiral_matrix string_insertion bitwise_arithmetic".split()
names += "simple_integration polynomial_multiplication".split()
cases = []
for name in names:
    for entry in reasoning_gym.create_dataset(name, size=5, seed=7):
        a = entry["answer"]
        for v in (a, a + "+1", "(" + a + ")", a.replace("x", "y"), "-(" + a + ")", "['a','b']", str(a.split()), a.replace(" ", ""),
                  "x", "[[1,2]]", "0x10", "zzz", a.replace("+", "-"), a.replace("**", "^"), "2**3", "sin(x)+C", "1/0"):
            cases.append((name, v, entry))
def scores(scorer):
    found = []
    for name, v, entry in cases:
        try:
            found.append(scorer(name)(answer=v, entry=entry))
        except Exception as error:
            found.append(type(error).__name__)
    return found
theirs = scores(reasoning_gym.get_score_answer_fn)
from r3_openrlhf.rewards.answers.reasoning_gym_tasks import _scorer
ours = scores(_scorer)
different = [(n, v, t, o) for (n, v, _), t, o in zip(cases, theirs, ours) if t != o]
print(len(cases), sum(t == 1.0 for t in theirs), different)
"""


def test_scorers_say_the_same_as_with_eval():
    """In another process: the original scorers first, then the ones in which eval and parse_expr were replaced."""
    done = subprocess.run(
        [sys.executable, "-c", AGREEMENT], capture_output=True, text=True, check=True
    )
    cases, correct, different = done.stdout.strip().split("\n")[-1].split(" ", 2)
    assert (int(cases), different) == (765, "[]") and int(correct) > 45


@pytest.mark.parametrize(
    "form",
    [
        r"\boxed{\text{%s}}",
        "**%s**",
        "Answer: %s",
        "<answer>```\n%s\n```</answer>",
        "**Answer:** %s",
        "<answer>%s</answer>",
    ],
)
@pytest.mark.parametrize("name", ["spell_backward", "countdown", "basic_arithmetic"])
def test_the_forms_in_which_chat_models_answer(name, form):
    entry = reasoning_gym.create_dataset(name, size=1, seed=1)[0]
    assert (
        r3_openrlhf.grade(
            form % entry["answer"], [], task="reasoning_gym", metadata=entry
        ).verdict
        == "correct"
    )
    assert (
        r3_openrlhf.grade(form % "q", [], task="reasoning_gym", metadata=entry).verdict
        == "wrong"
    )
