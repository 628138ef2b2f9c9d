"""Plan runs whose time others have published. docs/cluster.md has the table.

python benchmarks/planner.py
python benchmarks/planner.py --architectures     # each causal language model of Transformers, by its default configuration
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

from r3_openrlhf.config.loading import load_config  # noqa: E402
from r3_openrlhf.runs.planning.forecast import Plan, make_plan  # noqa: E402
from r3_openrlhf.runs.planning.formulas import RATES, SLOW, Rates  # noqa: E402
from r3_openrlhf.runs.planning.hardware import GPUS  # noqa: E402
from r3_openrlhf.runs.planning.shapes import measured, shape_of  # noqa: E402

STOCK = [
    "run_dir=unused",
    "algo=grpo",
    "replay.enabled=false",
    "reflection.enabled=false",
    "ranking.enabled=false",
]


def nemo_rl(rates: Rates = RATES) -> Plan:
    """NeMo-RL 0.4, "G-Average Seq len" 1,060 of at most 4,096, T-GBS 512; a reference model, as in its recipe."""
    settings = [
        *(
            "cluster.num_nodes=2",
            "cluster.gpus_per_node=8",
            "cluster.vllm_tensor_parallel_size=1",
        ),
        *(
            "rollout.batch_size=64",
            "rollout.n_samples_per_prompt=32",
            "rollout.max_new_tokens=3896",
        ),
        *(
            "data.max_len=4096",
            "train.batch_size=512",
            "train.kl_coef=0.01",
            "train.zero_stage=3",
            "model.gradient_checkpointing=false",
        ),
    ]
    config = load_config("r3_7b_deepscaler_multinode", [*STOCK, *settings])
    shape = shape_of("meta-llama/Llama-3.1-8B")
    return make_plan(
        config,
        shape,
        GPUS["h100-80gb"],
        num_problems=64,
        mean_tokens=860,
        prompt_tokens=200,
        rates=rates,
    )


def small_on_h800(mean_tokens: int, rates: Rates = RATES) -> Plan:
    """1.2 million rollouts in 1,170 steps: 64 problems of 16 samples a step."""
    settings = [
        *(
            "rollout.batch_size=64",
            "rollout.max_new_tokens=16384",
            "data.max_len=20480",
            "train.max_steps=1170",
        ),
        "train.max_tokens_per_gpu=20480",
    ]
    config = load_config("r3_1p5b_deepscaler_8gpu", [*STOCK, *settings])
    shape = shape_of("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    return make_plan(
        config,
        shape,
        GPUS["h800-80gb"],
        num_problems=64 * 1170,
        mean_tokens=mean_tokens,
        rates=rates,
    )


def rllm_on_h200(rates: Rates = RATES) -> Plan:
    """A report to rLLM (issue 29 of agentica-project/rllm): 128 problems of 8 responses on 8 H200, 400 s a step."""
    config = load_config(
        "r3_1p5b_deepscaler_8gpu",
        [*STOCK, "rollout.batch_size=128", "rollout.n_samples_per_prompt=8"],
    )
    shape = shape_of("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    return make_plan(config, shape, GPUS["h200-141gb"], num_problems=40_315, rates=rates)


def architectures() -> None:
    """List what the plan measures, and why not; some kinds have no default configuration that makes a model."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KINDS,
    )

    planned = 0
    for kind in sorted(KINDS):
        try:
            shape = measured(AutoConfig.for_model(kind))
        except Exception as error:
            print(f"{kind}: {type(error).__name__}: {' '.join(str(error).split())[:100]}")
        else:
            planned += 1
            print(
                f"{kind}: {shape.params:,} parameters, {shape.kv_bytes:,} bytes of keys and values a token"
            )
    print(f"{planned} of {len(KINDS)} kinds")


def main() -> None:
    plan = nemo_rl()
    parts = ", ".join(f"{phase.name} {phase.seconds:.1f}" for phase in plan.phases)
    print(
        f"Llama-3.1-8B on 16 H100: planned {plan.step_s:.1f} to {nemo_rl(SLOW).step_s:.0f} s a step ({parts}), published 97.7 s: "
        f"{plan.step_s / 97.7 - 1:+.0%}"
    )
    plan = rllm_on_h200()
    print(
        f"1.5B on 8 H200, 1,024 rows: planned {plan.step_s:.0f} to {rllm_on_h200(SLOW).step_s:.0f} s a step, published 400 s"
    )
    for mean_tokens in (2000, 3000, 4000, 6000):
        hours, slow = (small_on_h800(mean_tokens, rates).hours for rates in (RATES, SLOW))
        print(
            f"1.5B on 8 H800, {mean_tokens} tokens a response: planned {hours:.0f} to {slow:.0f} h, published 51 h: {hours / 51 - 1:+.0%}"
        )


if __name__ == "__main__":
    architectures() if "--architectures" in sys.argv else main()
