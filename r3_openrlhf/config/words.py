"""Settings with a fixed set of words that are no part of the method."""

from r3_openrlhf.method.types import Word


class TokenValues(Word):
    """Rows whose entropies and log-probs per token are kept in rollouts/: none; entropies of the rows that a ranking measured
    exactly and log-probs of recalled rows (when sampled, and now); or those of every row."""

    NONE = "none"
    USED = "used"
    ALL = "all"


class AgentEstimator(Word):
    """How the trajectories of a task become advantages (problems/agents/advantages.py): of whole trajectories, of steps at the same
    state as well (GiGPO), or of steps in a hierarchy of groups (HGPO)."""

    GRPO = "grpo"
    GIGPO = "gigpo"
    HGPO = "hgpo"


class Reading(Word):
    """Where HGPO's paper and its public code differ, which of them is followed (problems/agents/hierarchy.py).

    PAPER  a context that begins before the trajectory does is kept, cut off there; w_k = (k + 1)^alpha; a group of one
           step has no weight. The paper does not say which std; it is the sample's (n - 1), as everywhere in this project.
    CODE   a level k > t is left out; w_k = (k + 2)^alpha; an A_k of exactly 0 has no weight; std of the population (n).
    """

    PAPER = "paper"
    CODE = "code"


class LossAggregation(Word):
    """The weight of tokens in the loss: every token of a step weighs the same, or every response. OpenRLHF's words (`--actor.loss_agg_mode`)."""

    TOKEN_MEAN = "token-mean"
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"


class Device(Word):
    """Whether a run without CUDA starts on the CPU platform."""

    AUTO = "auto"
    CUDA = "cuda"
