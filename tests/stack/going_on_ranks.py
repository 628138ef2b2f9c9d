"""Ranks of OpenRLHF's strategy that save a checkpoint, and another number of them that goes on from it."""

from pathlib import Path

from r3_openrlhf.machine.cpu import cpu_platform  # noqa: E402

cpu_platform.install()

import torch  # noqa: E402
from deepspeed.runtime.zero import GatheredParameters  # noqa: E402
from deepspeed.utils import safe_get_full_optimizer_state  # noqa: E402
from openrlhf.models import Actor  # noqa: E402
from openrlhf.utils import get_strategy  # noqa: E402

from r3_openrlhf.config.loading import load_config  # noqa: E402
from r3_openrlhf.runs.directory import RunDirectory  # noqa: E402
from r3_openrlhf.stack.arguments import openrlhf_arguments  # noqa: E402
from r3_openrlhf.stack.upstream_parser import check_arguments  # noqa: E402

TAG = "global_step2"


def step(actor, seed: int) -> None:
    """One update with the same rows on every rank, so that their mean does not depend on how many there are."""
    engine = actor.model
    engine.set_gradient_accumulation_boundary(True)
    ids = torch.randint(5, 200, (2, 16), generator=torch.Generator().manual_seed(seed))
    logprobs = actor(ids, torch.ones(2, 15), attention_mask=torch.ones_like(ids))
    engine.backward(logprobs.mean())
    engine.step()


def states(actor) -> dict[str, torch.Tensor]:
    """The weights as the model computes with them and the optimizer's moments, whole. All ranks must call it."""
    found = {}
    optimizer = actor.model.optimizer
    if hasattr(optimizer, "_hp_optimizer_states_linked"):  # ZeRO 2
        # DeepSpeed links the moments after the step of the first group of parameters, for all, and there are two
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in actor.model.module.named_parameters():
        with GatheredParameters([parameter]):
            found[f"{name}.weight"] = parameter.detach().float().clone()
        for key in ("exp_avg", "exp_avg_sq"):
            found[f"{name}.{key}"] = (
                safe_get_full_optimizer_state(parameter, key).detach().clone()
            )
    return found


def go(
    model: str,
    ranks: int,
    stage: int,
    checkpoints: Path,
    universal: bool,
    output: Path,
    rank: int,
) -> None:
    """Make a run's actor; load what is in `checkpoints`, or make two updates and save. Then one more update. Into `output`: the
    states after loading or saving, and at the end."""
    config = load_config(
        "cpu_smoke",
        ["run_dir=unused", f"train.zero_stage={stage}", f"cluster.gpus_per_node={ranks}"],
    )
    args = check_arguments(
        openrlhf_arguments(config, RunDirectory("unused"), model_dir=model, platform="cpu")
    )
    args.ds.use_universal_ckpt = universal
    strategy = get_strategy(args)
    strategy.setup_distributed()
    actor = Actor(model, attn_implementation="sdpa", ds_config=strategy.get_ds_train_config())
    settings = dict(
        optim="adam",
        muon=vars(args.actor.muon),
        adam=vars(args.actor.adam),
        lr_scheduler="constant_with_warmup",
        lr_warmup_ratio=0.5,
        max_norm=1.0,
        scheduler_steps=10,
    )
    actor, _, _ = strategy.prepare((actor, settings))
    if (checkpoints / "_actor").is_dir():
        path, client = strategy.load_ckpt(actor.model, str(checkpoints / "_actor"))
        assert path is not None and client["global_step"] == 2, (path, client)
    else:
        step(actor, 1)
        step(actor, 2)
        strategy.save_ckpt(
            actor.model, str(checkpoints / "_actor"), TAG, client_state={"global_step": 2}
        )
    before, rate = states(actor), actor.model.get_lr()
    step(actor, 3)
    after = states(actor)
    if rank == 0:
        torch.save(
            {"before": before, "after": after, "rate": rate, "next_rate": actor.model.get_lr()},
            output,
        )
    torch.distributed.barrier()
