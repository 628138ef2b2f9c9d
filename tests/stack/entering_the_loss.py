"""Rollouts of every kind, and what of them enters the loss."""

import math
import threading
from types import SimpleNamespace

import numpy as np
import torch
from openrlhf.models.loss import PolicyLoss
from openrlhf.trainer.ppo_utils.experience import balance_experiences
from openrlhf.trainer.ray import ppo_actor

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.stack.policy_update import (
    R3ActorTrainer,
    R3ReplayBuffer,
    supervised_loss,
)
from tests.stack.experience_makers import Ours, ValuedRecording, arguments, maker, sample

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED
GAP, MAX_TOKENS, NUM_GROUPS = 0.05, 24, 4  # the actor's log-probs are above the engine's
LAYOUTS = {  # ranks, dynamic, packed
    "one rank": (1, False, False),
    "two ranks": (2, False, False),
    "packed": (1, False, True),
    "dynamic": (2, True, True),
}


class Rollouts:
    """Rollouts of a kind; each token occurs in one response alone, so that a row of the loss is known by its tokens."""

    def __init__(self, kind, g):
        self.kind, self.g, self.token = kind, g, 100
        self.samples, self.stored, self.rehearsed = [], [], []
        for number in range(NUM_GROUPS if kind != "short" else 2):
            self._group(number)
        if kind in ("recalled", "reflection", "truncated"):
            for number, verdict in ((0, W), (1, C), (1, C)):
                self.stored.append(self.one(verdict, 3 + number, uid=number, step=2).r3_rollout)
        if kind == "rehearsed":
            found = self.one(C, 4, uid=9, step=2).r3_rollout
            self.stored = [found, *(self.one(W, 4, uid=9, step=2).r3_rollout for _ in range(3))]
            self.rehearsed = [found]

    def _group(self, number):
        """All right, all wrong, and mixed ones, of unequal length."""
        for i in range(self.g):
            right = {0: True, 1: False}.get(number, (i + number) % 3 == 0)
            paid = (
                (0.8 - 0.05 * i if self.kind in ("partial", "truncated") and i % 2 else 0.0)
                if not right
                else None
            )
            length = (
                MAX_TOKENS - 1 - i
                if self.kind == "truncated" and not right
                else 2 + (5 * i + number) % 11
            )
            is_lost = i % 2 and i < self.g - 1 if self.g > 1 else number == 2
            verdict = U if self.kind == "ungraded" and is_lost else C if right else W
            context = Context.REFLECTION if self.kind == "reflection" else Context.PLAIN
            truncated = self.kind == "truncated" and not right
            self.samples.append(
                self.one(
                    verdict, length, uid=number, context=context, paid=paid, truncated=truncated
                )
            )

    def one(
        self, verdict, length, *, uid, context=Context.PLAIN, paid=None, truncated=False, step=5
    ):
        tokens = tuple(range(self.token, self.token + length))
        self.token += length
        reward = None if verdict is U else 1.0 + 1 / length if verdict is C else paid or 0.0
        name = f"problem {uid}" + (" again" if context is Context.REFLECTION else "")
        made = sample(
            verdict, prompt=name, tokens=tokens, reward=reward, truncated=truncated, step=step
        )
        prompt = [1 + (context is Context.REFLECTION), 10 + uid]
        made.sequences[0, :2] = torch.tensor(prompt)
        made.rollout_log_probs = torch.tensor([[0.0, *map(sampled_logprob, tokens)]])
        made.scores = None if reward is None else torch.tensor([float(verdict is C)])
        rollout = made.r3_rollout
        rollout.uid, rollout.context, rollout.prompt_ids = (
            f"problem {uid}",
            context,
            np.array(prompt, dtype=np.int32),
        )
        rollout.response_logprobs = made.rollout_log_probs[0, 1:].numpy()
        return made


def sampled_logprob(token):
    return -0.1 * (token % 7 + 1)


def config_of(settings, g):
    off = (
        []
        if "algo=r3" in settings
        else [f"{name}.enabled=false" for name in ("replay", "reflection", "ranking")]
    )
    sizes = [
        f"rollout.n_samples_per_prompt={g}",
        f"rollout.batch_size={NUM_GROUPS}",
        "rollout.micro_batch_size=2",
        f"rollout.max_new_tokens={MAX_TOKENS}",
    ]
    return load_config(
        "cpu_smoke",
        [*settings, *sizes, *off, "reward.max_ungraded_rate=0.9", "train.micro_batch_size=2"],
    )


def entering(config, rollouts, *, ranks, dynamic, packed, monkeypatch, updates=None):
    """The rows that reach the loss, by their tokens, with the whole loss and denominators of each rank.
    updates: gets for each rank the number of the update of each row."""
    algorithm = config.algorithm
    store = HistoryStore.open(":memory:")
    store.commit_step(3, 1, rollouts.stored)
    made = maker(
        Ours if algorithm.own_advantages else ValuedRecording,
        config=config,
        history=store,
        ranks=ranks,
    )
    made.gap, made.args = GAP, args_of(config, ranks, dynamic=dynamic, packed=packed)
    made.strategy.args, made.advantage_estimator = made.args, algorithm.estimator
    experiences = made.make_experience_batch(rollouts.samples)
    store.close()
    if dynamic:
        experiences = balance_experiences(experiences, made.args)
    together = Together(ranks, monkeypatch)
    chunk = len(experiences) // ranks
    return together.run(
        lambda rank: one_rank(
            config,
            made.args,
            experiences[rank * chunk : (rank + 1) * chunk],
            together,
            updates=updates,
        )
    )


def args_of(config, ranks, *, dynamic, packed):
    args = arguments(ranks)
    rollout, train = config.rollout, config.train
    args.rollout.batch_size, args.rollout.n_samples_per_prompt = (
        rollout.batch_size,
        rollout.n_samples_per_prompt,
    )
    args.rollout.max_new_tokens = rollout.max_new_tokens
    args.train.batch_size, args.train.dynamic_batch_enable, args.train.seed = (
        config.rows_per_step,
        dynamic,
        1,
    )
    args.train.max_tokens_per_gpu, args.train.max_epochs, args.ds.packing_samples = (
        64,
        1,
        packed,
    )
    args.algo.advantage.estimator = config.algorithm.estimator
    args.algo.kl.use_loss, args.algo.kl.init_coef = False, 0
    args.actor.entropy_coef, args.actor.dual_clip = None, config.dual_clip
    args.actor.eps_clip_low_high = (train.eps_clip_low, train.eps_clip_high)
    args.actor.loss_agg_mode = str(train.loss_aggregation)
    if config.algorithm.overlong_penalty:
        args.reward.overlong_buffer_len, args.reward.overlong_penalty_factor = (
            int(0.2 * MAX_TOKENS),
            0.5,
        )
    return args


class Together:
    """Collectives of ranks that are threads of this process."""

    def __init__(self, ranks, monkeypatch):
        self.ranks, self.barrier, self.given, self.local = (
            ranks,
            threading.Barrier(ranks),
            {},
            threading.local(),
        )
        # each rank replaces and restores it
        monkeypatch.setattr(ppo_actor, "DataLoader", ppo_actor.DataLoader)
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: ranks)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: self.local.rank)
        monkeypatch.setattr(torch.distributed, "all_reduce", self.in_place)

    def reduced(self, value, op="sum"):
        if isinstance(value, dict):
            return {key: self.reduced(one, op) for key, one in sorted(value.items())}
        self.given[self.local.rank] = torch.as_tensor(value, dtype=torch.float64).clone()
        self.barrier.wait()
        every = torch.stack([self.given[rank] for rank in range(self.ranks)])
        self.barrier.wait()
        found = {"sum": every.sum, "max": every.amax, "min": every.amin}[op](0)
        return found.to(value.dtype) if isinstance(value, torch.Tensor) else found.item()

    def in_place(self, tensor, op=torch.distributed.ReduceOp.SUM, group=None):
        word = {
            torch.distributed.ReduceOp.SUM: "sum",
            torch.distributed.ReduceOp.MIN: "min",
            torch.distributed.ReduceOp.MAX: "max",
        }[op]
        tensor.copy_(self.reduced(tensor, word))

    def run(self, of_rank):
        results, errors = {}, []

        def work(rank):
            self.local.rank = rank
            try:
                results[rank] = of_rank(rank)
            except Exception as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [results[rank] for rank in range(self.ranks)]


class Engine(SimpleNamespace):
    """What the update asks DeepSpeed for."""

    global_steps, dp_world_size, skipped_steps = 0, 1, 0
    is_end, update = False, 0
    module = torch.nn.Linear(1, 1)

    def __call__(self, sequences, action_mask, **_):
        self.sequences = sequences
        known = sequences[:, 1:].double()
        logprobs = (-0.1 * (known % 7 + 1) + GAP + (known % 5 - 2) * 0.15).float()
        return logprobs.requires_grad_(), None

    def train(self):
        pass

    def train_micro_batch_size_per_gpu(self):
        return 1

    def set_train_batch_size(self, size):
        pass

    def set_gradient_accumulation_boundary(self, is_end):
        self.update += self.is_end
        self.is_end = is_end


def one_rank(config, args, experiences, together, *, supervised_in=None, updates=None):
    """Run the real update of these experiences on a model of known log-probs. supervised_in: windows of
    a warm start, whose loss it is then."""
    trainer = R3ActorTrainer.__new__(R3ActorTrainer)
    engine = Engine(optimizer=SimpleNamespace())
    engine.model = engine
    trainer._micro_batches_per_window = None
    seen, losses = [], []
    trainer.args, trainer.actor, trainer.aux_loss, trainer.ema_model, trainer.max_epochs = (
        args,
        engine,
        False,
        None,
        1,
    )
    trainer.micro_train_batch_size, trainer.dataloader_pin_memory, trainer.actor_optim = (
        2,
        False,
        None,
    )
    trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    trainer.strategy = SimpleNamespace(
        args=args,
        ring_attn_group=None,
        stage=2,
        accumulated_gradient=1,
        all_reduce=together.reduced,
        ds_device_mesh={"dp": SimpleNamespace(get_group=lambda: None)},
        is_rank_0=lambda: False,
        backward=lambda loss, *_: losses.append(loss.item()),
        optimizer_step=lambda *_, **__: None,
        get_grad_norm=lambda _: 0.0,
    )
    trainer.replay_buffer = R3ReplayBuffer(
        1, 0, True, args.ds.packing_samples, args.train.dynamic_batch_enable
    )
    low, high = args.actor.eps_clip_low_high
    of_flags = dict(
        token_level_loss=args.actor.loss_agg_mode == "token-mean",
        dual_clip=args.actor.dual_clip,
    )
    trainer.actor_loss_fn = PolicyLoss(
        low, high, policy_loss_type=config.flag("actor.policy_loss_type") or "ppo", **of_flags
    )
    trainer.use_loss(config.loss, config.loss_settings)
    if supervised_in:
        trainer.actor_loss_fn, trainer.replay_buffer.windows = supervised_loss(), supervised_in
    trainer.replay_buffer.rows_per_update = config.train.rows_per_update
    loss_fn = trainer.actor_loss_fn

    def spy(log_probs, old, advantages, action_mask, **others):
        loss_fn.recalled_B = spy.recalled_B
        for i, mask in enumerate(action_mask.bool()):
            if mask.any():
                sequence = engine.sequences[i]
                start = int(mask.int().argmax()) + 1
                tokens = sequence[1:][mask].tolist()
                prompt = sequence[:start][sequence[:start] > 0].tolist()
                seen.append((tuple(tokens), prompt, advantages[i][mask], old[i][mask]))
                if updates is not None:
                    updates.setdefault(together.local.rank, []).append(engine.update)
        return loss_fn(log_probs, old, advantages, action_mask=action_mask, **others)

    trainer.actor_loss_fn = spy
    for experience in experiences:
        trainer.replay_buffer.append(experience)
    status = trainer.ppo_train(0.0)
    if updates is not None:
        assert status["r3/update/updates"] == engine.update + 1
    windows = 1 if args.train.dynamic_batch_enable else trainer.strategy.accumulated_gradient
    return seen, math.fsum(losses) / windows / together.ranks  # as DeepSpeed divides
