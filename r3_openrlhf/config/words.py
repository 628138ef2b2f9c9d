"""Settings with a fixed set of words that are no part of the method."""

from typing import Any

from r3_openrlhf.method.types import Word

# OmegaConf's word for a value that must be given; the sections are read without OmegaConf, too.
MISSING: Any = "???"
ENVIRONMENT = "environment:"  # what data.path begins with in an agentic run


class TokenValues(Word):
    """Rows whose entropies and log-probs per token are kept in rollouts/: none; entropies of the rows that a ranking measured
    exactly and log-probs of recalled rows (when sampled, and now); or those of every row."""

    NONE = "none"
    USED = "used"
    ALL = "all"


class AgentEstimator(Word):
    """The estimator that makes advantages of the trajectories of a task (problems/agents/advantages.py): of whole trajectories, of steps at the same
    state as well (GiGPO), or of steps in a hierarchy of groups (HGPO)."""

    GRPO = "grpo"
    GIGPO = "gigpo"
    HGPO = "hgpo"


class LossAggregation(Word):
    """Weights of tokens in the loss: equal for tokens, or responses (`--actor.loss_agg_mode`)."""

    TOKEN_MEAN = "token-mean"
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"


class Device(Word):
    """The machine that a run asks for; AUTO starts on the CPU platform where CUDA is absent."""

    AUTO = "auto"
    CUDA = "cuda"
