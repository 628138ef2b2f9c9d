"""The records that every other file passes around. Plain values; no framework but numpy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class Verdict(StrEnum):
    """What the grader said about the final answer. UNGRADED is an absence, never a zero."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNGRADED = "ungraded"


class Context(StrEnum):
    """Which prompt a rollout was sampled from: the problem alone, or problem + stored attempt + guidance (ISR)."""

    PLAIN = "plain"
    REFLECTION = "reflection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The answer of a grader for one response."""

    verdict: Verdict
    reason: str  # "correct", "wrong", "no_answer", "timeout", "crashed", "unreachable", ...
    score: float | None  # 1.0 / 0.0, partial credit where a task has it; None when ungraded
    reward: float | None  # score plus length reward (METHOD: R is 0 or in [1, 2]); None when ungraded
    extracted: str | None = None  # the answer found inside the response
    seconds: float = 0.0  # wall clock spent grading


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyStatistics:
    """Peak and global token entropy of one response, in nats (METHOD section 6).

    `source` says where the numbers come from: "exact" (the actor's own logits), "topk" (bounds from the rollout
    engine's top-k log-probs that already decide the ranking; the numbers are then the lower bounds).
    """

    peak: float
    global_: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBounds:
    """What the engine's top-k log-probs prove about one response's peak and global entropy, in nats."""

    peak_lower: float
    peak_upper: float
    global_lower: float
    global_upper: float


@dataclass(slots=True, kw_only=True)
class Rollout:
    """One sampled response with its log-probs and grade. Arrays are one-dimensional."""

    uid: str
    context: Context
    prompt_ids: np.ndarray  # int32 [prompt tokens]
    response_ids: np.ndarray  # int32 [response tokens]
    response_logprobs: np.ndarray  # float32 [response tokens], under the sampling policy, natural log
    verdict: Verdict
    reward: float | None  # None when ungraded
    truncated: bool  # stopped by the token limit
    finish_reason: str
    policy_step: int  # optimizer steps of the weights that sampled it
    epoch: int  # 1 is the first pass over the data
    entropy: EntropyStatistics | None = None
    entropy_bounds: EntropyBounds | None = None
    text: str = ""  # decoded response, for people; the token ids are what counts
    reason: str = ""  # the grader's reason

    @property
    def num_tokens(self) -> int:
        return len(self.response_ids)
