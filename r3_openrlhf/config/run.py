"""`R3Config`: a whole run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from r3_openrlhf.config.agents import AgentsConfig, described
from r3_openrlhf.config.algorithms import ALGORITHMS, Algorithm
from r3_openrlhf.config.between_sections import check_sections
from r3_openrlhf.config.evaluations import HeldOutConfig
from r3_openrlhf.config.model_and_data import DataConfig, ModelConfig
from r3_openrlhf.config.rewards import RewardConfig
from r3_openrlhf.config.running import (
    CheckpointConfig,
    ClusterConfig,
    LoggingConfig,
    StopConfig,
)
from r3_openrlhf.config.sampling_and_training import RolloutConfig, TrainConfig
from r3_openrlhf.config.words import MISSING, TokenValues
from r3_openrlhf.method.checks import check_fields, word
from r3_openrlhf.method.core.estimators import ESTIMATORS, GroupEstimator
from r3_openrlhf.method.core.losses import LOSSES, LossSettings, TokenLoss
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import is_looking, looking_only
from r3_openrlhf.method.settings import R3Settings


@dataclass
class R3Config(R3Settings):
    """A whole run: the method's settings, and what a run needs besides them."""

    # r3 | rrl | OpenRLHF's own: ppo, grpo, dr_grpo, gspo, rloo, reinforce_pp, reinforce_pp_baseline, flash_reinforce, dapo | agents: trajectories, by agents.estimator
    algo: str = word("r3", ALGORITHMS)
    # name under which `r3 compare` groups runs that differ only in the seed; null: algo
    arm: str | None = None
    # directory of the run
    run_dir: str = MISSING
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    # further flags of OpenRLHF, like "actor.eps_clip: 0.3"
    openrlhf: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # keys -> their texts with ${oc.env:...}, where the user took them from the environment
        self.typed: dict[str, Any] = {}
        # read from its file: code that it names is never imported
        self.is_of_a_run = is_looking()
        self.passed_over: list[str] = []  # keys of a run's file that this version does not have
        check_fields(self)
        check_sections(self)
        if self.agents.tools and self.agents.tool_form == "template" and not is_looking():
            for part in (self.data, *self.data.parts.values()):
                part.chat_template_kwargs = part.chat_template_kwargs | {
                    "tools": list(map(described, self.agents.tools))
                }
        # OpenRLHF splits the data path, which is in run_dir, at commas and at "@".
        if any(mark in self.run_dir for mark in ",@"):
            raise ConfigError(
                f"run_dir is {quoted(self.run_dir)}; OpenRLHF cannot read paths with a comma or an @"
            )

    @property
    def algorithm(self) -> Algorithm:
        """The record of `algo`. ConfigError: there is none."""
        with looking_only(self.is_of_a_run):
            return ALGORITHMS[self.algo]

    def flag(self, name: str) -> Any:
        """One of OpenRLHF's own flags that this configuration passes on, or that `algo` is made of;
        None where neither. Both spellings work: {"a.b": true} and {"a": {"b": true}}."""
        flags: Any = self.openrlhf
        if name in flags:
            return flags[name]
        for part in name.split("."):
            flags = flags.get(part) if isinstance(flags, dict) else None
        return self.algorithm.flags.get(name) if flags is None else flags

    @property
    def estimator(self) -> GroupEstimator:
        """The estimator of a group's advantages: that of `algo`, or advantage.function."""
        return self.algorithm.group_estimator or ESTIMATORS[self.advantage.function]

    @property
    def loss(self) -> TokenLoss:
        """The loss of a token: that of `algo`, or train.loss; gspo is a flag of OpenRLHF, too."""
        flag = self.flag("actor.policy_loss_type")  # OpenRLHF's parser judges it
        word = flag if self.train.loss == "ppo" and flag in LOSSES else self.train.loss
        return self.algorithm.loss or LOSSES[word]

    @property
    def loss_name(self) -> str:
        """Name of that loss."""
        return (
            self.algo
            if self.algorithm.loss
            else str(self.flag("actor.policy_loss_type") or self.train.loss)
        )

    @property
    def loss_settings(self) -> LossSettings:
        """The bounds that a loss may read."""
        return LossSettings(self.train.eps_clip_low, self.train.eps_clip_high, self.dual_clip)

    @property
    def algorithm_name(self) -> str:
        """Name of the estimator of advantages: algo, or agents.estimator in an environment."""
        return str(self.agents.estimator) if self.is_agentic else self.algo

    @property
    def is_agentic(self) -> bool:
        """True if the rollouts are turns of trajectories in an environment."""
        return self.agents.environment is not None

    @property
    def keeps_history(self) -> bool:
        """True if the run keeps what it sampled in a history store. algo=r3 always does;
        trajectories are kept if they are recalled or reflected on."""
        recalls = "replay" in self.algorithm.mechanisms and (
            self.replay.enabled or self.reflection.enabled
        )
        return self.algorithm.keeps_history or recalls

    @property
    def has_imported(self) -> bool:
        """True if the store begins with successes from outside: of history.start, or collected before step 1."""
        return self.keeps_history and (
            self.history.start is not None or self.rollout.collect.share > 0
        )

    @property
    def measures_all_entropies(self) -> bool:
        """True if the entropy of every trained row is measured only for rollouts/."""
        measurable = self.algorithm.own_advantages and not self.is_agentic
        return measurable and self.logging.token_values == TokenValues.ALL

    @property
    def max_teacher_prompt_tokens(self) -> int:
        """Tokens of a teacher's prompt, at most: those of a plain one, and the success that is shown.

        Less where a response behind it would not fit into rollout.max_tokens_per_gpu: then longer
        successes are cut."""
        if self.distill.max_prompt_tokens is not None:
            return self.distill.max_prompt_tokens
        # a response is no longer
        success = min(self.distill.max_success_tokens, self.rollout.max_new_tokens)
        plain = self.data.max_len - self.rollout.max_new_tokens
        most = self.rollout.max_tokens_per_gpu
        if not self.train.dynamic_batch or most is None:
            return plain + success
        room = most - self.rollout.max_new_tokens
        return max(plain, min(plain + success, room))

    @property
    def longest_taught_row(self) -> int:
        """Tokens of a teacher's prompt and the response after it, at most."""
        return self.max_teacher_prompt_tokens + self.rollout.max_new_tokens

    @property
    def rows_per_step(self) -> int:
        """Fresh rollouts of a step; of an agentic run trajectories, with a row per turn."""
        return self.rollout.batch_size * self.rollout.n_samples_per_prompt

    @property
    def is_async(self) -> bool:
        """True if coming steps are sampled while one trains (openrlhf.train.async_enable)."""
        return bool(self.flag("train.async_enable"))

    @property
    def policy_gpus_per_node(self) -> int:
        """GPUs of a node for the policy: all, or half where engines sample all the time."""
        return self.cluster.gpus_per_node // (2 if self.is_async else 1)

    @property
    def num_policy_ranks(self) -> int:
        """Data-parallel ranks of the policy."""
        return self.cluster.num_nodes * self.policy_gpus_per_node

    @property
    def num_engines(self) -> int:
        """vLLM engines: on the policy's GPUs, or on the other half of them."""
        return self.num_policy_ranks // self.cluster.vllm_tensor_parallel_size

    @property
    def train_batch_size(self) -> int:
        """Rollouts per optimizer step."""
        return self.train.batch_size or self.rows_per_step

    def updates_of(self, num_rows: int) -> int:
        """Count the optimizer steps of a pass over this step's rows."""
        most = self.train.rows_per_update
        if most is None:
            return self.rows_per_step // self.train_batch_size
        return max(1, math.ceil(num_rows / most))

    @property
    def sequences_per_engine(self) -> int:
        """Responses that one vLLM engine decodes at once."""
        if self.cluster.vllm_max_num_seqs is not None:
            return self.cluster.vllm_max_num_seqs
        return min(1024, max(128, math.ceil(1.25 * self.rows_per_step / self.num_engines)))

    @property
    def dual_clip(self) -> float | None:
        """The bound on a ratio where the advantage is negative: openrlhf.actor.dual_clip, or
        replay.dual_clip where there is replay. None: no bound."""
        given = self.flag("actor.dual_clip")
        return self.replay.dual_clip if given is None and self.replay.enabled else given

    @property
    def critic_warmup_steps(self) -> int:
        """First steps that train only the critic: OpenRLHF's N + 1 (trainer/ppo_trainer.py:272)."""
        given = self.flag("critic.freezing_steps")
        return 0 if given is None else given + 1

    @property
    def filters_groups(self) -> bool:
        """True if groups without a difference are replaced by others (dynamic sampling)."""
        return self.algorithm.filters_groups or bool(self.flag("algo.dynamic_filtering_enable"))
