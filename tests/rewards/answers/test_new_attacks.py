"""New cases of each class, from templates and hypothesis: what is made to be wrong is wrong, and the same answer written otherwise is right."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r3_openrlhf.evaluation.attacks.generate import answer_attacks
from r3_openrlhf.rewards.answers.exact import exact_text, grade_exact
from tests.tables import tables_beside

TABLES = tables_beside(__file__)


def problems(rng, count):
    """(problem, reference, the same answer in another spelling): the reference is worked out here, not by a grader."""
    made = []
    for _ in range(count):
        a, b, c = rng.randint(2, 60), rng.randint(2, 60), rng.randint(2, 9)
        low, high = sorted(rng.sample(range(-20, 20), 2))
        unit = rng.choice(["cm", "mph", "hours", "kg", "p.m."])
        word = rng.choice(["circle", "Monday", "even", "dog", "cat", "Alice"])
        made += [
            (f"Compute ${a} \\cdot {b} + {c}^2$.", str(a * b + c * c), f"{a * b + c * c}.0"),
            (
                f"Solve $x^2 - {low + high}x + {low * high} < 0$.".replace("--", "+").replace(
                    "+ -", "- "
                ),
                f"({low},{high})",
                f"{low} < x < {high}",
            ),
            (f"Solve ${c}x + {a} = {c * b + a}$.", str(b), f"x = {b}"),
            (f"Expand $(x+{a})(x+{b})$.", f"x^2+{a + b}x+{a * b}", f"{a * b} + {a + b}x + x^2"),
            (
                f"Differentiate $y = {a}x^{c}$.",
                f"{a * c}x^{{{c - 1}}}",
                f"{c * a} x^{{{c - 1}}}",
            ),
            (
                f"How far? It moves at ${a}$ for ${b}$.",
                rf"{a * b} \text{{ {unit}}}",
                str(a * b),
            ),
            (f"What is it, if $a={a}$?", rf"\text{{{word}}}", word),
            (f"(A) {a} (B) {b} (C) {c}", rng.choice("ABC"), None),
            (
                f"When is $|x-{a}| > {b}$?",
                rf"(-\infty,{a - b})\cup({a + b},\infty)",
                rf"x<{a - b} \text{{ or }} x>{a + b}",
            ),
        ]
    return made


def not_as_they_should(grade_many, made):
    cases = [
        (reference, "correct", rf"\boxed{{{reference}}}", problem)
        for problem, reference, _ in made
    ]
    cases += [
        (reference, "correct", rf"\boxed{{{other}}}", problem)
        for problem, reference, other in made
        if other
    ]
    cases += [
        (reference, "wrong", response, problem)
        for problem, reference, _ in made
        for _, response in answer_attacks(problem, reference, "math")
    ]
    grades = grade_many(
        [(case[2], case[0]) for case in cases], problems=[case[3] for case in cases]
    )
    return [
        (grade.reason, *case)
        for case, grade in zip(cases, grades, strict=True)
        if grade.verdict.value != case[1]
    ]


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
@example("0", "\\\r0")  # a backslash before a line break is a space behind which nothing stands
@settings(max_examples=100, deadline=None)
def test_exact_never_equates_texts_of_other_letters(a, b):
    """Whatever is left out around an answer, its letters and digits are not."""
    letters = ["".join(filter(str.isalnum, text.casefold())) for text in (a, b)]
    if letters[0] != letters[1]:
        assert grade_exact(a, (b,))[0] == "wrong"
    assert grade_exact(b, (b,))[0] == "correct" and exact_text(exact_text(b)) == exact_text(b)


def withdrawn(rng, answer):
    """An answer, and a clause beside it that takes it back."""
    box = (
        rng.choice([r"\boxed{%s}", r"$\boxed{%s}$", r"\[\boxed{%s}\]", "<answer>%s</answer>"])
        % answer
    )
    words = TABLES["withdrawn"]
    return rng.choice(
        [
            rng.choice(words["before"]) + box + ".",
            box
            + rng.choice(words["turns"])
            + rng.choice(words["is_wrong"])
            + rng.choice([".", "!", "", "\n"]),
            box + rng.choice(words["ends"]),
        ]
    )


def kept(rng, answer):
    """An answer, and words beside it that take nothing back."""
    box = rng.choice([r"\boxed{%s}", r"$\boxed{%s}$", "<answer>%s</answer>"]) % answer
    behind, before = TABLES["kept"]["behind"], TABLES["kept"]["before"]
    return rng.choice(before) + box + rng.choice(behind)


def several(rng, right, other):
    """Two answers in marks, of which one is right."""
    first, second = rng.sample([right, other], 2)
    mark = rng.choice([r"\boxed{%s}", r"$\boxed{%s}$", "<answer>%s</answer>"])
    return mark % first + rng.choice(TABLES["between"]) + mark % second


def marked_cases(rng, count):
    """(task, verdict, response, reference)."""
    made = []
    for _ in range(count):
        for task, answer, other in (
            ("math", str(rng.randint(10, 999)), str(rng.randint(1000, 9999))),
            ("exact", *rng.sample("ABCDE", 2)),
        ):
            made += [
                (task, "wrong", withdrawn(rng, answer), answer),
                (task, "correct", kept(rng, answer), answer),
                (task, "wrong", several(rng, answer, other), answer),
                (
                    task,
                    "correct",
                    withdrawn(rng, other) + "\nTherefore " + kept(rng, answer),
                    answer,
                ),
            ]
    return made


def not_as_made(grade_many, cases):
    wrong = []
    for task in ("math", "exact"):
        own = [case for case in cases if case[0] == task]
        grades = grade_many([case[2:4] for case in own], task=task)
        wrong += [
            (grade.reason, *case)
            for case, grade in zip(own, grades, strict=True)
            if grade.verdict.value != case[1]
        ]
    return wrong


MADE = {  # what is asked of a grader, by seed and volume
    "attacks": lambda grade_many, seed, volume: not_as_they_should(
        grade_many, problems(random.Random(seed), volume)
    ),
    "marked": lambda grade_many, seed, volume: not_as_made(
        grade_many, marked_cases(random.Random(seed), 10 * volume)
    ),
}


@pytest.mark.parametrize("kind", MADE)
def test_answers_from_templates(grade_many, kind):
    assert MADE[kind](grade_many, 1, 2) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", [11, 12, 13])
@pytest.mark.parametrize("kind", MADE)
def test_answers_from_templates_at_volume(grade_many, kind, seed):
    assert MADE[kind](grade_many, seed, 200) == []
