"""What the reason for which an engine ended a response means, for training, agents, tools and evaluations."""

from r3_openrlhf.method.types import Word


class Ending(Word):
    """STOP: the model ended it. CUT: something else did, and it is graded as truncated. UNGRADED: the
    engine gave it up, and nothing can be said about it."""

    STOP = "stop"
    CUT = "cut"
    UNGRADED = "ungraded"


# vllm/v1/engine/__init__.py:35; any other reason is one that nobody here has heard of
ENDINGS = {"stop": Ending.STOP, "length": Ending.CUT, "repetition": Ending.CUT}


def ending_of(finish_reason: str | None, *, num_tokens: int = 1) -> Ending:
    """Return what an engine's finish reason means. num_tokens: of what it sampled; without any
    there is no response."""
    if num_tokens == 0:
        return Ending.UNGRADED
    return ENDINGS.get(str(finish_reason), Ending.UNGRADED)
