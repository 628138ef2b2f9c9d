"""What enters the loss: for every algorithm, group size, kind of group and layout the advantages, old log-probs, masks and
denominators of the real experience maker, replay buffer and update loop, against written_out.py."""

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from openrlhf.models.loss import PolicyLoss, SFTLoss
from openrlhf.trainer.ppo_utils.experience import balance_experiences
from openrlhf.trainer.ray import ppo_actor
from transformers import get_scheduler

from r3_openrlhf.config.algorithms import ALGORITHMS, overlong_penalty
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.stack import warm_start
from r3_openrlhf.stack.policy_update import (
    R3ActorTrainer,
    R3ReplayBuffer,
    scaled_rate,
    supervised_loss,
)
from tests.method.core.test_losses import written_out as loss_of_row
from tests.stack import written_out
from tests.stack.test_baselines import ValuedRecording
from tests.stack.test_experience_maker import Ours, arguments, maker, sample

pytestmark = pytest.mark.stack
C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED
GAP, MAX_TOKENS, NUM_GROUPS = 0.05, 24, 4  # the actor's log-probs are above the engine's
OWN = {  # what is tried of R³: the settings, and their reading in written_out.r3
    "r3": (["algo=r3"], {}),
    "r3 weighed": (["algo=r3", "advantage.success_scale=3"], {"weight": 3.0}),
    **{f"r3 {name}": (["algo=r3", f"train.loss={name}"], {}) for name in ("cispo", "luffy")},
    "of a user": (
        [
            "algo=r3",
            "advantage.function=examples/own_maxrl.py:maxrl",
            "train.loss=examples/own_cispo.py:cispo",
        ],
        {"estimator": "maxrl"},
    ),
    "r3 recompute": (["algo=r3", "replay.old_logprobs=recompute"], {"behaviour": False}),
    "r3 alpha": (["algo=r3", "advantage.alpha=2"], {"alpha": 2.0}),
    **{
        f"r3 {name}": (["algo=r3", f"advantage.function={name}"], {"estimator": name})
        for name in ("rloo", "dr_grpo", "maxrl", "gpg")
    },
    **{
        f"r3 {name}": (
            ["algo=r3", f"advantage.function={name}", "ranking.enabled=false"],
            {"estimator": name},
        )
        for name in ("nsr", "w_reinforce")
    },
}
STOCK = [name for name, one in ALGORITHMS.items() if not one.own_advantages]
SINGLE = [name for name in STOCK if not ALGORITHMS[name].compares_groups]
NOTHING_RECALLED = ("graded", "ungraded", "partial", "truncated", "short")
KINDS = (*NOTHING_RECALLED, "recalled", "reflection", "rehearsed")
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


def current_logprob(token):
    """At the update: beyond the clip, in both directions, for some tokens."""
    return sampled_logprob(token) + GAP + (token % 5 - 2) * 0.15


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


def expected_rows(name, rollouts):
    every = [one.r3_rollout for one in rollouts.samples]
    if name in OWN:
        return written_out.r3(
            every, rollouts.stored, rehearsed=rollouts.rehearsed, **OWN[name][1]
        )
    algorithm = ALGORITHMS[name]
    penalty = (
        (lambda n: overlong_penalty(n, max_tokens=MAX_TOKENS))
        if algorithm.overlong_penalty
        else (lambda n: 0.0)
    )
    critic = lambda one: [math.cos(7 * logprob) for logprob in one.response_logprobs.tolist()]  # noqa: E731
    return written_out.stock(
        every, estimator=algorithm.estimator, penalty=penalty, values_of=critic
    )


CASES = [
    (name, kind)
    for name in [*OWN, *STOCK]
    for kind in (KINDS if name in OWN else NOTHING_RECALLED)
]


@pytest.mark.parametrize(
    ("name", "kind", "g"),
    [
        *((*case, 8) for case in CASES),
        *(pytest.param(*case, 3, marks=pytest.mark.soak) for case in CASES),
        *(pytest.param(*case, 16, marks=pytest.mark.soak) for case in CASES),
        *((name, kind, 1) for name in SINGLE for kind in ("graded", "ungraded")),
    ],
)
def test_what_enters_the_loss_is_what_the_page_says(name, kind, g, monkeypatch):
    settings = OWN[name][0] if name in OWN else [f"algo={name}"]
    if kind == "rehearsed":
        settings = [*settings, "replay.rehearse.share=0.25"]
    config = config_of(settings, g)
    for layout, (ranks, dynamic, packed) in LAYOUTS.items():
        with monkeypatch.context() as patch:
            rollouts = Rollouts(kind, g)
            rows = {tuple(row.tokens): row for row in expected_rows(name, rollouts)}
            found = entering(
                config, rollouts, ranks=ranks, dynamic=dynamic, packed=packed, monkeypatch=patch
            )
        seen = [row for of_rank, _ in found for row in of_rank]
        # the masks: all, and each once
        assert sorted(tokens for tokens, *_ in seen) == sorted(rows), layout
        for tokens, prompt, advantages, old in seen:
            assert prompt == rows[tokens].prompt, layout
            check_row(rows[tokens], tokens, advantages, old)
        # the denominators
        total = math.fsum(loss for _, loss in found)
        expected = whole_loss(config, rows.values())
        assert total == pytest.approx(expected, rel=1e-4, abs=1e-6), layout


def check_row(row, tokens, advantages, old):
    """The advantages and the log-probs before the update, at the tokens of a row."""
    torch.testing.assert_close(advantages, torch.tensor(row.advantages), rtol=3e-6, atol=2e-6)
    sampled = torch.tensor([sampled_logprob(token) for token in tokens])
    before = sampled if row.stored else sampled + GAP
    # a row without a gradient need not have passed through the policy
    if not any(row.advantages) and old.allclose(sampled, atol=1e-6):
        return
    torch.testing.assert_close(old, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "kind", "most"),
    [
        ("r3", "recalled", 8),
        ("r3", "recalled", 16),
        ("r3", "ungraded", 10),
        ("grpo", "graded", 8),
        ("ppo", "graded", 64),
    ],
)
def test_a_step_makes_an_update_for_so_many_rows(name, kind, most, monkeypatch):
    """As few updates as hold them, of equal size but for fillers, each with its own denominators."""
    config = config_of([f"algo={name}", f"train.rows_per_update={most}"], 8)
    for layout, (ranks, dynamic, packed) in LAYOUTS.items():
        with monkeypatch.context() as patch:
            rollouts, updates = Rollouts(kind, 8), {}
            rows = {tuple(row.tokens): row for row in expected_rows(name, rollouts)}
            found = entering(
                config,
                rollouts,
                ranks=ranks,
                dynamic=dynamic,
                packed=packed,
                monkeypatch=patch,
                updates=updates,
            )
        of_updates = {}
        for rank, (seen, _) in enumerate(found):
            for (tokens, *_), number in zip(seen, updates[rank], strict=True):
                of_updates.setdefault(number, []).append(tokens)
        assert len(of_updates) == -(-len(rows) // most), layout
        sizes = [len(one) for one in of_updates.values()]
        assert max(sizes) <= most and max(sizes) - min(sizes) <= 2 * len(sizes) * ranks, layout
        assert sorted(sum(of_updates.values(), [])) == sorted(rows), layout
        total = math.fsum(
            whole_loss(config, [rows[tokens] for tokens in one]) for one in of_updates.values()
        )
        assert math.fsum(loss for _, loss in found) == pytest.approx(total, rel=1e-4, abs=1e-6)


class Actors:
    """The policy's ranks, as threads, for a warm start."""

    def __init__(self, config, args, together):
        self.config, self.args, self.together, self.found = config, args, together, None

    def async_run_method_batch(self, *, method_name, experience):
        assert method_name == "append"
        self.rows = experience

    def async_run_method(self, name, *, windows, scale):
        assert (name, scale) == ("fit_supervised", 1.0)
        rows, ranks = self.rows, self.together.ranks
        if self.args.train.dynamic_batch_enable:
            rows = balance_experiences(rows, self.args)
        chunk = len(rows) // ranks
        self.found = self.together.run(
            lambda rank: one_rank(
                self.config,
                self.args,
                rows[rank * chunk : (rank + 1) * chunk],
                self.together,
                supervised_in=windows,
            )
        )
        return [{}]


@pytest.mark.parametrize(
    ("layout", "batch_size"), [*((name, 12) for name in LAYOUTS), ("one rank", 6)]
)
def test_supervised_training_is_openrlhfs_loss_over_all_tokens_at_once(
    layout, batch_size, monkeypatch
):
    """The mean over an update's tokens, whatever micro-batches they meet in (arXiv 2604.23747 found a
    mean of means in the baselines of others); two updates: of each its own tokens."""
    ranks, dynamic, packed = LAYOUTS[layout]
    config = config_of(["algo=r3"], 3)
    rows = [one.r3_rollout for one in Rollouts("graded", 3).samples]
    assert len({one.num_tokens for one in rows}) > 5
    actors = Actors(
        config,
        args_of(config, ranks, dynamic=dynamic, packed=packed),
        Together(ranks, monkeypatch),
    )
    actors.args.ds.enable_sleep = False
    monkeypatch.setattr(warm_start, "ray", SimpleNamespace(get=lambda refs: refs))
    warm_start.warm_start(
        actors, rows, actors.args, passes=1, pad_token_id=0, batch_size=batch_size
    )
    seen = [row for of_rank, _ in actors.found for row in of_rank]
    assert sorted(tokens for tokens, *_ in seen) == sorted(
        tuple(one.response_ids.tolist()) for one in rows
    )
    updates = [seen] if batch_size == 12 else [seen[:6], seen[6:]]
    expected = [openrlhfs_sft_loss([tokens for tokens, *_ in one]) for one in updates]
    total = math.fsum(loss for _, loss in actors.found)
    assert total == pytest.approx(math.fsum(expected), rel=1e-5)


def openrlhfs_sft_loss(rows):
    """Upstream's SFTLoss over a padded batch of all rows."""
    width = max(map(len, rows))
    logprobs_BA, mask_BA = torch.zeros(len(rows), width), torch.zeros(len(rows), width)
    for i, tokens in enumerate(rows):
        logprobs_BA[i, : len(tokens)] = torch.tensor([current_logprob(one) for one in tokens])
        mask_BA[i, : len(tokens)] = 1
    return SFTLoss()(logprobs_BA, mask_BA).item()


def test_the_rate_of_supervised_training_is_the_schedules_again_afterwards():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=10)
    rates = []
    with scaled_rate(optimizer, scheduler, 4.0):
        for _ in range(2):
            parameter.grad = torch.ones(1)
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    assert rates == [2.0, 1.8]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.35)


def whole_loss(config, rows):
    """A mean over the step's tokens, or over its responses."""
    kind = config.flag("actor.policy_loss_type") or config.train.loss.rpartition(":")[2]
    of_rows = []
    for row in rows:
        old = [sampled_logprob(token) + (0.0 if row.stored else GAP) for token in row.tokens]
        now = list(map(current_logprob, row.tokens))
        per_token = [
            loss_of_row(kind, now, old, advantage, row.recalled, *config.loss_settings)[t]
            for t, advantage in enumerate(row.advantages)
        ]
        of_rows.append((math.fsum(per_token), len(row.tokens)))
    if config.train.loss_aggregation == "token-mean":
        return math.fsum(total for total, _ in of_rows) / sum(count for _, count in of_rows)
    return math.fsum(total / count for total, count in of_rows) / len(of_rows)


@pytest.mark.parametrize("algo", ["r3", *(name for name in STOCK if name not in SINGLE)])
def test_a_group_of_one_is_refused(algo):
    with pytest.raises(
        ConfigError, match="n_samples_per_prompt is 1, but algo is .*compares the responses"
    ):
        config_of([f"algo={algo}"], 1)
