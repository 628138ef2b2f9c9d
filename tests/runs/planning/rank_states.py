"""One rank of OpenRLHF's strategy on a CPU: after one backward pass, the bytes of its tensors by kind."""

import json
from pathlib import Path

from r3_openrlhf.machine.cpu import cpu_platform  # noqa: E402

cpu_platform.install()

import torch  # noqa: E402
from openrlhf.models import Actor  # noqa: E402
from openrlhf.utils import get_strategy  # noqa: E402

from r3_openrlhf.config.loading import load_config  # noqa: E402
from r3_openrlhf.runs.directory import RunDirectory  # noqa: E402
from r3_openrlhf.stack.arguments import openrlhf_arguments  # noqa: E402
from r3_openrlhf.stack.upstream_parser import check_arguments  # noqa: E402


def size(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def model_states(model: str, ranks: int, stage: int, output: Path, rank: int) -> None:
    """Into `output` (of the first rank): bytes of weights, gradients and optimizer."""
    parts = [
        f"train.zero_stage={stage}",
        f"cluster.gpus_per_node={ranks}",
        "train.micro_batch_size=1",
    ]
    config = load_config("cpu_smoke", ["run_dir=unused", *parts])
    args = check_arguments(
        openrlhf_arguments(config, RunDirectory("unused"), model_dir=model, platform="cpu")
    )
    strategy = get_strategy(args)
    strategy.setup_distributed()
    actor = Actor(model, attn_implementation="sdpa", ds_config=strategy.get_ds_train_config())
    settings = dict(
        optim="adam",
        muon=vars(args.actor.muon),
        adam=vars(args.actor.adam),
        lr_scheduler="constant",
        lr_warmup_ratio=0.0,
        max_norm=0.0,
        scheduler_steps=100,
    )
    actor, _, _ = strategy.prepare((actor, settings))
    engine, buckets = actor.model, []
    if stage < 3:
        setup = engine.optimizer.setup_buckets

        def recorded():
            setup()
            buckets.append(
                size(
                    one
                    for bucket in engine.optimizer.ipg_buckets.values()
                    for one in bucket.buffer
                )
            )

        engine.optimizer.setup_buckets = recorded
    engine.set_gradient_accumulation_boundary(True)
    ids = torch.randint(5, 200, (1, 16), generator=torch.Generator().manual_seed(rank))
    ones = torch.ones(1, 15)
    first = actor(ids, ones, attention_mask=torch.ones_like(ids))
    engine.backward(first.mean())
    optimizer = engine.optimizer
    if stage == 3:
        weights = size(parameter.ds_tensor for parameter in engine.module.parameters())
        gradients = size([optimizer.grad_partitions_flat_buffer])
        master = optimizer.fp32_partitioned_groups_flat
    else:
        weights = size(engine.module.parameters())
        gradients = size(
            tensor for group in optimizer.averaged_gradients.values() for tensor in group
        )
        master = optimizer.single_partition_of_fp32_groups
    engine.step()
    moments = [
        t
        for state in optimizer.optimizer.state.values()
        for t in state.values()
        if torch.is_tensor(t)
    ]
    found = {
        "weights": weights,
        "optimizer": size(master) + size(moments),
        "gradients": gradients,
    }
    found["bucket"] = max(buckets, default=0)
    if rank == 0:
        output.write_text(json.dumps(found))
    torch.distributed.barrier()
