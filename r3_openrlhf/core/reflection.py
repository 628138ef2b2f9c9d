"""When to reflect, and the text of the reflection prompt (ISR, METHOD section 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from r3_openrlhf.core.checks import finite_value, whole_number

# The paper names the parts of the exemplar (problem, failed attempt, structured guidance) and not their words: the
# words are ours. The whole exemplar is one user turn, because reasoning chat templates drop the thinking part of
# earlier assistant turns.
ATTEMPT_INTRODUCTION = "Below is an earlier attempt at this problem. Its final answer is wrong."
ATTEMPT_BEGINS = "--- earlier attempt begins ---"
ATTEMPT_ENDS = "--- earlier attempt ends ---"
GUIDANCE = """\
Do not continue the earlier attempt. Work in two steps:
1. Diagnose: find the first step that is wrong or unjustified, or the point where it lost its way, and say in one or \
two sentences why it fails.
2. Solve again: forget its result and solve the problem from the start, avoiding that error. Check your result.
Give the final answer in the same format that the problem asks for."""

CUT = "\n[... the middle of the attempt is left out ...]\n"
MIN_ATTEMPT_TOKENS = 16  # an attempt of which less is visible cannot be diagnosed


def is_hard(mean_reward: float | None, *, threshold: float) -> bool:
    """Is the problem's mean stored reward below tau? None, no history yet, is not hard.

    ValueError: a number that is not finite.
    """
    threshold = finite_value("threshold", threshold)
    return mean_reward is not None and finite_value("mean_reward", mean_reward) < threshold


def reflection_message(problem: str, attempt: str) -> str:
    """The user turn of a reflection prompt: original problem + one stored error + guidance.

    `problem` is the user turn of the plain prompt, instructions about the answer's format included, word for word.

    ValueError: a blank problem.
    """
    if not problem.strip():
        raise ValueError(f"problem is {problem!r}; a reflection prompt needs the text of the problem")
    attempt = attempt.strip() or "(the attempt is empty)"
    return f"{problem}\n\n{ATTEMPT_INTRODUCTION}\n{ATTEMPT_BEGINS}\n{attempt}\n{ATTEMPT_ENDS}\n\n{GUIDANCE}"


def fit_attempt(
    attempt_ids: Sequence[int],
    *,
    decode: Callable[[Sequence[int]], str],
    num_prompt_tokens: Callable[[str], int],
    max_prompt_tokens: int,
    max_attempt_tokens: int,
) -> str | None:
    """Text of a stored attempt, shortened until the whole reflection prompt fits; None when it cannot fit.

    Ids come in, because the store holds ids and a limit in tokens then means what it says; text goes out, because the
    prompt is text. `decode(ids)` is the tokenizer's decode without special tokens. `num_prompt_tokens(attempt_text)`
    renders the *whole* prompt (message, chat template) around that text, tokenises it, and returns its length; it is
    the only judge of what fits. Decoded text rarely tokenises back to as many ids, and the count need not fall with
    every token taken away: every text that is returned has been judged itself.

    A shortened attempt keeps its beginning and its end, half of the visible tokens each, with CUT between them. The
    problem is never cut: when not even MIN_ATTEMPT_TOKENS of the attempt fit beside it, there is no reflection.

    ValueError: a limit below 1.
    """
    max_prompt_tokens = whole_number("max_prompt_tokens", max_prompt_tokens, minimum=1)
    max_attempt_tokens = whole_number("max_attempt_tokens", max_attempt_tokens, minimum=1)

    def visible(num_tokens: int) -> str:
        if num_tokens == len(attempt_ids):
            return decode(attempt_ids)
        num_tail = num_tokens // 2
        head = decode(attempt_ids[: num_tokens - num_tail])
        tail = decode(attempt_ids[len(attempt_ids) - num_tail :])
        # A cut inside a character of several bytes decodes to replacement characters.
        return head.rstrip("\ufffd") + CUT + tail.lstrip("\ufffd")

    num_tokens = min(len(attempt_ids), max_attempt_tokens)
    fewest = min(num_tokens, MIN_ATTEMPT_TOKENS)
    while True:
        text = visible(num_tokens)
        excess = num_prompt_tokens(text) - max_prompt_tokens
        if excess <= 0:
            return text
        if num_tokens == fewest:
            return None
        # Take off the excess and a little more (CUT itself costs tokens), never more than half: at most some 70 tries
        # for any tokenizer, two as a rule.
        shorter = max(num_tokens // 2, num_tokens - excess - num_tokens // 16)
        num_tokens = max(fewest, shorter)
