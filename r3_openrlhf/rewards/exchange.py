"""A request as the grading processes take it, and what they say as a grade with its reward."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.machine.processes.worker import encode
from r3_openrlhf.method.core.rewards import outcome_reward
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.answers.request import GradeRequest, Outcome

MAX_RESPONSE_CHARS = 1_000_000  # of a longer response, the end


class GradingError(R3Error):
    """Grading as a whole cannot continue (a rollout that cannot be graded is data)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The answer of a grader for one response."""

    verdict: Verdict
    reason: str  # "correct", "wrong", "no_answer", "timeout", "crashed", "unreachable", ...
    score: float | None  # 1.0 / 0.0, partial credit where a task has it; None when ungraded
    # score plus length reward (METHOD: R is 0 or in [1, 2]), or a function's; None: ungraded
    reward: float | None
    extracted: str | None = None  # the answer found inside the response
    seconds: float = 0.0  # wall clock spent grading
    # further values of a reward function; "error": why none
    extras: dict[str, float | str] = field(default_factory=dict)


def grade_of(outcome: Outcome, num_tokens: int, config: RewardConfig) -> Grade:
    """Return the grade with its reward, the one place where score and length reward meet (METHOD
    section 3). What a user's own function returned is the reward as it is."""
    reward = outcome.reward
    if reward is None and outcome.score is not None:
        reward = outcome_reward(
            outcome.score, num_tokens, max_tokens=config.length_reward_max_tokens
        )
    values = msgspec.structs.asdict(outcome) | {
        "verdict": Verdict(outcome.verdict),
        "reward": reward,
    }
    del values["detail"]
    return Grade(**values)


def encode_request(request: GradeRequest) -> msgspec.Raw:
    """Encode the request as bytes, equal for equal requests.
    GradingError: metadata or row is not plain data."""
    item = msgspec.structs.replace(
        request,
        response=_encodable(request.response[-MAX_RESPONSE_CHARS:]),
        references=tuple(map(_encodable, request.references)),
        problem=_encodable(request.problem),
        prompt=_encodable(request.prompt),
        group=tuple((_encodable(text), *more) for text, *more in request.group),
    )
    try:
        return msgspec.Raw(encode(item))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise GradingError(
            f"the metadata or row of an item cannot be sent to a grading process: {error}"
        ) from error


def in_group(requests: Sequence[GradeRequest]) -> list[GradeRequest]:
    """Give each of the requests about all responses to one prompt all of the responses."""
    group = tuple(
        (one.response[-MAX_RESPONSE_CHARS:], one.num_tokens, one.truncated) for one in requests
    )
    return [
        msgspec.structs.replace(one, group=group, place=place)
        for place, one in enumerate(requests)
    ]


def _encodable(text: str) -> str:
    """Lone surrogates, which JSON can carry and UTF-8 cannot, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
