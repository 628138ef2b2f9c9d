"""What enters the loss: for every algorithm, group size, kind of group and layout the advantages, old log-probs, masks and
denominators of the real experience maker, replay buffer and update loop, against written_out.py."""

import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models.loss import SFTLoss
from openrlhf.trainer.ppo_utils.experience import balance_experiences
from transformers import get_scheduler

from r3_openrlhf.config.algorithms import ALGORITHMS, overlong_penalty
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.stack import warm_start
from r3_openrlhf.stack.policy_update import (
    scaled_rate,
)
from tests.method.core.written_losses import written_out as loss_of_row
from tests.stack import written_out
from tests.stack.entering_the_loss import (
    GAP,
    LAYOUTS,
    MAX_TOKENS,
    Rollouts,
    Together,
    args_of,
    config_of,
    entering,
    one_rank,
    sampled_logprob,
)

pytestmark = pytest.mark.stack
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


def current_logprob(token):
    """At the update: beyond the clip, in both directions, for some tokens."""
    return sampled_logprob(token) + GAP + (token % 5 - 2) * 0.15


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
