"""Problems of an evaluation, with responses."""

from r3_openrlhf.evaluation.sample_file import (
    SampledProblem,
    sampled,
)
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.exchange import Grade


def response(
    token_ids, *, finish_reason="stop", verdict=Verdict.WRONG, extracted="4", text="it is 4"
):
    score = None if verdict is Verdict.UNGRADED else float(verdict is Verdict.CORRECT)
    grade = Grade(
        verdict=verdict, reason=verdict.value, score=score, reward=None, extracted=extracted
    )
    return sampled(text, token_ids, finish_reason).graded(grade)


def problem(uid, *responses, benchmark="math500", content="c"):
    return SampledProblem(
        benchmark=benchmark, uid=uid, content=content, responses=list(responses)
    )
