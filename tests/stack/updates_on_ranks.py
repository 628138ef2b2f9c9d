"""Updates on several ranks, and how far they moved the weights."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.stack import rank_worker
from tests.stack.ranks import on_ranks

# two steps; 7 rows do not divide among two ranks, 12 rows are more than train.batch_size
ROWS = [
    7,
    12,
]
# with adam.eps this large an Adam step is (nearly) learning rate times gradient
LEARNING_RATE = 1.0


def arguments(
    model,
    *,
    ranks,
    stage,
    dynamic=False,
    offload=False,
    micro_batch_size=2,
    dual_clip=None,
    lora=None,
    critic=False,
    more=(),
):
    flags = {
        "actor.model_name_or_path": model,
        "data.prompt_dataset": "unused",
        "reward.remote_url": "unused",
        "actor.num_gpus_per_node": ranks,
        "vllm.num_engines": ranks,
        "algo.advantage.estimator": "group_norm",
        "rollout.batch_size": 2,
        "rollout.n_samples_per_prompt": 4,
        "rollout.micro_batch_size": 3,
        "train.batch_size": 8,
        "train.micro_batch_size": micro_batch_size,
        "ds.zero_stage": stage,
        "actor.adam.lr": LEARNING_RATE,
        "actor.adam.eps": 1e4,
        "actor.adam.betas": "0.0 0.0",
        "train.max_tokens_per_gpu": 40,
    }
    flags |= dict(more)
    if dual_clip is not None:
        flags["actor.dual_clip"] = dual_clip
    if lora is not None:  # A's gradient is small at first
        flags |= {"ds.lora.rank": lora, "actor.adam.lr": 0.01, "actor.adam.eps": 1e-8}
    if critic:
        flags["algo.advantage.estimator"] = "gae"
        flags |= {
            f"critic.adam.{name}": flags[f"actor.adam.{name}"]
            for name in ("lr", "eps", "betas")
        }
        flags["critic.num_gpus_per_node"] = ranks
    switches = (
        ["train.colocate_all"]
        + ["train.dynamic_batch_enable"] * dynamic
        + ["ds.adam_offload"] * offload
    )
    return [
        part for key, value in flags.items() for part in (f"--{key}", *str(value).split())
    ] + [f"--{switch}" for switch in switches]


def run_ranks(
    tmp_path,
    model,
    *,
    target=rank_worker.update,
    rows_per_step=ROWS,
    stock=False,
    loads=0,
    off_policy=False,
    chunk_tokens=None,
    warm_start=0.0,
    idle=(),
    skips_idle=False,
    loss="ppo",
    spoiled=(),
    taught=(),
    distill=None,
    agrees=False,
    rate=None,
    **settings,
):
    ranks = settings["ranks"]
    tmp_path.mkdir(exist_ok=True)
    case = {
        "ranks": ranks,
        "arguments": arguments(model, **settings),
        "model": str(model),
        "rows_per_step": rows_per_step,
        "stock": stock,
        "loads": loads,
        "off_policy": off_policy,
        "warm_start": warm_start,
        "chunk_tokens": chunk_tokens,
        "idle": idle,
        "skips_idle": skips_idle,
        "loss": loss,
        "spoiled": spoiled,
        "taught": taught,
        "distill": distill,
        "agrees": agrees,
        "rate": rate,
        "output": str(tmp_path / "result.pt"),
        "saved": str(tmp_path / "saved"),
        "checkpoints": str(tmp_path / "checkpoints"),
    }
    on_ranks(target, ranks, case, folder=tmp_path)
    return torch.load(tmp_path / "result.pt", weights_only=False)


def start_of(model):
    return dict(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).named_parameters()
    )


def movement(start, weights):
    return torch.cat([(weights[name] - start[name]).detach().flatten() for name in start])


def assert_moved_alike(start, weights, expected):
    moved, wanted = movement(start, weights), movement(start, expected)
    assert torch.nn.functional.cosine_similarity(moved, wanted, dim=0) > 0.995
    assert moved.norm().item() == pytest.approx(wanted.norm().item(), rel=0.02)
