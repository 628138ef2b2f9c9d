"""Answers in boxes and tags: several of them are one answer of several parts, and what is taken back is none."""

import pytest

from r3_openrlhf.rewards.answers.withdrawn import is_withdrawn

MATH = [  # verdict, response, reference
    ("wrong", "<answer>A</answer> or <answer>B</answer>", "B"),
    ("wrong", "<answer>A</answer><answer>B</answer>", "B"),
    ("wrong", "<answer>3</answer> or <answer>4</answer>", "4"),
    ("wrong", "<answer>3</answer> <answer>4</answer>", "4"),
    ("wrong", r"<answer>\boxed{3}</answer> or <answer>\boxed{4}</answer>", "4"),
    ("wrong", r"\boxed{3} or <answer>4</answer>", "3"),
    ("wrong", r"\boxed{3} or <answer>4</answer>", "4"),
    ("wrong", r"<answer>3</answer> or \boxed{4}", "4"),
    ("correct", r"<answer>\frac12</answer>, that is \boxed{0.5}", "0.5"),
    ("correct", r"<answer>5</answer> \boxed{5}", "5"),
    ("correct", "<answer>3</answer> Wait, that is a mistake. <answer>4</answer>", "4"),
    ("correct", r"<answer> \boxed{5} </answer>", "5"),
    ("correct", "\\boxed{\\frac{1}{2}}\n<answer>1/2</answer>", "1/2"),
    ("wrong", r"\boxed{3} as well as \boxed{4}", "4"),
    ("wrong", r"First guess: \boxed{3}. Second guess: \boxed{4}", "4"),
    ("wrong", r"\boxed{3} plus \boxed{4}", "4"),
    ("wrong", r"\boxed{3} also \boxed{4}", "4"),
    ("wrong", r"\boxed{3}. Another answer: \boxed{4}", "4"),
    ("correct", r"First solution: $\boxed{3}$. Second solution: $\boxed{4}$.", "3,4"),
    ("wrong", r"\boxed{3} Or \boxed{4}", "4"),
    ("correct", r"\boxed{3} as well as \boxed{4}", "3,4"),
    ("wrong", r"\boxed{5} is incorrect", "5"),
    ("wrong", r"\boxed{5}. But this is wrong.", "5"),
    ("wrong", r"$\boxed{5}$ is not the answer", "5"),
    ("wrong", r"I doubt that \boxed{5} is right.", "5"),
    ("wrong", r"$\boxed{5}$ is wrong.", "5"),
    ("wrong", r"\boxed{5}. This is not correct.", "5"),
    ("wrong", r"\[\boxed{5}\] Wait, that's wrong.", "5"),
    ("wrong", r"It is not \boxed{5}.", "5"),
    ("wrong", r"The answer is not $\boxed{5}$.", "5"),
    ("wrong", r"I don't think it is \boxed{5}.", "5"),
    ("wrong", r"\boxed{5}? No.", "5"),
    ("wrong", r"\boxed{5} cannot be the answer.", "5"),
    ("wrong", r"\boxed{5}, which is incorrect.", "5"),
    ("wrong", r"\boxed{5}, not.", "5"),
    ("wrong", r"\boxed{5}. Scratch that.", "5"),
    ("wrong", r"~~\boxed{5}~~", "5"),
    ("wrong", r"\boxed{5}. I was wrong.", "5"),
    ("wrong", r"\boxed{5} isn't right.", "5"),
    ("wrong", r"\boxed{5}. Ignore this.", "5"),
    ("wrong", r"\boxed{5}. The above answer is incorrect.", "5"),
    ("wrong", "<answer>5</answer> is wrong.", "5"),
    ("correct", r"\boxed{5}. Check: 4 is wrong because it is even.", "5"),
    ("correct", r"\boxed{5}. This is not a coincidence.", "5"),
    ("correct", r"\boxed{5}. It is not correct to assume that 4 works.", "5"),
    ("correct", r"\boxed{5}. This is correct.", "5"),
    ("correct", r"\boxed{5} is correct.", "5"),
    ("correct", r"$\boxed{5}$. Not all of them are needed.", "5"),
    ("correct", r"$\boxed{5}$, not 6.", "5"),
    ("correct", r"$\boxed{5}$ (and not 6)", "5"),
    ("correct", r"\boxed{5}. No other value works.", "5"),
    ("correct", r"The wrong answer is 4; \boxed{5}", "5"),
    ("correct", r"\boxed{3} is wrong. \boxed{5}", "5"),
    ("wrong", r"\boxed{3} is wrong. \boxed{5}", "3"),
    ("correct", r"\boxed{5} is wrong. The answer is 6.", "6"),
    ("wrong", r"\boxed{5} is wrong. The answer is 6.", "5"),
    ("correct", r"The answer is \boxed{3}, as \boxed{5} is incorrect.", "3"),
    ("correct", r"Ignore \boxed{7}; \boxed{5}", "5"),
    ("wrong", r"Ignore \boxed{7}; \boxed{5}", "7"),
    ("correct", r"It is not 4 but \boxed{5}.", "5"),
    ("correct", r"There is no doubt that the answer is \boxed{5}.", "5"),
    ("correct", r"I do not see another way: \boxed{5}.", "5"),
    ("correct", r"\boxed{5} is the answer, not 4", "5"),
    ("correct", r"We have no doubt that \boxed{5} is right.", "5"),
    ("correct", r"\boxed{\text{false}}", "false"),
    ("correct", r"The statement is \boxed{\text{false}}.", "false"),
    ("correct", r"It is \boxed{5}. That was not easy!", "5"),
    ("correct", r"\boxed{5}. If this is wrong, then 6.", "5"),
    ("correct", r"\boxed{12} is impossible to beat", "12"),
    ("correct", r"The probability that it does not is \boxed{5}", "5"),
    ("correct", r"\boxed{5} cannot be improved", "5"),
    ("correct", "\\boxed{5}\n\nNote that the answer 6 is incorrect.", "5"),
    ("correct", "\\boxed{5}\n\nThe answer 6 is incorrect.", "5"),
    ("correct", r"$\boxed{\frac12}$ or $\boxed{0.5}$", "1/2"),
]
EXACT = [  # the same for task exact
    ("wrong", r"\boxed{A} or \boxed{B}", "B"),
    ("wrong", r"\boxed{A}, \boxed{B}", "B"),
    ("wrong", r"\boxed{A}, \boxed{B}", "A"),
    ("correct", r"\boxed{A}, \boxed{B}", "A, B"),
    ("correct", r"\boxed{A}. Therefore \boxed{B}", "B"),
    ("correct", r"\boxed{B}, that is \boxed{B}", "B"),
    ("wrong", "<answer>A</answer> or <answer>B</answer>", "B"),
    ("wrong", "<answer>A</answer><answer>B</answer>", "B"),
    ("wrong", r"\boxed{A} is incorrect", "A"),
    ("wrong", "<answer>A</answer> is not the answer", "A"),
    ("wrong", r"It is not \boxed{A}", "A"),
]


@pytest.mark.parametrize(("task", "cases"), [("math", MATH), ("exact", EXACT)])
def test_several_marked_answers_and_withdrawn_ones(grade_many, task, cases):
    grades = grade_many([case[1:] for case in cases], task=task)
    assert [case for case, grade in zip(cases, grades, strict=True) if grade.verdict.value != case[0]] == []


def test_only_what_stands_beside_an_answer_takes_it_back():
    filler = "as one sees at once, " * 20
    assert is_withdrawn("5 is wrong", 0, 1)
    assert not is_withdrawn(f"5 {filler} is wrong", 0, 1)
    assert not is_withdrawn(
        f"I doubt that {filler} 5", len(f"I doubt that {filler} "), len(f"I doubt that {filler} 5")
    )
