"""The update on any number of rows per rank: what replaces upstream's replay buffer and its actor
trainer (critic_actor.py: the critic's).

B rows."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from openrlhf.models.loss import aggregate_loss
from openrlhf.models.utils import masked_mean
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.seqlen_balancing import get_minimum_num_micro_batch_size
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from r3_openrlhf.method.core.correction import Correction
from r3_openrlhf.method.core.distill import Target
from r3_openrlhf.method.core.losses import LOSSES, LossSettings, TokenLoss
from r3_openrlhf.method.settings import DistillSettings
from r3_openrlhf.stack.average_teacher import AverageTeacher
from r3_openrlhf.stack.batching import (
    effective_ranks,
    even_slices,
    micro_batches,
    num_windows,
)
from r3_openrlhf.stack.expert_routing import ExpertRouting
from r3_openrlhf.stack.finite_updates import (
    ACTOR_NOT_FINITE,
    ADVANTAGES,
    ENGINE_LOGPROBS,
    LOSS,
    OLD_LOGPROBS,
    POLICY_LOGPROBS,
    REFERENCE_LOGPROBS,
    REWARDS,
    UpdateWatch,
    report_true_norms,
)
from r3_openrlhf.stack.idle_rows import (
    IDLE_ROWS,
    NUM_ROWS,
    TRAINED_ROWS,
    agreed_counts,
    dealt,
    is_idle,
    num_actions,
    over_ranks,
    split_window,
    sums_of_rows,
)
from r3_openrlhf.stack.taught_update import TARGET, TaughtLoss, targets_of_batch

NO_ROWS = 1e-12  # upstream divides by the counts of a micro-batch (ppo_actor.py:219)
# info of a row: 1 from the history, else 0; only where the loss asks for it
RECALLED = "recalled"
UPDATES = "r3/update/updates"  # optimizer steps of a step, with train.rows_per_update
DIVERGENCE = "r3/update/divergence"  # of policy and teacher, mean over taught tokens, nats


# what upstream's setup_dynamic_batch sets (replay_buffer.py:146-181)
DYNAMIC = (
    "dynamic_indices",
    "dynamic_sample_loss_scale",
    "dynamic_batch_num_tokens",
    "dynamic_global_batch_size",
    "dynamic_optimizer_step",
)


def _num_tokens(item) -> int:
    return int(item.total_length.item())


class R3ReplayBuffer(NaiveReplayBuffer):
    """Hands out whole micro-batches, so that no row is dropped and no rank has more of them than
    another.

    Answers trainer/ppo_utils/replay_buffer.py:92 and ppo_actor.py:166 (`drop_last=True` drops the
    rows of an incomplete last micro-batch), and replay_buffer.py:108-112 (dynamic batching takes
    exactly train.batch_size rows per step and leaves the others). Expects equal numbers of rows on
    every rank, a multiple of the number of windows; the experience maker ensures it."""

    items: list[Any]  # upstream's; one row each
    dynamic_indices: list[list[int]]  # upstream's
    windows: int | None = None  # of a warm start; None: those of the run's steps
    rows_per_update: int | None = None  # train.rows_per_update
    skips_idle: bool = False  # rows without a gradient leave the update (idle_rows.py)
    dp_group: Any = None  # the ranks with other rows; None: all

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.left: list[Any] = []  # rows of this step that do not pass through the model
        # of each window: tokens and rows with actions, of all ranks
        self.totals: list[list[float]] = []

    def num_windows(self, args: SimpleNamespace) -> int:
        """Count the windows of this step's rows, before any leaves."""
        num_rows = len(self.items) * effective_ranks(args)
        return self.windows or num_windows(
            args, num_rows=num_rows, rows_per_update=self.rows_per_update
        )

    def lay_out(self, *, windows: int, micro_batch_size: int, seed: int | None) -> int:
        """Fix the micro-batches of the coming pass, rows shuffled by `seed` (None: as they are).
        Returns how many make up one optimizer step.

        Which rows share a micro-batch does not change a window's gradient. Padded rows share it by
        length, or a few reflection prompts make all of them long. Packed ones stay mixed: else the
        largest micro-batch, and its memory, would grow."""
        if len(self.items) % windows:
            raise ValueError(
                f"{len(self.items)} rows on this rank do not make {windows} equal windows"
            )
        order = list(range(len(self.items)))
        if seed is not None:
            order = torch.randperm(
                len(self.items), generator=torch.Generator().manual_seed(seed)
            ).tolist()
        parts, counts = self._windows(
            order, windows, lambda rows: len(micro_batches(len(rows), micro_batch_size))
        )
        items: list[Any] = []
        self.slices = []
        for rows in parts:
            if not self.packing_samples:
                rows = sorted(rows, key=lambda i: _num_tokens(self.items[i]))
            start = len(items)
            items += [self.items[i] for i in rows]
            self.slices += [
                slice(start + part.start, start + part.stop)
                for part in even_slices(len(rows), counts[0])
            ]
        self.items = items
        self.sample_batch_size = 1
        return counts[0]

    def _windows(
        self,
        order: list[int],
        windows: int,
        needed: Callable[[list[int]], int],
        *,
        alike: bool = True,
    ) -> tuple[list[list[int]], list[int]]:
        """Deal rows to windows, and let those without a gradient leave.

        needed: the rows of a window -> micro-batches that they fill. alike: every window has as many.
        Returns each window's rows that pass through the model, and its number of micro-batches; sets
        `left` and `totals`."""
        idle = [is_idle(row) for row in self.items]
        parts = dealt(order, idle, windows)
        self.left = []
        self.totals = []
        if not self.skips_idle:
            return parts, [needed(rows) for rows in parts]
        own = [[num_actions(self.items[i]) for i in rows] for rows in parts]
        numbers = [
            [float(sum(actions)), float(sum(count > 0 for count in actions))] for actions in own
        ]
        self.totals = over_ranks(numbers, torch.distributed.ReduceOp.SUM, self.dp_group)
        lengths = [_num_tokens(row) for row in self.items]

        def most(counts: list[int]) -> list[int]:
            counts = [max(counts)] * len(counts) if alike else counts
            return [
                int(one)
                for one in over_ranks(counts, torch.distributed.ReduceOp.MAX, self.dp_group)
            ]

        counts = agreed_counts(parts, idle, lengths, needed, most)
        split = [
            split_window(rows, idle, lengths, count)
            for rows, count in zip(parts, counts, strict=True)
        ]
        self.left = [self.items[i] for _, leaving in split for i in leaving]
        return [staying for staying, _ in split], counts

    def __len__(self) -> int:
        return super().__len__() if self.dynamic_batch else len(self.slices)

    def __getitem__(self, idx):
        return super().__getitem__(idx) if self.dynamic_batch else self.items[self.slices[idx]]

    def collate_fn(self, batch):
        """Return the rows of a micro-batch as one Experience. `batch` has one item, a micro-batch."""
        return super().collate_fn(batch if self.dynamic_batch else batch[0])

    def setup_dynamic_batch(self, strategy):
        """Upstream's micro-batches by tokens (replay_buffer.py:91). ValueError: unequal windows."""
        windows = self.num_windows(strategy.args)
        dp_size = torch.distributed.get_world_size(
            group=strategy.ds_device_mesh["dp"].get_group()
        )
        if len(self.items) % windows:
            raise ValueError(
                f"{len(self.items)} rows on this rank do not make {windows} equal windows"
            )
        train, ds = strategy.args.train, strategy.args.ds

        def needed(rows: list[int]) -> int:
            lengths = [_num_tokens(self.items[i]) for i in rows]
            tokens = train.max_tokens_per_gpu
            ring, tensor = ds.ring_attn_size, ds.tensor_parallel_size
            return max(1, int(get_minimum_num_micro_batch_size(lengths, tokens, ring, tensor)))

        parts, _ = self._windows(list(range(len(self.items))), windows, needed, alike=False)
        items = self.items
        laid_out: dict[str, list[Any]] = {name: [] for name in DYNAMIC}
        start = 0
        for window, rows in enumerate(parts):
            self.items = [items[i] for i in rows]
            # upstream derives rows per step and steps from these three; give it the true numbers
            train = SimpleNamespace(**vars(strategy.args.train))
            train.batch_size = len(rows) * dp_size
            rollout = SimpleNamespace(**vars(strategy.args.rollout))
            rollout.batch_size, rollout.n_samples_per_prompt = train.batch_size, 1
            args = SimpleNamespace(**vars(strategy.args))
            args.train, args.rollout = train, rollout
            view = SimpleNamespace(
                args=args,
                ds_device_mesh=strategy.ds_device_mesh,
                all_reduce=strategy.all_reduce,
                stage=strategy.stage,
            )
            super().setup_dynamic_batch(view)
            if self.totals:
                tokens, with_actions = self.totals[window]
                self.dynamic_batch_num_tokens = [tokens] * len(self.dynamic_indices)
                self.dynamic_global_batch_size = [with_actions] * len(self.dynamic_indices)
            self.dynamic_indices = [
                [start + i for i in batch] for batch in self.dynamic_indices
            ]
            for name, values in laid_out.items():
                values.extend(getattr(self, name))
            start += len(rows)
        self.items = [items[i] for rows in parts for i in rows]
        for name, values in laid_out.items():
            setattr(self, name, values)


class AnyNumberOfRows:
    """Let upstream's update loop, the policy's or the critic's, run on windows of any number of
    micro-batches. List it before upstream's class among the bases.

    Upstream lets DeepSpeed count micro-batches (gradient accumulation steps fixed at start-up).
    Here a step's windows have as many as its rows need, so the count and the accumulation boundary
    are set for each step. With dynamic batching upstream tells DeepSpeed that there is nothing to
    accumulate and calls `step` once a window (deepspeed.py:541, ppo_actor.py:366); with ZeRO 2 only
    the last micro-batch's gradient survives then. A batch that is short, as at the end of an epoch,
    never reaches upstream's boundary: its gradients join those of the next step, and every later
    update is out of step with its rollouts."""

    replay_buffer: R3ReplayBuffer
    args: Any
    strategy: Any
    micro_train_batch_size: int
    max_epochs: int
    updates = 0  # of this step

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        upstream = self.replay_buffer
        self.replay_buffer = R3ReplayBuffer(
            upstream.sample_batch_size,
            upstream.limit,
            upstream.cpu_offload,
            upstream.packing_samples,
            upstream.dynamic_batch,
        )
        self._micro_batches_per_window: int | None = None

    def lay_out(self, engine) -> None:
        """Fix the micro-batches of this step, and tell DeepSpeed's engine a window's number."""
        # dropout: no checkpoint keeps the generator's state, and a resumed run must update alike
        torch.manual_seed(self.args.train.seed + engine.global_steps)
        windows = self.replay_buffer.num_windows(self.args)
        self.updates = windows * self.max_epochs
        if not self.args.train.dynamic_batch_enable:
            # the same processes must shuffle alike where they share rows (ppo_actor.py:157)
            shuffle = (
                self.strategy.ring_attn_group is None and self.args.ds.tensor_parallel_size <= 1
            )
            count = self.replay_buffer.lay_out(
                windows=windows,
                micro_batch_size=self.micro_train_batch_size,
                # optimizer steps are in the checkpoint: a resumed run shuffles as the first one did
                seed=self.args.train.seed + engine.global_steps if shuffle else None,
            )
            engine.set_train_batch_size(
                engine.train_micro_batch_size_per_gpu() * engine.dp_world_size * count
            )
            self.strategy.accumulated_gradient = count  # utils/loss_utils.py:105
            self._micro_batches_per_window = count
        # ZeRO keeps a copy of the count; offloaded, 1 means "nothing to accumulate"
        engine.optimizer.gradient_accumulation_steps = max(
            2, self._micro_batches_per_window or 0
        )

    def set_boundary(self, engine, step: int) -> bool:
        """Tell DeepSpeed's engine whether micro-batch `step` ends its window. Returns that."""
        if self.args.train.dynamic_batch_enable:
            last = self.replay_buffer.dynamic_optimizer_step[step] == 1
        else:
            assert self._micro_batches_per_window is not None  # `lay_out` was called
            last = (step + 1) % self._micro_batches_per_window == 0
        engine.set_gradient_accumulation_boundary(last)
        return last

    def window_of(self, step: int) -> int:
        """Count the micro-batches of the window that micro-batch `step` belongs to."""
        if not self.args.train.dynamic_batch_enable:
            assert self._micro_batches_per_window is not None
            return self._micro_batches_per_window
        ends = [
            i for i, is_end in enumerate(self.replay_buffer.dynamic_optimizer_step) if is_end
        ]
        return min(end for end in ends if end >= step) - max(
            (end for end in ends if end < step), default=-1
        )


class OwnLoss:
    """A loss of method/core/losses.py in the place of upstream's PolicyLoss (ppo_actor.py:76, called at :304).

    The mean over tokens or responses is upstream's (models/loss.py:11). `recalled_B`: the rows from the
    history of the micro-batch that comes next. correction: multiplies the loss of each token, as
    upstream's its own (models/loss.py:239-278); None: off."""

    recalled_B: Sequence[float] | None = None

    def __init__(
        self,
        loss: TokenLoss,
        settings: LossSettings,
        *,
        token_level_loss: bool,
        correction: Correction | None = None,
    ) -> None:
        self.loss, self.settings, self.token_level_loss = loss, settings, token_level_loss
        self.correction = correction

    def __call__(self, log_probs, old_log_probs, advantages, action_mask, **denominators):
        """Compute, like PolicyLoss.forward: loss, share of clipped tokens, KL, and with a correction the
        mean of log(sampler / trainer), nats, and the share of tokens or responses outside its band."""
        sampler_BA = denominators.pop("rollout_log_probs")
        recalled_B1 = torch.zeros(len(log_probs), 1, dtype=torch.bool, device=log_probs.device)
        if self.recalled_B is not None:
            recalled_B1[:, 0] = torch.tensor([bool(recalled) for recalled in self.recalled_B])
        seen_BA = action_mask.bool()
        loss_BA, clipped_BA = self.loss.of(
            log_probs,
            old_log_probs,
            advantages,
            action_mask,
            settings=self.settings,
            recalled=recalled_B1,
        )
        gap = outside = None
        if self.correction is not None:
            weights_BA, outside_BA = self.correction.weights(
                old_log_probs, sampler_BA, action_mask
            )
            loss_BA = weights_BA * loss_BA
            gap = masked_mean(sampler_BA - old_log_probs, action_mask, dim=None)
            of_tokens = outside_BA.shape == action_mask.shape
            outside = (
                masked_mean(outside_BA.float(), action_mask, dim=None)
                if of_tokens
                else outside_BA.float().mean()
            )
        loss_BA = loss_BA.where(seen_BA, 0.0)
        clipped_BA = torch.zeros_like(log_probs) if clipped_BA is None else clipped_BA.float()
        loss = aggregate_loss(
            loss_BA, action_mask, token_level_loss=self.token_level_loss, **denominators
        )
        kl = masked_mean((old_log_probs - log_probs).detach(), action_mask, dim=None)
        return loss, masked_mean(clipped_BA, action_mask, dim=None), kl, gap, outside


def supervised_loss() -> OwnLoss:
    """Return the loss of supervised training: -log pi of rows whose advantage is 1, one mean over all
    tokens of an update, however its micro-batches cut them (models/loss.py:87, SFTLoss)."""
    return OwnLoss(LOSSES["gpg"], LossSettings(), token_level_loss=True)


@contextmanager
def scaled_rate(optimizer: Optimizer, scheduler: LRScheduler, scale: float) -> Iterator[None]:
    """Train at `scale` times the learning rates; afterwards at the schedule's own again.

    A scheduler multiplies its base rates anew after each optimizer step (torch LRScheduler)."""
    if scale == 1.0:
        yield
        return
    before = list(scheduler.base_lrs)
    scheduler.base_lrs = [rate * scale for rate in before]
    for group in optimizer.param_groups:
        group["lr"] *= scale
    try:
        yield
    finally:
        scheduler.base_lrs = before
        for group in optimizer.param_groups:
            group["lr"] /= scale


class R3ActorTrainer(AnyNumberOfRows, ppo_actor.ActorPPOTrainer):
    """Upstream's update loop on windows of any number of micro-batches, with the run's loss.

    A step makes `train.max_epochs` passes over its rows (ppo_actor.py:175), each with the old
    log-probs from before the first (:244). skips_idle: rows without a gradient do not pass through
    the model (idle_rows.py). routing: the model's routers, with rollout.routing_replay.
    """

    skips_idle: bool = False
    actor_loss_fn: Any  # PolicyLoss, OwnLoss or TaughtLoss
    taught_loss: TaughtLoss | None = None
    average: AverageTeacher | None = None
    routing: ExpertRouting | None = None

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        report_true_norms(self.actor.model.optimizer)
        self._losses: list[float] = []  # of each micro-batch of a step

    def use_loss(
        self, loss: TokenLoss, settings: LossSettings, correction: Correction | None = None
    ) -> None:
        """Take another loss than upstream's, which stays where OpenRLHF has it, with its own correction."""
        if not loss.of_openrlhf:
            by_token = self.args.actor.loss_agg_mode == "token-mean"
            self.actor_loss_fn = OwnLoss(
                loss, settings, token_level_loss=by_token, correction=correction
            )

    def use_teacher(self, settings: DistillSettings) -> None:
        """Add the teacher's loss on logits to the loss; call it after `use_loss`. The actor is a TaughtActor."""
        self.taught_loss = TaughtLoss(
            self.actor_loss_fn,
            settings,
            self.actor,
            token_level_loss=self.args.actor.loss_agg_mode == "token-mean",
        )
        self.actor_loss_fn = self.taught_loss

    def ppo_train(self, kl_ctl: float):
        """Upstream's update (ppo_actor.py:153) on this step's rows. Returns the step's means.

        Means over rows are of all rows, those that left included. Means over tokens (`ppo_kl`,
        `ppo_clip_ratio`) are of the rows that passed through the model. `policy_loss` is the mean over
        windows of what was differentiated: upstream weighs each micro-batch's part of it by its tokens
        (ppo_actor.py:190), which depends on who meets in a micro-batch. `actor_grad_norm` is NaN, and
        ACTOR_NOT_FINITE there, where the update of a rank is not finite."""
        buffer = self.replay_buffer
        buffer.skips_idle = self.skips_idle
        buffer.dp_group = self.strategy.ds_device_mesh["dp"].get_group()
        self._losses = []
        if self.taught_loss is not None:
            self.taught_loss.sums = [0.0, 0.0]
        self._watch = UpdateWatch(self.actor.model)
        self.lay_out(self.actor.model)
        with in_order(ppo_actor):
            status = super().ppo_train(kl_ctl)
        if self.average is not None:
            self.average.update()
        if self.skips_idle:
            status = self._of_all_rows(status)
        if buffer.rows_per_update is not None:
            status = status | {UPDATES: float(self.updates)}
        if self.taught_loss is not None:
            status = status | self._divergence(self.taught_loss)
        if (name := self._watch.first_not_finite()) is not None:
            status = status | {"actor_grad_norm": math.nan, ACTOR_NOT_FINITE: name}
        return status

    def _divergence(self, loss: TaughtLoss) -> dict[str, float]:
        """Return the mean divergence over all ranks' taught tokens; {} without any."""
        total, number = over_ranks(
            loss.sums, torch.distributed.ReduceOp.SUM, self.replay_buffer.dp_group
        )
        return {DIVERGENCE: total / number} if number else {}

    def _of_all_rows(self, status: dict[str, float]) -> dict[str, float]:
        buffer, status = self.replay_buffer, dict(status)
        passes = self.max_epochs * len(buffer.totals)
        # without a dynamic batch DeepSpeed divides by the micro-batches of a window
        per_window = (
            1 if self.args.train.dynamic_batch_enable else self._micro_batches_per_window
        )
        assert per_window is not None  # `lay_out` was called
        loss = sum(self._losses) / (passes * per_window)
        status["policy_loss"] = self.strategy.all_reduce({"policy_loss": loss})["policy_loss"]
        kept, left = sums_of_rows(buffer.items), sums_of_rows(buffer.left)
        keys = sorted(kept.keys() | left.keys())
        numbers = [[kept.get(key, 0.0) for key in keys], [left.get(key, 0.0) for key in keys]]
        kept_sums, left_sums = over_ranks(
            numbers, torch.distributed.ReduceOp.SUM, buffer.dp_group
        )
        of_kept, of_left = (
            dict(zip(keys, kept_sums, strict=True)),
            dict(zip(keys, left_sums, strict=True)),
        )
        rows = of_kept[NUM_ROWS] + of_left[NUM_ROWS]
        for key in keys:
            if key in status and rows:
                status[key] = (of_kept[key] + of_left[key]) / rows
        status[TRAINED_ROWS], status[IDLE_ROWS] = of_kept[NUM_ROWS], of_left[NUM_ROWS]
        return status

    def training_step(self, experience, kl_ctl, step, loss_batch_info=None):
        """Upstream's pass over a micro-batch (ppo_actor.py:259). `num_samples` has no fillers."""
        last = self.set_boundary(self.actor.model, step)
        self.actor_loss_fn.recalled_B = experience.info.get(RECALLED)
        targets = experience.info.pop(TARGET, None)
        if self.replay_buffer.totals and loss_batch_info is not None:
            loss_batch_info = self._denominators(step, loss_batch_info)
        real_B = experience.action_mask.sum(-1) > 0
        if not real_B.all():
            forget_fillers(experience, real_B)
        taught = self._taught_by(targets, experience.action_mask)
        with taught, self._experts_of(experience):
            status = super().training_step(experience, kl_ctl, step, loss_batch_info)
        metrics = status["metrics"]
        tensors = {
            REWARDS: experience.info.get("reward"),
            ADVANTAGES: experience.advantages,
            ENGINE_LOGPROBS: experience.rollout_log_probs,
            REFERENCE_LOGPROBS: experience.base_action_log_probs,
            OLD_LOGPROBS: experience.action_log_probs,
            # a mean of old - new, not a number without tokens
            POLICY_LOGPROBS: metrics["ppo_kl"] if real_B.any() else None,
            LOSS: metrics["policy_loss"],
        }
        self._watch.look(tensors, experience.action_mask)
        if last:
            metrics["actor_grad_norm"] = self._watch.look_at_step(metrics["actor_grad_norm"])
        self._losses.append(metrics["policy_loss"].item())
        status["num_samples"] = float(real_B.sum().item())
        # nothing but rows without action: means over no token are not numbers
        if not real_B.any():
            status["num_samples"] = status["num_action_tokens"] = NO_ROWS
            status["metrics"] = {
                key: value if status["weights"][key] is None else torch.zeros(())
                for key, value in status["metrics"].items()
            }
        return status

    @contextmanager
    def _taught_by(
        self, targets: Sequence[Target] | None, action_mask_BA: torch.Tensor
    ) -> Iterator[None]:
        """Let the loss and the actor of this block see the targets of the micro-batch's rows."""
        loss = self.taught_loss
        found = None
        if loss is not None and targets is not None:
            found = targets_of_batch(targets, action_mask_BA)
        if loss is None or found is None:
            yield
            return
        loss.targets = found
        try:
            with self.actor.labelled(found.ids_BAK):
                yield
        finally:
            loss.targets = None

    def _experts_of(self, experience) -> AbstractContextManager[None]:
        """Give the routers a micro-batch's experts, which are in upstream's field for what else a row's
        pass needs (experience.py:63), read for images alone (ppo_actor.py:286)."""
        if self.routing is None:
            return nullcontext()
        return self.routing.given(
            experience.mm_train_inputs,
            experience.attention_mask,
            packed=self.actor.packing_samples,
        )

    def _denominators(self, step: int, loss_batch_info: dict) -> dict:
        """Count the window's tokens and rows as if none had left (upstream: utils/loss_utils.py:69)."""
        count = self._micro_batches_per_window
        assert count is not None
        numbers = self.replay_buffer.totals[step // count]
        like = loss_batch_info["batch_num_tokens"]
        tokens, rows = (
            torch.as_tensor(number, device=like.device, dtype=like.dtype) for number in numbers
        )
        return loss_batch_info | {
            "batch_num_tokens": tokens / count,
            "global_batch_size": rows / count,
        }


def forget_fillers(experience, real_B: torch.Tensor) -> None:
    """Leave fillers out of means per row; their token tensors stay, without any action."""
    for key, value in list(experience.info.items()):
        values = torch.stack(value) if isinstance(value, list) else value
        if values.dim() > 0 and len(values) == len(real_B):
            experience.info[key] = values[real_B]
    for name in ("response_length", "truncated", "total_length"):
        value = getattr(experience, name)
        if isinstance(value, torch.Tensor):
            setattr(experience, name, value[real_B])


def in_order(module) -> AbstractContextManager[None]:
    """For upstream's DataLoader: `lay_out` shuffled the rows; micro-batches keep windows."""
    return patch.multiple(
        module,
        DataLoader=lambda *args, **kwargs: DataLoader(*args, **kwargs | {"shuffle": False}),
    )
