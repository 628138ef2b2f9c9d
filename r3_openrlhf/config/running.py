"""The sections `cluster`, `checkpoint`, `stop` and `logging`."""

from __future__ import annotations

from dataclasses import dataclass

from r3_openrlhf.config.reward_functions import placed
from r3_openrlhf.config.words import Device, TokenValues
from r3_openrlhf.method.checks import Section, check_fields, number, word
from r3_openrlhf.method.errors import ConfigError


@dataclass
class ClusterConfig:
    """The machines. All models are colocated: actor, reference and vLLM share the same GPUs."""

    # number of machines
    num_nodes: int = number(1, min=1)
    # GPUs of each machine
    gpus_per_node: int = number(8, min=1)
    # GPUs that hold one engine together
    vllm_tensor_parallel_size: int = number(1, min=1)
    # share of a GPU's memory that an engine may use
    vllm_gpu_memory_utilization: float = number(0.6, above=0, below=1)
    # sequences that an engine decodes at once. null: 1.25 times its rollouts of a step, from 128 (vLLM's own) to
    # 1024
    vllm_max_num_seqs: int | None = number(None, min=1)
    # offload vLLM while training and DeepSpeed while sampling
    enable_sleep: bool = True
    # minutes that a run waits until Ray has its GPUs, with a CPU each, free
    placement_minutes: float = number(60, above=0)
    # cuda: refuse to start without it | auto: the CPU platform if CUDA is absent
    device: str = word("auto", Device)

    def __post_init__(self) -> None:
        check_fields(self, "cluster.")
        if self.num_ranks % self.vllm_tensor_parallel_size:
            raise ConfigError(
                f"cluster.vllm_tensor_parallel_size is {self.vllm_tensor_parallel_size}, which does not divide the "
                f"{self.num_ranks} GPUs of {self.num_nodes} nodes x {self.gpus_per_node}"
            )

    @property
    def num_ranks(self) -> int:
        """GPUs; each holds a policy rank and a share of an engine (R3Config.is_async: or)."""
        return self.num_nodes * self.gpus_per_node


@dataclass
class CheckpointConfig:
    """Checkpoints, and whether a run resumes from them."""

    # steps between checkpoints; -1: only the final model
    save_steps: int = number(
        20, min=-1, instead="use 1 or more, or -1 for the final model only"
    )
    # minutes after a checkpoint from which the next step is saved; null: no limit
    save_minutes: float | None = number(None, above=0)
    # newest checkpoints and copies in Hugging Face format that are kept, besides the copy that is best on
    # held-out problems
    max_num: int = number(3, min=1)
    # resume although the checkpoint is another user's or was changed (its pickles never run code), or
    # history.sqlite is another file
    force: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "checkpoint.")
        if self.save_steps == 0:
            raise ConfigError(
                "checkpoint.save_steps is 0; use 1 or more, or -1 for the final model only"
            )


@dataclass
class StopConfig(Section, prefix="stop."):
    """Conditions that stop a run."""

    # largest mean |actor - engine| log-prob on fresh rollouts, in nats; ten times that for the 99th percentile
    max_abs_logprob_gap: float = number(0.1, above=0)


@dataclass
class LoggingConfig(Section, prefix="logging."):
    """Numbers and texts besides the run directory."""

    # project of Weights & Biases to log to; null: none
    wandb_project: str | None = None
    # mlflow, trackio, or function(step, numbers) called after every step and evaluation, as
    # package.module:function or file.py:function; null: none
    tracker: str | None = None
    # values per token in rollouts/, 2 bytes each. used: entropies of exactly ranked rows, log-probs of recalled
    # ones; all: log-probs of every row, with algo=r3 entropies of every trained row; none
    token_values: str = word("used", TokenValues)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tracker = self.tracker and placed(self.tracker)
