"""The text of the reflection prompt (ISR, METHOD section 5)."""

from collections.abc import Callable

from r3_openrlhf.method.errors import quoted

# The paper names the parts of the exemplar (problem, failed attempt, structured guidance) and not
# their words: the words are ours. The whole exemplar is one user turn, because reasoning chat
# templates drop the thinking part of earlier assistant turns.
ATTEMPT_INTRODUCTION = "Below is an earlier attempt at this problem. Its final answer is wrong."
ATTEMPT_BEGINS = "--- earlier attempt begins ---"
ATTEMPT_ENDS = "--- earlier attempt ends ---"
GUIDANCE = """\
Do not continue the earlier attempt. Work in two steps:
1. Diagnose: find the first step that is wrong or unjustified, or the point where it lost its way, and say in one or \
two sentences why it fails.
2. Solve again: forget its result and solve the problem from the start, avoiding that error. Check your result.
Give the final answer in the same format that the problem asks for."""

HINT = "The final answer of this problem is known:"
HINT_GUIDANCE = """\
Solve the problem from the start as if you did not know it, each step with its reason, and check that you arrive there. \
Do not mention that the answer was given. Give the final answer in the same format that the problem asks for."""

CUT = "\n[... the middle of the attempt is left out ...]\n"
MIN_VISIBLE_CHARACTERS = 64  # an attempt of which less is left cannot be diagnosed


def reflection_message(problem: str, attempt: str) -> str:
    """Write the user turn of a reflection prompt: original problem + one stored error + guidance.

    `problem` is the user turn of the plain prompt, instructions about the answer's format included,
    word for word.

    ValueError: a blank problem."""
    if not problem.strip():
        raise ValueError(
            f"problem is {quoted(problem)}; a reflection prompt needs the text of the problem"
        )
    attempt = attempt.strip() or "(the attempt is empty)"
    return f"{problem}\n\n{ATTEMPT_INTRODUCTION}\n{ATTEMPT_BEGINS}\n{attempt}\n{ATTEMPT_ENDS}\n\n{GUIDANCE}"


def hint_message(problem: str, answer: str) -> str:
    """Write the user turn of a prompt that shows the reference answer: problem + answer + guidance."""
    return f"{problem}\n\n{HINT} {answer}\n\n{HINT_GUIDANCE}"


def fit_attempt(
    attempt: str,
    *,
    num_prompt_tokens: Callable[[str], int],
    num_tokens: Callable[[str], int],
    max_prompt_tokens: int,
    max_attempt_tokens: int,
) -> str | None:
    """Shorten the stored attempt until the whole reflection prompt fits; None when it cannot fit.

    Text in, text out, as the prompt is text: ids of decoded text are other ids, more or fewer.
    `num_prompt_tokens(text)` renders the *whole* prompt (message, chat template) around an attempt
    and counts its tokens; `num_tokens(text)` is of the attempt alone. Both limits are judged on the
    text returned, so it fits even where counts do not fall with every character.

    A shortened attempt keeps its beginning and end, half of the characters each, with CUT between.
    The problem is never cut: if MIN_VISIBLE_CHARACTERS of the attempt do not fit, none is made."""
    visible = len(attempt)
    fewest = min(visible, MIN_VISIBLE_CHARACTERS)
    text = attempt
    while True:
        length = num_tokens(text)
        excess = max(num_prompt_tokens(text) - max_prompt_tokens, length - max_attempt_tokens)
        if excess <= 0:
            return text
        if visible <= fewest:
            return None
        # As many characters as the excess suggests, and a sixteenth more: CUT costs tokens, too.
        # Two rounds as a rule, at most about a hundred, however wrong the suggestion is.
        share = 1 - excess / length if excess < length else 0.5
        visible = max(fewest, int(visible * share * 15 / 16))
        num_tail = visible // 2
        text = attempt[: visible - num_tail] + CUT + attempt[len(attempt) - num_tail :]
