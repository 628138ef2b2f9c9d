"""The section `held_out`, and the options of `r3 eval`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from r3_openrlhf.method.checks import Section, check_fields, number


@dataclass
class HeldOutConfig(Section, prefix="held_out."):
    """Held-out problems for the policy in training (evaluations.jsonl). `r3 eval`: afterwards."""

    # held-out problems, as data.path; null: no evaluation. Columns, task and prompt are those of `data`
    path: str | None = None
    # split of a hub data set
    split: str = "test"
    # use only this many problems, the first; null: all
    max_samples: int | None = number(None, min=1)
    # as data.reasoning_gym; problem i is drawn from seed + i, so use a distant seed
    reasoning_gym: dict[str, Any] = field(default_factory=dict)
    # steps between evaluations, besides those before step 1 and after the last
    every_steps: int = number(20, min=1)
    # responses per problem
    n_samples: int = number(4, min=1)
    # sampling temperature of held-out responses
    temperature: float = number(1.0, above=0)


@dataclass
class BenchmarkConfig:
    """`r3 eval`: how benchmarks are sampled. The command's options, no section of a run."""

    # responses per problem; the paper's figures go up to Pass@16
    n_samples: int = number(16, min=1)
    # the paper leaves it open; what the 1.5B and 7B tables of others use
    temperature: float = number(0.6, min=0)
    top_p: float = number(1.0, above=0, max=1)
    # [P] 8K
    max_new_tokens: int = number(8192, min=1)
    seed: int = number(42, min=0)
    tensor_parallel_size: int = number(1, min=1)
    # nothing else is on the GPUs
    gpu_memory_utilization: float = number(0.9, above=0, max=1)

    def __post_init__(self) -> None:
        check_fields(
            self, "--", key_of=lambda name: name.removesuffix("_samples").replace("_", "-")
        )
