"""Rows with advantage 0 leave the update: what it does to the weights and what it reports stay as they are."""

import random
from types import SimpleNamespace

import pytest
import torch

from r3_openrlhf.config.idle_rows import is_proportional, why_all_rows_stay
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.losses import LOSSES, LossSettings, TokenLoss
from r3_openrlhf.stack.idle_rows import (
    IDLE_ROWS,
    TRAINED_ROWS,
    agreed_counts,
    dealt,
    is_idle,
    num_actions,
    split_window,
    sums_of_rows,
)
from tests.stack.mixed_rows import experience_of, mixed_rows
from tests.stack.updates_on_ranks import movement, run_ranks, start_of

SETTINGS = LossSettings(0.2, 0.2, 3.0)
HALF = (0, 1, 2, 5, 6, 9, 10)  # of 7 rows and of 12: more than a half on the first rank
EVERY = tuple(range(12))
OF_ROWS = ("reward", "return", "response_length", "truncated", "total_length")
# the passes are in bfloat16, and another neighbour in a micro-batch rounds otherwise
CLOSE = 0.005
FP32 = {"ds.grad_accum_dtype": "fp32"}


# ── on real ranks ──


@pytest.mark.stack
@pytest.mark.parametrize(
    ("idle", "settings"),
    [
        (HALF, {"ranks": 1, "stage": 2}),
        (HALF, {"ranks": 2, "stage": 2, "loss": "gspo"}),
        (HALF, {"ranks": 2, "stage": 3, "loss": "gmpo", "off_policy": True}),
        (HALF, {"ranks": 2, "stage": 3, "dynamic": True, "loss": "sapo"}),
        (
            HALF,
            {"ranks": 2, "stage": 2, "more": {"train.batch_size": 4, "train.max_epochs": 2}},
        ),
        (
            HALF,
            {
                "ranks": 1,
                "stage": 2,
                "dynamic": True,
                "more": {"train.batch_size": 4, "actor.loss_agg_mode": "seq-mean-token-mean"},
            },
        ),
        (EVERY, {"ranks": 2, "stage": 2}),
        ((), {"ranks": 2, "stage": 3}),
    ],
    ids=lambda value: (
        "-".join(map(str, value.values())) if isinstance(value, dict) else f"{len(value)} idle"
    ),
)
def test_the_update_without_idle_rows_is_the_update_on_all(tmp_path, model, idle, settings):
    settings = settings | {
        "more": FP32 | settings.get("more", {}),
        "idle": idle,
        "micro_batch_size": 1,
    }
    every = run_ranks(tmp_path / "every", model, skips_idle=False, **settings)
    fewer = run_ranks(tmp_path / "fewer", model, skips_idle=True, **settings)
    for one, other in zip(every["statuses"], fewer["statuses"], strict=True):
        assert one["actor_grad_norm"] == pytest.approx(
            other["actor_grad_norm"], rel=CLOSE, abs=1e-7
        )
        for key in OF_ROWS:
            assert one[key] == pytest.approx(other[key], rel=1e-4, abs=1e-6), key
        assert TRAINED_ROWS not in one and other[TRAINED_ROWS] + other[IDLE_ROWS] in (7, 12)
    if idle:
        assert all(status[IDLE_ROWS] > 0 for status in fewer["statuses"])
    start = start_of(model)
    moved, wanted = movement(start, fewer["weights"]), movement(start, every["weights"])
    assert (moved - wanted).norm() <= 3 * CLOSE * wanted.norm() + 1e-9
    assert bool(wanted.any()) is (idle != EVERY)


@pytest.mark.stack
def test_the_reported_loss_is_what_was_differentiated(tmp_path, model):
    """At ratio 1 it is minus the mean advantage over all tokens, rows that left counted."""
    result = run_ranks(
        tmp_path,
        model,
        ranks=2,
        stage=2,
        idle=HALF,
        skips_idle=True,
        micro_batch_size=2,
        rows_per_step=[7],
        more=FP32,
    )
    rows = mixed_rows(7, seed=7)
    tokens = [len(row["tokens"]) - row["prompt"] for row in rows]
    gain = sum(
        row["advantage"] * count
        for i, (row, count) in enumerate(zip(rows, tokens, strict=True))
        if i not in HALF
    )
    assert result["statuses"][0]["policy_loss"] == pytest.approx(-gain / sum(tokens), rel=2e-2)


# ── which rows, and how they are laid out ──


def row_of(*, tokens=5, advantages=(0.0, 0.0), mask=(1, 1)):
    return SimpleNamespace(
        advantages=torch.tensor(advantages),
        action_mask=torch.tensor(mask),
        total_length=torch.tensor([float(tokens)]),
        info={},
    )


def test_a_row_is_idle_where_no_sampled_token_has_an_advantage():
    assert is_idle(row_of()) and is_idle(row_of(advantages=(0.0, 1.0), mask=(1, 0)))
    assert not is_idle(row_of(advantages=(0.0, -1e-8)))


@pytest.mark.parametrize("seed", range(50))
def test_windows_share_idle_rows_and_every_rank_makes_as_many_passes(seed):
    draw = random.Random(seed)
    windows, ranks, size = draw.randint(1, 4), draw.randint(1, 3), draw.randint(1, 9)
    most_rows = draw.randint(1, 3)
    share = draw.choice([0.0, 0.3, 0.9, 1.0])
    laid_out = []
    for _ in range(ranks):
        idle = [draw.random() < share for _ in range(windows * size)]
        lengths = [draw.randint(1, 99) for _ in idle]
        order = list(range(windows * size))
        draw.shuffle(order)
        parts = dealt(order, idle, windows)
        check_dealt(parts, order, idle, size)
        laid_out.append((idle, lengths, parts))

    def needed(rows):
        return max(1, -(-len(rows) // most_rows))

    agreed = [0] * windows  # what the ranks would tell each other
    for idle, lengths, parts in laid_out:
        own = agreed_counts(parts, idle, lengths, needed, lambda counts: counts)
        agreed = [max(pair) for pair in zip(agreed, own, strict=True)]

    def over_ranks(counts):
        return [max(pair) for pair in zip(agreed, counts, strict=True)]

    for idle, lengths, parts in laid_out:
        counts = agreed_counts(parts, idle, lengths, needed, over_ranks)
        assert counts == agreed
        for rows, count in zip(parts, counts, strict=True):
            stay, leave = split_window(rows, idle, lengths, count)
            assert sorted(stay + leave) == sorted(rows)
            assert len(stay) >= count >= needed(stay)
            check_split(stay, leave, idle, lengths)
            assert len(stay) == max(count, sum(not idle[i] for i in rows))


def check_dealt(parts, order, idle, size):
    """Each row is in one window of equal size; idle rows are spread evenly; without one the order stays."""
    dealt_rows = [i for rows in parts for i in rows]
    assert sorted(dealt_rows) == sorted(order)
    assert {len(rows) for rows in parts} == {size}
    if any(idle):
        counts = [sum(idle[i] for i in rows) for rows in parts]
        assert max(counts) - min(counts) <= 1
    else:
        assert dealt_rows == order


def check_split(stay, leave, idle, lengths):
    """Idle rows alone leave, and the longest of them."""
    assert all(idle[i] for i in leave)
    staying_idle = [lengths[i] for i in stay if idle[i]]
    if leave and staying_idle:
        assert max(staying_idle) <= min(lengths[i] for i in leave)


def test_sums_of_rows_leave_out_fillers_but_keep_their_keys():
    rows = [experience_of(row) for row in mixed_rows(3, seed=0)]
    rows[1].action_mask = torch.zeros_like(rows[1].action_mask)
    sums = sums_of_rows(rows)
    assert sums["rows"] == 2 and num_actions(rows[1]) == 0
    assert sums["reward"] == pytest.approx(sum(rows[i].info["reward"].item() for i in (0, 2)))
    assert sums_of_rows(rows[1:2]) == dict.fromkeys(sums, 0.0)


# ── when nothing may leave ──


def entropy_like(now, old, adv, mask):
    return -adv * now + 0.01 * now


def whitened(now, old, adv, mask):
    """Reads the other rows."""
    return -(adv - adv.mean()) * now


def squared(now, old, adv, mask):
    return -adv * now + adv.abs() * (now - old) ** 2


@pytest.mark.parametrize("name", list(LOSSES))
def test_every_loss_of_ours_is_proportional(name):
    assert is_proportional(LOSSES[name], SETTINGS)


def test_a_loss_of_ones_own_is_tried():
    assert not is_proportional(TokenLoss(entropy_like), SETTINGS)
    assert not is_proportional(TokenLoss(whitened), SETTINGS)
    assert is_proportional(TokenLoss(squared), SETTINGS)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ([], None),
        (["algo=grpo"], None),
        (["train.skip_zero_advantage=false"], "train.skip_zero_advantage is false"),
        (["algo=ppo"], "the critic"),
        (["train.kl_coef=0.01"], "train.kl_coef"),
        (["openrlhf.actor.entropy_coef=0.01"], "entropy_coef"),
        ([f"train.loss={__file__}:entropy_like"], "train.loss"),
        ([f"train.loss={__file__}:squared"], None),
    ],
)
def test_rows_stay_where_they_have_a_gradient(settings, why):
    found = why_all_rows_stay(load_config("cpu_smoke", settings))
    assert found is None if why is None else why in found
