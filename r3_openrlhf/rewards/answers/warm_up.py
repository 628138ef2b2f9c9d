"""Warm up a grading process of task "math" with common answers, each slow the first time."""

from __future__ import annotations

from r3_openrlhf.rewards.answers.mathematics import grade
from r3_openrlhf.rewards.answers.request import Item

_PAIRS = (
    ("x^2+1", "(x+1)^2-2x"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    ("x=1, y=2", "(1,2)"),
    (r"(-\infty,3]\cup[4,5)", r"x\le 3"),
    ("2x+y=3", "y=3-2x"),
    (r"\{1,2\}", "2,1"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    ("28\\%", "0.28"),
    (r"\sin(x)^2+\cos(x)^2", "2"),
    ("3+4i", "4i+2"),
)
# Places of an answer: each has patterns, which cost a new process 25 ms to compile.
_TEXTS = (
    (r"We have $x^2=4$, so \[x = 2.\] Therefore the answer is $\boxed{2}$ units.", "$2$"),
    (r"So it is \boxed{x+1} or so.", "$1+x$"),
    ("The final answer is $5$. I hope it is correct.", "5"),
    ("The answer is x+1", "1+x"),
    ("Answer: 5", "6"),
    ("#### 5", "5"),
    ("It is 5.", "5"),
    ("I do not know.", "x"),
)


def warm_up() -> None:
    """Grade one of each kind, so that forked workers find modules loaded and caches filled."""
    for response, reference in (*((f"\\boxed{{{answer}}}", reference) for answer, reference in _PAIRS), *_TEXTS):
        grade(Item("math", response, (reference,), False))
