"""The records that every other file passes around, and the words that have a fixed set of values.
Plain values; no framework but numpy."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Self

import numpy as np

from r3_openrlhf.method.errors import InvalidValue, quoted


class Word(StrEnum):
    """One of a fixed set of words, equal to the same plain text; `checked` validates what a user gives."""

    @classmethod
    def checked(cls, name: str, value: str) -> Self:
        """Return the member that `value` spells. InvalidValue: argument, value and the words there are."""
        try:
            return cls(value)
        except ValueError:
            near = difflib.get_close_matches(str(value), list(cls), n=1, cutoff=0.5)
            hint = f"did you mean {str(near[0])!r}? " if near else ""
            raise InvalidValue(
                f"{name} is {quoted(value)}; {hint}it must be one of {', '.join(cls)}"
            ) from None


class Verdict(Word):
    """The grader's verdict on the final answer. UNGRADED is an absence, never a zero."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNGRADED = "ungraded"


class Context(Word):
    """The start of a rollout: after the problem alone, after the problem with a stored attempt and
    guidance (ISR), or after the problem and the first tokens of a stored response
    (method/core/states.py). IMPORTED: after the problem alone, and not sampled by this run. HINT: after
    the problem with its reference answer."""

    PLAIN = "plain"
    REFLECTION = "reflection"
    PREFIX = "prefix"
    IMPORTED = "imported"
    HINT = "hint"


class HardBy(Word):
    """The measure of a problem's stored rollouts that reflection.threshold is compared with."""

    SUCCESS_RATE = "success_rate"
    REWARD = "reward"


class ReplayMode(Word):
    """Recalled rollouts join a collapsed group [P], or replace as many fresh ones."""

    ADD = "add"
    REPLACE = "replace"


class OldLogprobs(Word):
    """The old log-probs of a recalled rollout: of its sampling, or the current policy's."""

    BEHAVIOUR = "behaviour"
    RECOMPUTE = "recompute"


class AdvantageScope(Word):
    """Alpha of eq. 3 damps a group that recalled something, or only its recalled rows."""

    MIXED_GROUPS = "mixed_groups"
    OFF_POLICY_ONLY = "off_policy_only"


class RankingScope(Word):
    """The ranked failures of an all-wrong group: truncated (algorithm 1) or all (abstract)."""

    TRUNCATED = "truncated"
    FAILED = "failed"


class RankingGuard(Word):
    """The guard against paid truncation (method/core/mixed_batch.py); `none`: the paper's."""

    NONE = "none"
    NO_STD = "no_std"
    CENTRED = "centred"


class EntropySource(Word):
    """The source of entropy statistics: the policy's own logits, the engine's top-k log-probs, or
    exact ones wherever those do not decide."""

    AUTO = "auto"
    EXACT = "exact"
    TOPK = "topk"


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array of `ndim` dimensions. `low` and `high` are included; `what` describes the values.

    narrow: a smaller type, which an array that has it keeps."""

    dtype: type[np.generic]
    low: float
    high: float
    what: str
    ndim: int = 1
    narrow: type[np.generic] | None = None

    @property
    def shape(self) -> str:
        """The dimensions in words."""
        return {1: "a one-dimensional", 3: "a three-dimensional"}[self.ndim]


TokenIds = Annotated[
    np.ndarray, ArrayOf(np.int32, 0, 2**31 - 1, "token ids (int32, 0 or more)")
]
# 0 but for a kernel's rounding
LogProbs = Annotated[
    np.ndarray,
    ArrayOf(np.float32, -3e38, 1e-4, "finite natural log-probs of at most 0 (float32)"),
]
TokenEntropies = Annotated[
    np.ndarray, ArrayOf(np.float16, -1e-4, 65504, "finite entropies of at least 0, in nats")
]

ExpertIds = Annotated[
    np.ndarray,
    ArrayOf(
        np.uint16,
        0,
        2**15 - 1,
        "numbers of experts (uint8 or uint16)",
        ndim=3,
        narrow=np.uint8,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyStatistics:
    """Peak and global token entropy of one response, in nats (METHOD section 6).

    `source` is "exact" (the actor's own logits) or "topk" (lower bounds from the rollout engine's
    top-k log-probs, which already decide the ranking)."""

    peak: float
    global_: float
    source: str  # EntropySource, but never "auto"
    # float16 [T], nats
    tokens: TokenEntropies | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if EntropySource.checked("source", self.source) is EntropySource.AUTO:
            raise ValueError("source is 'auto'; statistics come from 'exact' or 'topk'")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBounds:
    """Bounds by the engine's top-k on a response's peak and global entropy, in nats."""

    peak_lower: float
    peak_upper: float
    global_lower: float
    global_upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """A response's turn, and the environment's answer to it (problems/agents/trajectory.py)."""

    trajectory: str  # equal for a trajectory's turns, unique in its task
    index: int  # of the turn, from 0
    state: str  # what it acted in: turns are compared where it is equal
    reward: float | None  # the environment's for this turn; None: it gave no answer
    step_return: float | None  # discounted rewards from here on; None: lost
    valid: bool | None  # was the response an action that the state allows? None: no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """One turn of a trajectory that is kept as a whole (Rollout.turns)."""

    prompt_ids: TokenIds  # [prompt tokens]
    num_tokens: int  # of its response, among the trajectory's response_ids
    state: str  # turns are compared where it is equal
    observation: str  # the state as the policy read it
    action: str  # what was found in the response; "": nothing
    reward: float  # the environment's for this turn
    valid: bool
    truncated: bool
    prompt: str = ""  # the user turn of the chat; "": not kept


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisingState:
    """A cut of a failed response from which it may be continued (method/core/states.py).

    Attributes:
        num_tokens: length of the prefix of the response.
        value: the critic's value of that prefix.
        earlier: shorter ones, for when its continuations fail.
    """

    num_tokens: int
    value: float
    earlier: tuple[PromisingState, ...] = ()

    @property
    def cuts(self) -> list[tuple[int, float]]:
        """(num_tokens, value) of all, the longest first."""
        return [(one.num_tokens, one.value) for one in (self, *self.earlier)]


@dataclass(slots=True, kw_only=True)
class Rollout:
    """One sampled response with its log-probs and grade. Arrays are one-dimensional, but for experts.

    Attributes:
        uid: the problem, the same at every visit.
        prompt_ids: int32 [prompt tokens]; response_ids: int32 [response tokens].
        response_logprobs: float32 [response tokens], natural log, under the policy that sampled it;
            empty where an imported rollout's are not known.
        truncated: the token limit ended it.
        policy_step: optimizer step of the weights that sampled it.
        epoch: pass over the data, from 1.
        text: the decoded response, for people; only the token ids are trained.
        answer: the final answer in the response; None: there is none, or it is not known any more.
        given: runs (begin, end) of response tokens that were given and not sampled, in order: a
            prefix, or a tool's answers. Nothing trains or measures them; their log-probs are those of
            another response, or 0.
        state: of a failed response, the state that a critic's values name; None when recalled.
        turn: of a response to an environment.
        turns: of a whole trajectory, whose response_ids are those of all turns, and whose
            prompt_ids are the first turn's.
        extras: what the reward function returned with the reward; empty when recalled.
        experts: of a model with experts, those that the sampling engine chose: uint8 or uint16
            [tokens, layers, experts of a token] of prompt and response but for the last token, which the
            engine never passed through the model; None: not kept (rollout.routing_replay).
        pieces: (tokens, policy step of the weights that sampled them) in order, where it was paused
            (rollout.partial) and policy_step is that of the first; (): all tokens are of policy_step.
        origin: of an imported rollout, where it is from.

    Raises:
        InvalidValue: the context or the verdict does not exist. The class R3 and the history check
            all fields, and convert what a field holds exactly (method/values.py)."""

    uid: str
    context: Context
    prompt_ids: TokenIds
    response_ids: TokenIds
    response_logprobs: LogProbs
    verdict: Verdict
    reward: float | None  # None when ungraded
    truncated: bool
    finish_reason: str
    policy_step: int
    epoch: int
    entropy: EntropyStatistics | None = None
    entropy_bounds: EntropyBounds | None = None
    text: str = ""
    reason: str = ""
    answer: str | None = None
    given: tuple[tuple[int, int], ...] = ()
    state: PromisingState | None = None
    turn: TurnFacts | None = None
    turns: tuple[PlayedTurn, ...] | None = None
    extras: dict[str, float | str] = field(default_factory=dict)
    origin: str = ""
    pieces: tuple[tuple[int, int], ...] = ()
    experts: ExpertIds | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.context = Context.checked("context", self.context)
        self.verdict = Verdict.checked("verdict", self.verdict)

    @property
    def graded_reward(self) -> float:
        """The reward of a graded rollout. ValueError where there is none: absence is not zero."""
        if self.reward is None:
            raise ValueError(
                f"the rollout of problem {self.uid} is {self.verdict} and has no reward; grade it first"
            )
        return float(self.reward)

    @property
    def has_logprobs(self) -> bool:
        """True if the log-probs from sampling are known."""
        return len(self.response_logprobs) == len(self.response_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of the response, given ones included."""
        return len(self.response_ids)

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens of the response that were sampled: what it cost."""
        return len(self.response_ids) - sum(end - begin for begin, end in self.given)

    @property
    def sampled(self) -> np.ndarray:
        """The mask of the tokens that were sampled: bool [response tokens]."""
        mask = np.ones(len(self.response_ids), dtype=bool)
        for begin, end in self.given:
            mask[begin:end] = False
        return mask

    @property
    def policy_steps(self) -> np.ndarray:
        """Optimizer steps of the weights that sampled each token: int64 [response tokens]."""
        if not self.pieces:
            return np.full(len(self.response_ids), self.policy_step, dtype=np.int64)
        lengths, steps = zip(*self.pieces, strict=True)
        return np.repeat(np.array(steps, dtype=np.int64), lengths)

    @property
    def prefix_tokens(self) -> int:
        """The number of first tokens that were given: the state that it continues."""
        return self.given[0][1] if self.given and self.given[0][0] == 0 else 0
