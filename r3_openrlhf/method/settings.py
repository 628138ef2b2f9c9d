"""The settings of the method, for `R3` and as sections of a run's configuration. Plain dataclasses.

`[P]` after a default: the paper says so; every other default is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from r3_openrlhf.method.checks import Section, number, word
from r3_openrlhf.method.core.distill import (
    DISTILL_LOSSES,
    SOURCES,
    WEIGHTS,
    GroupAdvantage,
    Shown,
    Support,
    TaughtRows,
    Teacher,
)
from r3_openrlhf.method.core.estimators import ESTIMATORS, GroupEstimator
from r3_openrlhf.method.core.losses import IMPORTED_WEIGHTS
from r3_openrlhf.method.core.ranking import RANKING_SCORES
from r3_openrlhf.method.core.replay import RECALL_ORDERS
from r3_openrlhf.method.core.states import CUTS
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import Name
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
class AdvantageSettings(Section, prefix="advantage."):
    """Eq. 3: A_i = (R_i - mean) / (alpha * std + lambda) over the mixed group, or another estimator."""

    # estimator of a group: group_norm (eq. 3) [P], rloo, dr_grpo, maxrl, nsr, w_reinforce, gpg, or
    # package.module:function
    function: Name = word("group_norm", ESTIMATORS)
    # alpha, factor on the standard deviation of groups that recalled something; above 1 it damps them
    alpha: float = number(1.0, above=0)
    # lambda, added to the standard deviation
    std_eps: float = number(1e-9, min=0)
    # rows of such a group that alpha damps: all (mixed_groups), or recalled ones (off_policy_only)
    scope: str = word("mixed_groups", AdvantageScope)
    # factor on what a correct verdict is worth in an advantage (R³L, arXiv 2601.03715: 3)
    success_scale: float = number(1.0, above=0)

    def __post_init__(self) -> None:
        if self.scope == "literal":
            raise ConfigError(
                "advantage.scope is 'literal', which damped every group alike; use mixed_groups (eq. 3)"
            )
        super().__post_init__()


@dataclass
class RehearsalSettings(Section, prefix="replay.rehearse."):
    """Stored successes of rarely solved problems of other steps join the update, unsampled."""

    # stored successes added to a step, as a largest share of its sampled rows; 0: off
    share: float = number(0.0, min=0, max=1)
    # step at which that share has fallen to 0, on a straight line from step 0; null: it stays
    until: int | None = number(None, min=1)


@dataclass
class ImportedSettings(Section, prefix="replay.imported."):
    """Successes that history.start brings. They count in no rate, have no age limit and a cap of their own."""

    # recall: into all-wrong groups; rehearse: as replay.rehearse; both; prefix: a never solved problem gets one
    # more group, which begins with a part of a success; all
    use: str = word("both", ("recall", "rehearse", "prefix", "both", "all"))
    # places of replay.k that these rows alone take, in every group that recalls a success; null: they are
    # chosen among the policy's own
    k: int | None = number(None, min=1, max=MAX_RECALLED)
    # groups that begin with a part of a success, as a largest share of the step's problems
    prefix_share: float = number(0.25, above=0, max=1)
    # clip: ratio against the first policy's log-probs, which eps_clip bounds; ratio1; shaped: ratio 1, advantage
    # times c p / (p + c)^2, c = 0.1 (LUFFY); or package.module:function of p
    weight: Name = word("clip", IMPORTED_WEIGHTS)
    # rows of a lower mean log-prob under the first policy (nats a token) are set aside as a foreign style; null: none
    min_logprob: float | None = number(-4.0, max=0)
    # passes of supervised training over these rows and those of rollout.collect before step 1; 0: none
    warm_start: int = number(0, min=0)
    # learning rate of that training, in those of train.learning_rate
    warm_start_scale: float = number(1.0, above=0)
    # rows of one of its updates; null: train.batch_size
    warm_start_batch_size: int | None = number(None, min=1)
    # rows below -4 nats a token may enter a warm start, or updates that weight and train.loss do not bound
    foreign: bool = False


@dataclass
class ReplaySettings(Section, prefix="replay."):
    """CCR: a collapsed group is joined by the problem's past rollouts of the opposite verdict."""

    enabled: bool = True
    # groups that recall: collapsed, the opposite verdict [P]; all, a success
    groups: str = word("collapsed", ("collapsed", "all"))
    # rows recalled per group, at most
    k: int = number(
        2, min=1, max=MAX_RECALLED, instead=f"use 1 to {MAX_RECALLED}, or replay.enabled=false"
    )
    # age in optimizer steps up to which rollouts are recalled
    max_policy_lag: int = number(1000, min=1, instead="use 1 or more, or replay.enabled=false")
    # order of recall: uniform, newest, lowest_entropy, or package.module:function (method/core/replay.py)
    order: Name = word("uniform", RECALL_ORDERS)
    # add: the group has G + k rows [P]; replace: recalled rows replace k of its rows
    mode: str = word("add", ReplayMode)
    # old log-probs of recalled rows. behaviour: those stored when sampled, so eps_clip bounds the update;
    # recompute: the current actor's, so the ratio is 1
    old_logprobs: str = word("behaviour", OldLogprobs)
    # bound dual_clip |A| on the loss of a token with A < 0, which eps_clip does not bound; null: only exp(20)
    # does, as in OpenRLHF
    dual_clip: float | None = number(3.0, above=1)
    # recall failures into all-correct groups; [P] false: those groups stay as they are
    recall_failures: bool = True
    # rollouts of reflection prompts count like plain ones [P]: they are recalled (failures only with recompute),
    # decide what is hard, and are shown as errors
    include_reflection: bool = False
    rehearse: RehearsalSettings = field(default_factory=RehearsalSettings)
    imported: ImportedSettings = field(default_factory=ImportedSettings)


@dataclass
class ReflectionSettings(Section, prefix="reflection."):
    """ISR: hard problems get one more group, from a prompt that shows a stored error."""

    enabled: bool = True
    # tau: a problem is hard when hard_by of its stored plain rollouts (replay.include_reflection: all) is below
    # this
    threshold: float = number(0.1, above=0)
    # success_rate: share of right rollouts; reward: mean reward with its length reward [P]
    hard_by: str = word("success_rate", HardBy)
    # largest share of a step's problems that get a reflection group (one always may)
    max_share: float = number(0.03125, above=0, max=1)
    # show the reference answer instead of a stored error; successes are recalled after the plain prompt and count
    # in no rate
    hint: bool = False
    # tokens of the stored attempt, at most
    max_attempt_tokens: int = number(2048, min=1)


@dataclass
class RankingSettings(Section, prefix="ranking."):
    """SERR: truncated failures of an all-wrong group are ranked by entropy."""

    enabled: bool = True
    # p: share of a response's tokens whose mean entropy is the peak entropy
    peak_fraction: float = number(0.2, above=0, max=1)
    # R_max, always below 1
    max_reward: float = number(
        0.5,
        above=0,
        below=1,
        instead="use a number between 0 and 1, both excluded, so that no failure can earn as much as a correct answer",
    )
    # rows that are ranked: truncated (algorithm 1) [P], or failed (the paper's abstract)
    scope: str = word("truncated", RankingScope)
    # entropy: high peak and low global entropy [P]; logprob: mean log-prob of the response at sampling; or
    # package.module:function
    score: Name = word("entropy", RANKING_SCORES)
    # exact: from the actor's logits; topk: bounds from the engine's 20 largest logits per token; auto: exact only
    # if the bounds do not decide
    entropy_source: str = word("exact", EntropySource)
    # centred: a ranking has mean 0, and in a group without a success it is not scaled by the std; no_std: the
    # second only; none: the paper's formulas [P]
    guard: str = word("centred", RankingGuard)


@dataclass
class DistillSettings(Section, prefix="distill."):
    """A teacher from the store: the policy, once it has read a success, scores a response's tokens."""

    # factor on the teacher's part of the loss; 0: off
    coef: float = number(0.0, min=0)
    # weights that score: today's policy, or average, a moving average of its weights (SDPO)
    teacher: str = word("policy", Teacher)
    # share of the policy that joins this average after each step (SDPO: .05); 0: the first policy stays
    update_rate: float = number(0.05, min=0, max=1)
    # fresh rows that are taught: failed (SRPO), or all (SDPO)
    rows: str = word("failed", TaughtRows)
    # rows that keep their group's advantage: all, untaught (SRPO), or none (SDPO)
    group_advantage: str = word("all", GroupAdvantage)
    # success that is shown: any (of the group, without one of the store), group (SDPO), stored, imported, or
    # package.module:function of both lists
    source: Name = word("any", SOURCES)
    # without any success the teacher reads the reference answer
    answer: bool = False
    # besides the success: nothing more (success), that an attempt failed (verdict), or a stored error (error)
    shows: str = word("success", Shown)
    # policy_gradient: the gap of the sampled token joins its advantage; reverse_kl, forward_kl, jensen_shannon: on
    # top_k tokens and the rest as one class; or package.module:function of both log-probs
    loss: Name = word("policy_gradient", DISTILL_LOSSES)
    # likeliest tokens at each position that those losses compare
    top_k: int = number(20, min=1, max=1000)
    # of the teacher, or of the student: the policy before the update (SDPO)
    support: str = word("teacher", Support)
    # those losses times the ratio to the old policy, at most this (SDPO: 2); null: without that ratio
    max_ratio: float | None = number(None, min=1)
    # largest gap of a token, nats; null: none
    bound: float | None = number(5.0, above=0)
    # weight of a token by its teacher's entropy: equal, confident, or package.module:function
    weight: Name = word("equal", WEIGHTS)
    # taught rows, as a largest share of the step's fresh ones
    max_share: float = number(1.0, above=0, max=1)
    # tokens of the success that is shown, at most; its middle is cut
    max_success_tokens: int = number(2048, min=1)
    # tokens of the teacher's prompt, at most; null: a plain prompt's limit and max_success_tokens together, less
    # where rollout.max_tokens_per_gpu has less room
    max_prompt_tokens: int | None = number(None, min=1)
    # text of the teacher's user turn with {problem} and {solution}; null: ours
    template: str | None = None

    @property
    def enabled(self) -> bool:
        """True if rows are taught."""
        return self.coef > 0

    @property
    def averages(self) -> bool:
        """True if rows are taught by a moving average."""
        return self.enabled and self.teacher == Teacher.AVERAGE

    @property
    def needs_entropy(self) -> bool:
        """True if the weight of a token reads its teacher's entropy."""
        return WEIGHTS[self.weight].needs_entropy

    @property
    def compares_logits(self) -> bool:
        """True if the loss compares the teacher's likeliest tokens, and no term joins the advantages."""
        return DISTILL_LOSSES[self.loss].function is not None


@dataclass
class StateReplaySettings(Section, prefix="exploration.rrl."):
    """Groups from promising states of failed responses and imported solutions, by a critic (RRL, arXiv 2504.14363)."""

    # largest share of a batch's groups that start from a stored state; 0: off
    ratio: float = number(0.0, min=0, below=1)
    # cut of a failed response: value, where the critic's value is largest; random, the control; or
    # package.module:function
    cut: Name = word("value", CUTS)
    # states are cut only in steps in which the critic explains this share of the returns' variance
    min_explained_variance: float = number(0.1, max=1)
    # share of the response limit that a continuation has left, at least
    min_continuation: float = number(0.5, min=0, below=1)


@dataclass
class ExplorationSettings(Section, prefix="exploration."):
    """Tokens for more than the paper's mechanisms; all off by default."""

    rrl: StateReplaySettings = field(default_factory=StateReplaySettings)


@dataclass
class HistorySettings(Section, prefix="history."):
    """The store of past rollouts (a SQLite file per run). Limits apply from the next commit on."""

    # directory of `r3 history import` with the store's first successes; null: empty
    start: str | None = None
    # recallable rollouts of a problem with one verdict
    max_per_problem_and_verdict: int = number(32, min=1)
    # further ones with a state of exploration.rrl; the newest leave first
    max_states_per_problem: int = number(16, min=1)
    # bytes of the whole file
    max_bytes: int = number(20_000_000_000, min=1_000_000)


@dataclass
class R3Settings(Section):
    """Settings of the method. A run's configuration (`R3Config`) has these sections and others."""

    advantage: AdvantageSettings = field(default_factory=AdvantageSettings)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    reflection: ReflectionSettings = field(default_factory=ReflectionSettings)
    ranking: RankingSettings = field(default_factory=RankingSettings)
    distill: DistillSettings = field(default_factory=DistillSettings)
    exploration: ExplorationSettings = field(default_factory=ExplorationSettings)
    history: HistorySettings = field(default_factory=HistorySettings)

    @property
    def estimator(self) -> GroupEstimator:
        """The estimator of a group's advantages."""
        return ESTIMATORS[self.advantage.function]

    @property
    def ranks_by_entropy(self) -> bool:
        """True if a ranking needs the entropies of its rows."""
        return self.ranking.enabled and RANKING_SCORES[self.ranking.score].needs_entropy
