"""The text of the prompt behind which the policy scores a response as its own teacher (method/core/distill.py)."""

import re

from r3_openrlhf.method.errors import ConfigError, quoted

# The words are ours. SDPO (arXiv 2601.20802) shows the problem, a right response, and asks to solve the problem.
SUCCESS_INTRODUCTION = "Below is a solution of this problem that is right."
SUCCESS_BEGINS = "--- right solution begins ---"
SUCCESS_ENDS = "--- right solution ends ---"
ANSWER_INTRODUCTION = "The final answer of this problem is known:"
VERDICT = "An earlier attempt at it ended with a wrong answer."
ERROR_INTRODUCTION = "Below is an earlier attempt at it. Its final answer is wrong."
ERROR_BEGINS = "--- wrong attempt begins ---"
ERROR_ENDS = "--- wrong attempt ends ---"
REQUEST = "Solve the problem yourself. Give the final answer in the same format that the problem asks for."
PLACES = ("{problem}", "{solution}")
_PLACES = re.compile("|".join(map(re.escape, PLACES)))


def teacher_message(
    problem: str, solution: str, *, verdict: bool = False, error: str | None = None
) -> str:
    """Write the user turn of a teacher's prompt: problem, a right solution, and the request.

    `problem` is the user turn of the plain prompt, word for word. verdict: say that an attempt failed;
    error: show one."""
    parts = [problem]
    if error is not None:
        parts.append(f"{ERROR_INTRODUCTION}\n{ERROR_BEGINS}\n{error.strip()}\n{ERROR_ENDS}")
    elif verdict:
        parts.append(VERDICT)
    parts.append(
        f"{SUCCESS_INTRODUCTION}\n{SUCCESS_BEGINS}\n{solution.strip()}\n{SUCCESS_ENDS}"
    )
    parts.append(REQUEST)
    return "\n\n".join(parts)


def answer_message(problem: str, answer: str) -> str:
    """Write the user turn of a teacher's prompt that shows the reference answer alone."""
    return f"{problem}\n\n{ANSWER_INTRODUCTION} {answer}\n\n{REQUEST}"


def own_message(template: str, problem: str, solution: str) -> str:
    """Fill in `distill.template`, a text with {problem} and {solution}. ConfigError: one of them is missing."""
    for place in PLACES:
        if place not in template:
            raise ConfigError(
                f"distill.template is {quoted(template)}, which has no {place}; write it where it belongs"
            )
    texts = {"{problem}": problem, "{solution}": solution}
    return _PLACES.sub(lambda found: texts[found[0]], template)
