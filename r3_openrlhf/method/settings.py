"""The settings of the method, for `R3` and as sections of a run's configuration. Plain dataclasses.

`[P]` after a default: the paper says so; every other default is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from r3_openrlhf.method.checks import above, at_least, one_of
from r3_openrlhf.method.core.ranking import RANKING_SCORES
from r3_openrlhf.method.core.replay import RECALL_ORDERS
from r3_openrlhf.method.core.states import STATE_ORDERS, STATE_RULES
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import (
    AdvantageScope,
    EntropySource,
    HardBy,
    OldLogprobs,
    RankingGuard,
    RankingScope,
    ReplayMode,
)

MAX_RECALLED = 10_000  # rows per group: more than any group has; it would only take memory


@dataclass
class AdvantageSettings:
    """Eq. 3: A_i = (R_i - mean) / (alpha * std + lambda) over the mixed group."""

    # alpha, factor on the standard deviation; above 1 it damps the group
    alpha: float = 1.0
    # lambda; with alpha 1 and no recall this is OpenRLHF's group_norm
    lam: float = 1e-9
    # apply alpha to the whole mixed group (literal), or to recalled rows only (off_policy_only)
    scope: str = "literal"
    # factor on positive advantages of correct rows (R³L, arXiv 2601.03715: 3)
    success_scale: float = 1.0

    def __post_init__(self) -> None:
        above("advantage.success_scale", self.success_scale, 0.0)
        above("advantage.alpha", self.alpha, 0.0)
        at_least("advantage.lam", self.lam, 0.0)
        one_of("advantage.scope", self.scope, AdvantageScope)


@dataclass
class RehearsalSettings:
    """Stored successes of rarely solved problems that are not in this step join the update; nothing is sampled for them."""

    # stored successes added to a step, at most, as a share of its sampled rows; 0: off
    share: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ConfigError(f"replay.rehearse.share is {self.share}; use a share of the step's rows from 0 to 1")


@dataclass
class ReplaySettings:
    """CCR: when a group collapses, past rollouts of the same problem with the opposite verdict join it."""

    enabled: bool = True
    # rows recalled per collapsed group, at most
    k: int = 2
    # age in optimizer steps up to which rollouts are recalled
    max_policy_lag: int = 1000
    # order of recall: uniform, newest, or package.module:function (method/core/replay.py)
    order: str = "uniform"
    # add: the group has G + k rows [P]; replace: recalled rows replace k of the group's rows, constant cost
    mode: str = "add"
    # old log-probs of recalled rows. behaviour: those stored when sampled, so that eps_clip bounds the update; recompute: the
    # current actor's, so that the ratio is 1 and nothing is clipped
    old_logprobs: str = "behaviour"
    # bound dual_clip |A| on the loss of a recalled row's token with A < 0, which eps_clip does not bound; null: only exp(20) bounds
    # it, as in OpenRLHF (docs/method.md)
    dual_clip: float | None = 3.0
    # recall failures into all-correct groups; [P] false: those groups stay as they are
    recall_failures: bool = True
    # recall rollouts of reflection prompts into plain groups
    include_reflection: bool = False
    rehearse: RehearsalSettings = field(default_factory=RehearsalSettings)

    def __post_init__(self) -> None:
        for key, value in (("replay.k", self.k), ("replay.max_policy_lag", self.max_policy_lag)):
            if value < 1:
                raise ConfigError(f"{key} is {value}; use 1 or more, or replay.enabled=false")
        if self.k > MAX_RECALLED:
            raise ConfigError(f"replay.k is {self.k}; use {MAX_RECALLED} or less")
        at_least("replay.max_policy_lag", self.max_policy_lag, 1)
        above("replay.dual_clip", self.dual_clip, 1.0)
        RECALL_ORDERS[self.order]
        one_of("replay.mode", self.mode, ReplayMode)
        one_of("replay.old_logprobs", self.old_logprobs, OldLogprobs)


@dataclass
class ReflectionSettings:
    """ISR: hard problems get one more group, from a prompt that shows a stored error."""

    enabled: bool = True
    # tau: a problem is hard when hard_by of its stored rollouts (plain prompts) is below this
    threshold: float = 0.1
    # success_rate: share of right rollouts; reward: mean reward, a length reward included [P] reward
    hard_by: str = "success_rate"
    # reflection groups of a step, at most, as a share of its problems (one group is always allowed). They cost
    # tokens that plain groups need (docs/RESULTS.md)
    max_share: float = 0.03125
    # tokens of the stored attempt, at most; fewer if the context is too long
    max_attempt_tokens: int = 2048

    def __post_init__(self) -> None:
        above("reflection.threshold", self.threshold, 0.0)
        one_of("reflection.hard_by", self.hard_by, HardBy)
        if not 0.0 < self.max_share <= 1.0:
            raise ConfigError(
                f"reflection.max_share is {self.max_share}; use a share of the step's problems above 0, up to 1"
            )
        at_least("reflection.max_attempt_tokens", self.max_attempt_tokens, 1)


@dataclass
class RankingSettings:
    """SERR: truncated failures of an all-wrong group are ranked by entropy."""

    enabled: bool = True
    # p: share of a response's tokens whose mean entropy is the peak entropy
    peak_fraction: float = 0.2
    # R_max, always below 1
    max_reward: float = 0.5
    # rows that are ranked: truncated (algorithm 1) [P], or failed (the paper's abstract)
    scope: str = "truncated"
    # entropy: high peak and low global entropy [P]; logprob: the mean log-prob of the response's tokens when it was
    # sampled; or package.module:function (method/core/ranking.py)
    score: str = "entropy"
    # exact: entropy from the actor's own logits; topk: bounds from the engine's 20 largest logits per token; auto: exact only if
    # the bounds do not decide
    entropy_source: str = "exact"
    # centred: the mean of a ranking is the reward of a failure that is not ranked, and a group whose only difference is a
    # ranking is not scaled to unit std; no_std: the second only; none: the paper's formulas [P]
    guard: str = "centred"

    def __post_init__(self) -> None:
        if not 0.0 < self.peak_fraction <= 1.0:
            raise ConfigError(f"ranking.peak_fraction is {self.peak_fraction}; use a fraction above 0, up to 1")
        if not 0.0 < self.max_reward < 1.0:
            raise ConfigError(
                f"ranking.max_reward is {self.max_reward}; use a number between 0 and 1, both excluded, so that no "
                "failure can earn as much as a correct answer"
            )
        one_of("ranking.scope", self.scope, RankingScope)
        RANKING_SCORES[self.score]
        one_of("ranking.entropy_source", self.entropy_source, EntropySource)
        one_of("ranking.guard", self.guard, RankingGuard)


@dataclass
class StateReplaySettings:
    """Groups that start from promising states of failed responses, found by a critic (RRL, arXiv 2504.14363); for algo=rrl."""

    # largest share of a batch's groups that start from a stored state; 0: off
    ratio: float = 0.0
    # state of a failed response that is stored, by the values of its tokens: largest, before_fall (the point before the largest one), or
    # package.module:function (method/core/states.py)
    rule: str = "largest"
    # order of the stored states: promising (by value, novelty and age), uniform, or package.module:function
    order: str = "promising"

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio < 1.0:
            raise ConfigError(f"exploration.rrl.ratio is {self.ratio}; use a share from 0 to below 1")
        STATE_RULES[self.rule]
        STATE_ORDERS[self.order]


@dataclass
class ExplorationSettings:
    """Where tokens go besides the paper's mechanisms; all off by default."""

    rrl: StateReplaySettings = field(default_factory=StateReplaySettings)


@dataclass
class HistorySettings:
    """The store of past rollouts (one SQLite file per run). Limits apply from the next commit on, also to what older limits kept."""

    # recallable rollouts of one problem with one verdict, contexts together
    max_per_problem_and_verdict: int = 32
    # bytes of the whole file, by the store's own accounting (docs/history.md)
    max_bytes: int = 20_000_000_000

    def __post_init__(self) -> None:
        at_least("history.max_per_problem_and_verdict", self.max_per_problem_and_verdict, 1)
        at_least("history.max_bytes", self.max_bytes, 1_000_000)


@dataclass
class R3Settings:
    """Settings of the method. A run's configuration (`R3Config`) has these sections and others."""

    advantage: AdvantageSettings = field(default_factory=AdvantageSettings)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    reflection: ReflectionSettings = field(default_factory=ReflectionSettings)
    ranking: RankingSettings = field(default_factory=RankingSettings)
    exploration: ExplorationSettings = field(default_factory=ExplorationSettings)
    history: HistorySettings = field(default_factory=HistorySettings)

    @property
    def ranks_by_entropy(self) -> bool:
        """True if a ranking needs the entropies of its rows."""
        return self.ranking.enabled and RANKING_SCORES[self.ranking.score].needs_entropy
