"""One data-parallel rank of the real update: DeepSpeed engine, OpenRLHF's strategy, R³'s actor trainer. No Ray."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from r3_openrlhf.machine.cpu import cpu_platform  # noqa: E402

cpu_platform.install()

import cpuinfo  # noqa: E402
import deepspeed  # noqa: E402
import torch  # noqa: E402
from openrlhf.models import Actor, get_llm_for_sequence_regression  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import balance_experiences  # noqa: E402
from openrlhf.trainer.ray import ppo_actor, ppo_critic  # noqa: E402
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer  # noqa: E402
from openrlhf.utils import get_strategy  # noqa: E402

from r3_openrlhf.config import R3Config  # noqa: E402
from r3_openrlhf.config.loading import load_config  # noqa: E402
from r3_openrlhf.method.core.losses import LOSSES, LossSettings, TokenLoss  # noqa: E402
from r3_openrlhf.method.errors import TrainingStopped  # noqa: E402
from r3_openrlhf.method.settings import DistillSettings  # noqa: E402
from r3_openrlhf.method.types import Verdict  # noqa: E402
from r3_openrlhf.stack import chunked_actor, lora, warm_start  # noqa: E402
from r3_openrlhf.stack.average_teacher import AverageTeacher  # noqa: E402
from r3_openrlhf.stack.batching import num_fillers, num_windows  # noqa: E402
from r3_openrlhf.stack.chunked_actor import ChunkedActor  # noqa: E402
from r3_openrlhf.stack.convert import filler_experience  # noqa: E402
from r3_openrlhf.stack.critic_actor import R3CriticTrainer, critic_model  # noqa: E402
from r3_openrlhf.stack.experience_maker import R3ExperienceMaker  # noqa: E402
from r3_openrlhf.stack.finite_advice import check_loaded  # noqa: E402
from r3_openrlhf.stack.kept_tokens import KeptTokens  # noqa: E402
from r3_openrlhf.stack.policy_actor import R3PolicyActor, logprobs_and_entropy  # noqa: E402
from r3_openrlhf.stack.policy_update import R3ActorTrainer  # noqa: E402
from r3_openrlhf.stack.taught_actor import TaughtActor  # noqa: E402
from r3_openrlhf.stack.taught_update import NO_TARGET, TARGET  # noqa: E402
from r3_openrlhf.stack.upstream_parser import check_arguments  # noqa: E402
from tests.method.history.samples import make_rollout  # noqa: E402
from tests.stack.mixed_rows import (  # noqa: E402
    experience_of,
    log_ratios,
    mixed_rows,
    target_of,
)

NAN = float("nan")


def nan_gradient(now, old, adv, mask):  # noqa: ARG001
    """A finite loss, whose gradient is NaN in the first micro-batch of the last rank alone."""
    loss = -adv * now
    nan_gradient.calls += 1
    if (
        nan_gradient.calls == 1
        and torch.distributed.get_rank() == torch.distributed.get_world_size() - 1
    ):
        return loss + ((now - now.detach()) ** 2).sqrt()
    return loss


nan_gradient.calls = 0


def nan_loss(now, old, adv, mask):  # noqa: ARG001
    return -adv * now + (now.detach() - 1e9).exp().log() * 0


OF_USERS = {one.__name__: TokenLoss(one, of_user=True) for one in (nan_gradient, nan_loss)}
cpuinfo.get_cpu_info()  # a second of processor time, once for all forks


def update(case: dict, rank: int) -> None:
    """The steps of `case` (test_any_number_of_rows.run_ranks) on this rank; the first one writes what came out."""
    args = check_arguments(case["arguments"])
    strategy = get_strategy(args)
    strategy.setup_distributed()
    if case["loads"]:
        return load_again_and_again(case, rank, strategy)
    trainer = trainer_of(case, strategy)
    statuses = (warm_started if case["warm_start"] else train)(case, rank, trainer)
    weights = {
        name: weight.clone()
        for name, parameter in trainer.actor.model.module.named_parameters()
        if (weight := deepspeed.utils.safe_get_full_fp32_param(parameter)) is not None
    }
    if rank == 0:
        torch.save({"weights": weights, "statuses": statuses}, case["output"])
    torch.distributed.barrier()


def optimizer_of(cfg) -> dict:
    """Of the section actor or critic."""
    return dict(
        optim="adam",
        muon=vars(cfg.muon),
        adam=vars(cfg.adam),
        lr_scheduler="constant",
        lr_warmup_ratio=0.0,
        max_norm=0.0,
        scheduler_steps=100,
    )


def trainer_of(case: dict, strategy) -> ActorPPOTrainer:
    """As ppo_actor.py:513-596 makes it, without an engine."""
    args = strategy.args
    if case["chunk_tokens"]:
        config = load_config("cpu_smoke", [f"train.logits_chunk_tokens={case['chunk_tokens']}"])
        chunked_actor.config_from_environment = lambda: config
    actor_class = TaughtActor if case["taught"] else Actor
    actor = (ChunkedActor if case["chunk_tokens"] else actor_class)(
        case["model"],
        attn_implementation="sdpa",
        ds_config=strategy.get_ds_train_config(),
        packing_samples=args.ds.packing_samples,
        lora_rank=args.ds.lora.rank,
        lora_alpha=args.ds.lora.alpha,
        target_modules=args.ds.lora.target_modules,
        lora_dropout=args.ds.lora.dropout,
    )
    actor, optimizer, scheduler = strategy.prepare((actor, optimizer_of(args.actor)))
    trainer_class = ActorPPOTrainer if case["stock"] else R3ActorTrainer
    trainer = trainer_class(
        strategy,
        actor,
        ema_model=None,
        actor_optim=optimizer,
        actor_scheduler=scheduler,
        micro_train_batch_size=args.train.micro_batch_size,
        vllm_engines=None,
        dataloader_pin_memory=False,
    )
    if not case["stock"]:
        trainer.use_loss(OF_USERS.get(case["loss"]) or LOSSES[case["loss"]], LossSettings())
        trainer.skips_idle = case["skips_idle"]
        if case["taught"]:
            trainer.use_teacher(DistillSettings(**case["distill"]))
    return trainer


def maker_of(args) -> R3ExperienceMaker:
    """The maker's own layout of rows and advantages, without the groups of remote models behind it."""
    maker = R3ExperienceMaker.__new__(R3ExperienceMaker)
    maker.config = R3Config(run_dir="unused")
    maker.initial_model_group = maker.critic_model_group = None
    maker.args, maker.tokenizer, maker.kl_ctl = (
        args,
        SimpleNamespace(pad_token_id=0),
        SimpleNamespace(value=0.0),
    )
    return maker


def laid_out(
    case: dict, maker: R3ExperienceMaker, num_rows: int
) -> tuple[list[dict], list, int]:
    """Drawn rows, their micro-batches with fillers, and how many fillers there are."""
    drawn = mixed_rows(num_rows, seed=num_rows)
    for place, row in enumerate(drawn):
        if place in case["idle"]:
            row["advantage"] = 0.0
    samples = [experience_of(row) for row in drawn]
    missing = num_fillers(num_rows, ranks=case["ranks"], windows=num_windows(maker.args))
    samples += [filler_experience(samples[0], 0) for _ in range(missing)]
    return drawn, maker.split_rollout_samples(samples), missing


def share_of(case: dict, rank: int, experiences: list) -> list:
    chunk = len(experiences) // case["ranks"]
    return experiences[rank * chunk : (rank + 1) * chunk]


def gathered(case: dict, rank: int, experiences: list, forward) -> list:
    """Gather what `forward` makes of each micro-batch, as many on each rank."""
    parts = [None] * case["ranks"]
    torch.distributed.all_gather_object(
        parts, [forward(e) for e in share_of(case, rank, experiences)]
    )
    return [made for part in parts for made in part]


def updated(case: dict, rank: int, trainer, experiences: list, *arguments) -> dict:
    """The status of one update."""
    if trainer.args.train.dynamic_batch_enable:
        experiences = balance_experiences(experiences, trainer.args)
    for experience in share_of(case, rank, experiences):
        trainer.replay_buffer.append(experience)
    status = trainer.ppo_train(*arguments)
    trainer.replay_buffer.clear()
    return status


def train(case: dict, rank: int, trainer: ActorPPOTrainer) -> list[dict]:
    """The statuses of one update for each of case["rows_per_step"]."""
    maker, statuses = maker_of(trainer.args), []
    for num_rows in case["rows_per_step"]:
        drawn, experiences, missing = laid_out(case, maker, num_rows)
        old = gathered(
            case,
            rank,
            experiences,
            lambda e: logprobs_and_entropy(
                trainer.actor, e.sequences, e.action_mask, e.attention_mask
            )[0].detach(),
        )
        for experience, logprobs in zip(experiences, old, strict=True):
            if case["off_policy"]:
                for position, index in enumerate(experience.index):
                    logprobs[position] -= [*log_ratios(num_rows), *[0.0] * missing][index]
            experience.action_log_probs, experience.kl = logprobs, torch.zeros_like(logprobs)
        rows = [
            SimpleNamespace(
                advantage=row["advantage"], reward=row["advantage"], token_advantages=None
            )
            for row in drawn
        ]
        maker._set_advantages(experiences, rows)
        if case["taught"]:
            teach(case, drawn, experiences, trainer)
        for name in case["spoiled"]:
            spoil(getattr(experiences[-1], name), experiences[-1].action_mask)
        statuses.append(updated(case, rank, trainer, experiences, 0.0))
    return statuses


def teach(case: dict, drawn: list[dict], experiences: list, trainer) -> None:
    """Give the taught rows made-up targets, or with coef 0 the policy's own distribution."""
    coef = case["distill"]["coef"]
    for experience in experiences:
        targets = []
        for position, index in enumerate(experience.index):
            if index not in case["taught"] or index >= len(drawn):
                targets.append(NO_TARGET)
                continue
            target = target_of(drawn[index], coef=coef)
            if case["agrees"]:
                kept = KeptTokens([target.ids])
                alone = (
                    experience.sequences[position][None],
                    experience.action_mask[position][None],
                )
                with torch.no_grad():
                    logprobs_and_entropy(
                        trainer.actor,
                        *alone,
                        experience.attention_mask[position][None],
                        kept=kept,
                    )
                target = replace(target, logprobs=kept[0][1])
            targets.append(target)
        experience.info[TARGET] = targets


def spoil(tensor: torch.Tensor, mask: torch.Tensor) -> None:
    """Make the value of one token of these rows NaN."""
    row, position = mask.nonzero()[0].tolist()
    tensor[row, position] = NAN


def warm_started(case: dict, rank: int, trainer: ActorPPOTrainer) -> list[dict]:
    """A pass of supervised training over the drawn rows, by the policy's real actor without Ray."""
    actor = R3PolicyActor.__new__(R3PolicyActor)
    actor.trainer, actor.actor = trainer, trainer.actor
    group = SimpleNamespace(
        async_run_method_batch=lambda experience, **_: [
            actor.append(one) for one in share_of(case, rank, experience)
        ],
        async_run_method=lambda name, **facts: [getattr(actor, name)(**facts)],
    )
    warm_start.ray = SimpleNamespace(get=lambda refs: refs)
    for number in case["rows_per_step"]:
        drawn = ((row["tokens"], row["prompt"]) for row in mixed_rows(number, seed=number))
        rows = [
            make_rollout(prompt=ids[:cut], ids=ids[cut:], verdict=Verdict.CORRECT)
            for ids, cut in drawn
        ]
        warm_start.warm_start(
            group, rows, trainer.args, passes=1, pad_token_id=0, scale=case["warm_start"]
        )
    return []


def adapted(case: dict, rank: int) -> None:
    """A LoRA adapter is trained, sent to engines that keep what they get, saved, and gone on with from its checkpoint."""
    strategy = get_strategy(check_arguments(case["arguments"]))
    strategy.setup_distributed()
    trainer = trainer_of(case, strategy)
    model = trainer.actor.model.module
    lora.prepare(strategy, model)
    start = whole(model)
    train(case, rank, trainer)
    trained, (sent, lost) = whole(model), sent_to_engines(trainer, model)
    lost_by_rank = [0.0, 0.0]
    torch.distributed.all_gather_object(lost_by_rank, lost)
    strategy.save_model(
        trainer.actor, SimpleNamespace(save_pretrained=lambda folder: None), case["saved"]
    )
    strategy.save_ckpt(trainer.actor.model, case["checkpoints"], "step")
    another = trainer_of(case, strategy)
    strategy.load_ckpt(another.actor.model, case["checkpoints"])
    resumed, _ = sent_to_engines(another, another.actor.model.module)
    if rank == 0:
        torch.save(
            {
                "start": start,
                "trained": trained,
                "sent": sent,
                "resumed": resumed,
                "lost": lost_by_rank,
            },
            case["output"],
        )
    torch.distributed.barrier()


def averaged(case: dict, rank: int) -> None:
    """Train with a teacher's average; write every policy, the average, and the model that is in place inside and after. Then
    go on from a checkpoint, and beside it without one."""
    strategy = get_strategy(check_arguments(case["arguments"]))
    strategy.setup_distributed()
    trainer, checkpoints = trainer_of(case, strategy), Path(case["checkpoints"])
    model = trainer.actor.model.module
    average = trainer.average = AverageTeacher(trainer.actor.model, rate=case["rate"])
    policies, update = [whole(model)], average.update

    def watched():
        update()
        policies.append(whole(model))

    average.update = watched
    train(case, rank, trainer)
    seen, before = list(policies), whole(model)
    with average.in_place():
        inside = whole(model)
        scored = scored_by(case, rank, trainer)
    after = whole(model)
    average.save(checkpoints, "step")
    strategy.save_ckpt(trainer.actor.model, f"{checkpoints}/_actor", "step")
    another = trainer_of(case, strategy)
    strategy.load_ckpt(another.actor.model, f"{checkpoints}/_actor")
    another.average = AverageTeacher(another.actor.model, rate=case["rate"])
    another.average.load(checkpoints, "step")
    gone_on = []
    for one in (trainer, another):
        train(case, rank, one)
        with one.average.in_place():
            gone_on.append(whole(one.actor.model.module))
    said = refusals(checkpoints, another.average)
    if rank == 0:
        parts = {"inside": inside, "before": before, "after": after, "gone_on": gone_on}
        torch.save(parts | {"policies": seen, "scored": scored, "said": said}, case["output"])
    torch.distributed.barrier()


def scored_by(case: dict, rank: int, trainer) -> list[torch.Tensor]:
    """Log-probs of drawn rows under the model that is in place, row by row."""
    _, experiences, _ = laid_out(case, maker_of(trainer.args), 7)
    with torch.no_grad():
        of_batches = gathered(
            case,
            rank,
            experiences,
            lambda e: trainer.actor(e.sequences, e.action_mask, e.attention_mask),
        )
    found = {}
    for experience, logprobs in zip(experiences, of_batches, strict=True):
        for position, index in enumerate(experience.index):
            found[index] = logprobs[position][experience.action_mask[position].bool()]
    return [found[index] for index in range(7)]


def refusals(checkpoints: Path, average: AverageTeacher) -> list[str]:
    """What is said of an average that is missing, cut short, and of other ranks; every rank has a file of its own."""
    file, said = checkpoints / "_average" / "step" / f"rank{average.rank}.pt", []
    content = file.read_bytes()
    whole_one = torch.load(file, weights_only=True)
    for write in (
        file.unlink,
        lambda: file.write_bytes(content[:100]),
        lambda: torch.save(whole_one | {"ranks": 3}, file),
    ):
        write()
        try:
            average.load(checkpoints, "step")
        except TrainingStopped as stopped:
            said.append(str(stopped))
    return said


def ruined(case: dict, rank: int) -> None:
    """A checkpoint whose weights are not finite is saved as upstream saves it, and loaded: what a run says of it, and of a good one."""
    args = check_arguments(case["arguments"])
    strategy = get_strategy(args)
    strategy.setup_distributed()
    trainer = trainer_of(case, strategy)
    args.ckpt.path, args.ckpt.load_enable = case["checkpoints"], True
    folder, said = f"{case['checkpoints']}/_actor", []
    for step in (0, 1):
        if step:
            train(case, rank, trainer)
        strategy.save_ckpt(trainer.actor.model, folder, f"global_step{step}")
        another = trainer_of(case, strategy)
        strategy.load_ckpt(another.actor.model, folder)
        try:
            check_loaded(another.actor.model.module, args, folder="_actor", path=case["model"])
        except TrainingStopped as stopped:
            said.append(f"{step}: {stopped}")
    of_ranks = [None] * case["ranks"]
    torch.distributed.all_gather_object(of_ranks, said)
    if rank == 0:
        torch.save({"said": of_ranks}, case["output"])
    torch.distributed.barrier()


def whole(model) -> dict[str, torch.Tensor]:
    """Every weight as the forward pass reads it, and where it lies."""
    found = {}
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            found[name] = parameter.data.clone()
    return found


def sent_to_engines(trainer: ActorPPOTrainer, model) -> tuple[dict[str, torch.Tensor], float]:
    """Return what upstream's own weight sync sends, by name, and the share of the change that this loses.
    The engines and the group between them stand for vLLM and gloo."""
    names, weights = [], []
    engine = SimpleNamespace(
        update_weight=SimpleNamespace(remote=lambda name, **_: names.append(name))
    )
    trainer.vllm_engines, trainer.use_cuda_ipc = [engine], False
    trainer._model_update_group = SimpleNamespace(
        broadcast=lambda weight, **_: weights.append(weight.clone())
    )
    ray, ppo_actor.ray = ppo_actor.ray, SimpleNamespace(get=lambda refs: refs)
    try:
        with lora.merged_for_sync(trainer, model) as loss:
            trainer.broadcast_to_vllm()
    finally:
        ppo_actor.ray = ray
    return dict(zip(names, weights, strict=True)), loss.share


def update_critic(case: dict, rank: int) -> None:
    """As `update`, of the critic: each row's advantage is what each of its tokens returned."""
    args = check_arguments(case["arguments"])
    strategy = get_strategy(args)
    strategy.setup_distributed()
    make = get_llm_for_sequence_regression if case["stock"] else critic_model
    critic = make(  # as ppo_critic.py:203 makes it
        case["model"],
        "critic",
        lora_rank=args.ds.lora.rank,
        lora_alpha=args.ds.lora.alpha,
        target_modules=args.ds.lora.target_modules,
        attn_implementation=args.ds.attn_implementation,
        ds_config=strategy.get_ds_train_config(),
        packing_samples=args.ds.packing_samples,
    )
    critic, optimizer, scheduler = strategy.prepare((critic, optimizer_of(args.critic)))
    trainer = (ppo_critic.CriticPPOTrainer if case["stock"] else R3CriticTrainer)(
        strategy,
        critic,
        optimizer,
        scheduler,
        args.train.micro_batch_size,
        value_clip=args.critic.value_clip,
        dataloader_pin_memory=False,
    )
    if case["loss"] == "nan_gradient":
        value_loss = trainer.critic_loss_fn

        def spoiled(values, *others, **more):
            return (
                value_loss(values, *others, **more)
                + nan_gradient(values, None, 0.0, None).mean()
            )

        trainer.critic_loss_fn = spoiled
    maker, statuses = maker_of(args), []
    for num_rows in case["rows_per_step"]:
        drawn, experiences, missing = laid_out(case, maker, num_rows)
        returns = [row["advantage"] for row in drawn] + [0.0] * missing
        with torch.no_grad():
            of_critic = gathered(
                case,
                rank,
                experiences,
                lambda e: critic(e.sequences, e.action_mask, e.attention_mask),
            )
        for experience, values in zip(experiences, of_critic, strict=True):
            experience.values = values
            experience.returns = (
                torch.tensor([returns[i] for i in experience.index])[:, None]
                * experience.action_mask
            )
            experience.advantages = experience.action_log_probs = torch.zeros_like(values)
        for name in case["spoiled"]:
            spoil(getattr(experiences[-1], name), experiences[-1].action_mask)
        statuses.append(updated(case, rank, trainer, experiences))
    weights = whole(critic.module)
    for name, parameter in critic.module.named_parameters():
        if parameter.requires_grad:
            weights[name] = deepspeed.utils.safe_get_full_fp32_param(parameter).clone()
    if rank == 0:
        torch.save(
            {"weights": weights, "statuses": statuses, "updates": critic.global_steps},
            case["output"],
        )
    torch.distributed.barrier()


def load_again_and_again(case: dict, rank: int, strategy) -> None:
    loaded = []
    for _ in range(case["loads"]):
        actor = Actor(
            case["model"], attn_implementation="sdpa", ds_config=strategy.get_ds_train_config()
        )
        loaded.append({name: weight.float() for name, weight in whole(actor.model).items()})
    if rank == 0:
        torch.save({"loaded": loaded}, case["output"])
    torch.distributed.barrier()
