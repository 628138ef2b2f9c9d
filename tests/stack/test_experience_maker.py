"""From graded rollouts to per-token advantages, held against OpenRLHF's own experience maker.

Only the log-probs, which need models, are given: everything else is the real code of both.
"""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.losses import LOSSES
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.settings import ImportedSettings, RehearsalSettings
from r3_openrlhf.method.types import Context, EntropyBounds, EntropyStatistics
from r3_openrlhf.stack import experience_values
from r3_openrlhf.stack.experience_maker import R3ExperienceMaker, StockExperienceMaker
from r3_openrlhf.stack.imported import measured
from r3_openrlhf.stack.read_rows import drawn
from tests.stack.experience_makers import (
    OFF,
    C,
    G,
    Given,
    Ours,
    Recording,
    U,
    W,
    by_row,
    config_with,
    group,
    maker,
    sample,
)

pytestmark = pytest.mark.stack


def history_with(*rollouts):
    store = HistoryStore.open(":memory:")
    store.commit_step(3, 1, list(rollouts))
    return store


class CriticOfPositions:
    """Two ranks of a critic whose value before a token is its position in the row."""

    _actor_handlers, duplicate_actors = (0, 1), 1

    def async_run_method_batch(self, *, method_name, sequences, attention_mask, action_mask):
        assert method_name == "forward" and len(sequences) % 2 == 0
        found = [torch.arange(1.0, mask.size(1) + 1)[None] for mask in action_mask]
        return [found[: len(found) // 2], found[len(found) // 2 :]]


def test_values_of_a_solution_are_before_each_of_its_tokens(monkeypatch):
    """As the value of its prefixes, which a batch is chosen by."""
    monkeypatch.setattr(experience_values.ray, "get", lambda refs: refs)
    rows = [sample(C, tokens=tuple(range(3, 3 + length))).r3_rollout for length in (4, 2, 5)]
    found = experience_values.values_of_solutions(CriticOfPositions(), rows)
    assert [values.tolist() for values in found] == [[2, 3, 4, 5], [2, 3], [2, 3, 4, 5, 6]]
    of_prefixes = experience_values.values_of_prefixes(CriticOfPositions(), rows, [1, 1, 3])
    assert of_prefixes == [found[0][1], found[1][1], found[2][3]]


def test_a_success_behind_a_reflection_prompt_joins_with_the_actors_logprobs_of_the_plain_prompt():
    stored = sample(C, tokens=(9, 9), step=2).r3_rollout
    stored.context, stored.prompt_ids = Context.REFLECTION, np.array([1, 8], dtype=np.int32)
    made = maker(
        Ours,
        history=history_with(stored),
        config=config_with(replay={"include_reflection": True}),
    )
    made.gap = 0.05
    experiences = made.make_experience_batch(group(W, W, W, W))
    last = experiences[-1]
    assert last.sequences[-1][:4].tolist() == [1, 2, 9, 9]  # the plain group's prompt
    # what the actor says (0.05 above the engine's here), not what the engine said behind the reflection prompt
    assert by_row(experiences, "action_log_probs")[4].tolist() == pytest.approx([-0.85] * 2)
    assert by_row(experiences, "rollout_log_probs")[4].tolist() == pytest.approx([-0.85] * 2)
    values = [row[0].item() for row in by_row(experiences, "advantages")]
    assert values[:4] == pytest.approx([-0.4472] * 4, abs=1e-3) and values[4] == pytest.approx(
        1.789, abs=1e-3
    )
    assert (made.metrics["r3/replay/recalled"], made.metrics["r3/replay/ratio_max"]) == (1, 0)
    assert [r["context"] for r in made.records if r["recalled_from"] == 3] == ["reflection"]


@pytest.mark.parametrize(
    ("weight", "old", "factor"),
    [
        ("clip", -0.9, 1.0),  # of the first policy
        ("ratio1", -0.85, 1.0),  # of this step's
        ("shaped", -0.85, 0.153657),  # p = e^-0.85 = .427415: .0427415 / .527415^2
        (lambda probs: 1 - probs, -0.85, 0.572585),
    ],
)
@pytest.mark.parametrize("rehearsed", [False, True])
def test_the_weight_of_an_imported_success_by_hand(weight, old, factor, rehearsed):
    """Rewards 0 0 0 0 1.5: advantage 1.788854; a rehearsed row's is 1. Own rows keep theirs, and replay.old_logprobs."""
    stored = sample(C, prompt="z" if rehearsed else "p", tokens=(9, 9), step=0).r3_rollout
    stored.context, stored.origin = Context.IMPORTED, "teacher T"
    config = config_with(
        replay={
            "old_logprobs": "recompute",
            "rehearse": RehearsalSettings(share=0.25),
            "imported": ImportedSettings(weight=weight),
        }
    )
    made = maker(Ours, history=history_with(stored), config=config)
    made.gap = 0.05
    experiences = made.make_experience_batch(group(W, W, W, W))
    assert by_row(experiences, "action_log_probs")[4].tolist() == pytest.approx([old] * 2)
    *fresh, last = by_row(experiences, "advantages")
    assert last.tolist() == pytest.approx(
        [factor * (1.0 if rehearsed else 1.788854)] * 2, abs=1e-5
    )
    assert all(
        row.tolist() == pytest.approx([0.0 if rehearsed else -0.447214] * len(row), abs=1e-5)
        for row in fresh
    )


@pytest.mark.parametrize(
    ("preset", "joined", "advantage", "gradient"),
    [
        # rewards 1 0 0 0 1 1: mean .5, std .547723; the gradient of a token's loss is -A at ratio 1
        ("rlep", 2, 0.912871, -0.912871),
        # rewards 1 0 0 0 1: mean .4; p = e^-.85 = .427415, and -.6 * .1 p / (p + .1)^2 = -.6 * .153657
        ("luffy", 1, 0.6, -0.092194),
        # r = e^.05 = 1.051271, and -.6 * .1 r / (r + .1)^2 = -.6 * .079315
        ("exgrpo", 1, 0.6, -0.047589),
    ],
)
def test_a_mixed_group_of_each_preset_by_hand(preset, joined, advantage, gradient):
    """Of three stored successes exgrpo takes the likeliest, which has -.9 nats a token."""
    stored = [sample(C, tokens=(9, 9 + i), reward=1.0, step=0).r3_rollout for i in range(3)]
    for one in stored:
        one.context, one.origin = Context.IMPORTED, "pool P"
    config = load_config("quickstart", [f"algo={preset}", "history.start=x"])
    made = maker(Ours, history=history_with(*stored), config=config)
    made.gap = 0.05
    fresh = [
        sample(verdict, tokens=(3, 4 + i), reward=float(verdict is C))
        for i, verdict in enumerate((C, W, W, W))
    ]
    experiences = made.make_experience_batch(fresh)
    assert made.metrics["r3/replay/recalled"] == joined
    assert by_row(experiences, "advantages")[4][0].item() == pytest.approx(advantage, abs=1e-5)
    assert gradient_of_recalled(config, experiences, now=-0.85) == pytest.approx(
        gradient, abs=1e-5
    )


def gradient_of_recalled(config, experiences, *, now):
    """The gradient of the loss of the fifth row's first token, which the actor says with `now`."""
    old_11, adv_11 = (
        by_row(experiences, name)[4][None, :1] for name in ("action_log_probs", "advantages")
    )
    now_11, is_one = torch.tensor([[now]], requires_grad=True), torch.ones(1, 1)
    loss, _ = config.loss.of(
        now_11, old_11, adv_11, is_one, settings=config.loss_settings, recalled=is_one.bool()
    )
    return torch.autograd.grad(loss.sum(), now_11)[0].item()


@pytest.mark.parametrize("weight", ["clip", "ratio1", "shaped"])
@pytest.mark.parametrize("loss", [*LOSSES, "examples/own_cispo.py:cispo"])
def test_a_foreign_style_needs_a_word_where_its_gradient_does_not_end(loss, weight):
    """It ends where the policy has learned what the first one gave -4 nats, or where it never says such tokens."""
    settings = [
        f"train.loss={loss}",
        f"replay.imported.weight={weight}",
        "replay.imported.min_logprob=null",
    ]
    more = [
        "train.loss_aggregation=seq-mean-token-mean",
        "stop.max_abs_logprob_gap=99",
        "algo=r3",
    ]
    config, gradients = load_config("quickstart", [*settings, *more]), []
    for first, now in ((-4.0, 0.0), (-20.0, -20.0)):
        stored = sample(C, tokens=(9, 9), step=0).r3_rollout
        stored.context, stored.origin, stored.response_logprobs = (
            Context.IMPORTED,
            "T",
            np.full(2, first, np.float32),
        )
        made = maker(Ours, history=history_with(stored), config=config)
        made.gap = now - first
        experiences = made.make_experience_batch(group(W, W, W, W))
        gradients.append(abs(gradient_of_recalled(config, experiences, now=now)))
    refused = pytest.raises(
        TrainingStopped, match=f"with weight={weight} and the loss {loss} would train"
    )
    with refused if min(gradients) > 0.01 else nullcontext():
        measured(config, [stored], [np.full(2, -4.5, np.float32)])


def test_a_rehearsed_success_of_another_problem_is_counted_apart_and_has_no_record():
    stored = sample(C, prompt="z", tokens=(9, 9), step=2).r3_rollout
    missed = [sample(W, prompt="z", tokens=(9, 8), step=2).r3_rollout for _ in range(3)]
    config = config_with(replay={"rehearse": RehearsalSettings(share=0.75)})
    made = maker(Ours, history=history_with(stored, *missed), config=config)
    made.make_experience_batch(group(C, W, C, W))
    assert (
        made.metrics["r3/replay/rehearsed"],
        made.metrics["r3/replay/recalled"],
        len(made.records),
    ) == (1, 0, 4)


@pytest.mark.parametrize("old", ["recompute", "behaviour"])
@pytest.mark.parametrize("rehearses", [False, True])
def test_a_recalled_row_has_one_set_of_log_probs(old, rehearses):
    """To the bit, so that its weight of train.correction is exactly 1; a fresh row has the engine's and the trainer's."""
    stored = sample(C, prompt="z" if rehearses else "p", tokens=(9, 9), step=2).r3_rollout
    missed = [sample(W, prompt="z", tokens=(9, 8), step=2).r3_rollout for _ in range(3)]
    replay = {"old_logprobs": old}
    if rehearses:
        replay["rehearse"] = RehearsalSettings(share=0.75)
    made = maker(Ours, history=history_with(stored, *missed), config=config_with(replay=replay))
    made.gap = 0.0517
    fresh = group(C, W, C, W) if rehearses else group(W, W, W, W)
    experiences = made.make_experience_batch(fresh)
    trainer, sampler = (
        by_row(experiences, name) for name in ("action_log_probs", "rollout_log_probs")
    )
    same = [torch.equal(one, other) for one, other in zip(trainer, sampler, strict=True)]
    assert same == [False] * 4 + [True]


@pytest.mark.parametrize("mode", ["recompute", "behaviour"])
def test_tensors_that_came_through_ray_are_not_written_to(mode):
    """They lie in its shared memory (RAY_ENABLE_ZERO_COPY_TORCH_TENSORS), where others may read them."""
    stored = sample(C, tokens=(9, 9), step=2).r3_rollout
    made = maker(
        Ours, history=history_with(stored), config=config_with(replay={"old_logprobs": mode})
    )
    made.gap = 0.05
    forward, given = made.make_experience, []

    def make_experience(samples_list):
        experiences = forward(samples_list)
        tensors = [t for e in experiences for t in (e.action_log_probs, e.rollout_log_probs)]
        given.extend((tensor, tensor.clone()) for tensor in tensors)
        return experiences

    made.make_experience = make_experience
    made.make_experience_batch(group(W, W, W, W))
    assert given and all(torch.equal(tensor, before) for tensor, before in given)


def test_too_many_ungraded_rollouts_stop_the_run():
    made = maker(Ours, config=config_with(**OFF))
    with pytest.raises(
        TrainingStopped,
        match="1 of 4 responses could not be graded: timeout .1.; that is 25% of this step",
    ):
        made.make_experience_batch(group(C, U, W, W))


def test_the_first_steps_say_what_looks_wrong():
    made = maker(Ours, config=config_with(**OFF))
    made.step = 0
    made.make_experience_batch(group(W, W, W, W, step=0))
    assert made.warnings["none correct"].startswith(
        "step 1: none of 4 graded responses is correct"
    )


SAID = r"on fresh rollouts is 0\.2 nats, 99th percentile 0\.2 nats, 100% of the tokens outside"


@pytest.mark.parametrize(("gap", "said"), [(0.2, SAID), (float("nan"), "nan nats")])
def test_a_broken_sync_stops_the_run_before_the_update(gap, said):
    made = maker(Ours, config=config_with(**OFF))
    made.gap = gap
    with pytest.raises(TrainingStopped, match=said):
        made.make_experience_batch(group(C, W, W, W))


def test_a_few_tokens_that_are_far_off_stop_the_run_under_a_small_mean(monkeypatch):
    # the gap of every token is the same here
    monkeypatch.setattr("r3_openrlhf.stack.experience_maker.P99_FACTOR", 0.1)
    made = maker(Ours, config=config_with(**OFF, stop={"max_abs_logprob_gap": 1.0}))
    made.gap = 0.2
    with pytest.raises(
        TrainingStopped,
        match=r"percentile 0\.2 nats, .*max_abs_logprob_gap=1\.0 allows that mean and 0\.1 times it",
    ):
        made.make_experience_batch([sample(C), sample(W)] * 2)
    made.config.stop.max_abs_logprob_gap = 3.0
    made.make_experience_batch([sample(C), sample(W)] * 2)
    assert made.metrics["r3/sync/p99_logprob_gap"] == pytest.approx(0.2)
    assert made.metrics["r3/sync/outside_clip_share"] == 1.0  # exp(0.2) is above 1.2


def test_a_ranking_by_logprob_needs_no_entropy():
    """Mean log-prob falls with length in these rows, so the shortest ranks first. The actor is asked for nothing."""
    rows = [sample(W, tokens=tuple(range(3, 6 + i)), truncated=True) for i in range(G)]
    made = maker(Ours, config=config_with(ranking={"score": "logprob"}), history=history_with())
    made._announce_entropy = lambda *asked: pytest.fail("exact entropy was asked for")
    made.make_experience_batch(rows)
    assert [r["ranking_reward"] for r in made.records] == pytest.approx(
        [0.5, 1 / 3, 1 / 6, 0.0]
    )
    # centred
    assert [r["reward"] for r in made.records] == pytest.approx([0.25, 1 / 12, -1 / 12, -0.25])
    assert {(r["group_replay"], r["group_ranking"]) for r in made.records} == {
        ("never_sampled", "ranked")
    }
    assert [r["entropy_source"] for r in made.records] == [None] * G


def test_an_ungraded_rollout_scores_as_its_siblings_do_with_rewards_below_zero():
    """The one success of three pays less than nothing; the filler's score is 1/3, and its reward their mean."""
    made = maker(Recording, config=config_with(reward={"max_ungraded_rate": 0.5}))
    rollouts = [
        sample(C, reward=-0.5),
        sample(U),
        sample(W, reward=-1.0),
        sample(W, reward=-1.5),
    ]
    made.make_experience_batch(rollouts + group(C, W, C, W, prompt="q"))
    assert (rollouts[1].rewards.item(), rollouts[1].scores.item()) == (
        -1.0,
        pytest.approx(1 / 3),
    )


class Measuring(Ours):
    """An actor whose tokens have the entropies 0, 1, 2, ..."""

    def _exact_entropy(self, samples_list):
        found = {}
        for samples in samples_list:
            for place, index in enumerate(samples.index):
                tokens = np.arange(int(samples.action_mask[place].sum()), dtype=np.float16)
                if index in self.wanted:
                    found[index] = EntropyStatistics(
                        peak=10.0 - index, global_=index / 10, source="exact", tokens=tokens
                    )
        return found, 0.0


@pytest.mark.parametrize(("kept", "rows"), [("used", 4), ("all", 9)])
def test_which_entropies_of_tokens_are_kept(kept, rows):
    """A group that is ranked, one that is not, and a recalled row. With "all" the ranking is the same."""
    stored = sample(C, tokens=(9, 9), step=2).r3_rollout
    config = config_with(logging={"token_values": kept})
    made = maker(Measuring, history=history_with(stored), config=config)
    experiences = made.make_experience_batch(
        group(W, W, W, W, truncated=True) + group(C, W, C, W, prompt="q")
    )
    records = {(r["uid"], r["num_tokens"], r["recalled_from"]): r for r in made.records}
    found = {
        key: r["token_entropy"] for key, r in records.items() if r["token_entropy"] is not None
    }
    assert len(found) == rows
    assert all(values.tolist() == list(range(key[1])) for key, values in found.items())
    assert [r["reward"] for r in made.records[:4]] == pytest.approx(
        [0.5, 1 / 3, 1 / 6, 0.0], abs=0.5
    )
    assert [r["ranked"] for r in made.records] == [True] * 4 + [False] * 5
    assert len(by_row(experiences, "advantages")) == 9
    recalled = records["p", 2, 3]
    assert recalled["entropy_peak"] is None  # this step's policy did not sample it


def test_a_ranking_by_bounds_stays_one_when_all_entropies_are_kept():
    rows = [sample(W, tokens=tuple(range(3, 6 + i)), truncated=True) for i in range(G)]
    for i, row in enumerate(rows, start=1):
        found = dict(peak_lower=i, peak_upper=i, global_lower=1 / i, global_upper=1 / i)
        row.r3_rollout.entropy_bounds = EntropyBounds(**found)
    config = config_with(ranking={"entropy_source": "topk"}, logging={"token_values": "all"})
    made = maker(Measuring, config=config, history=history_with())
    made.make_experience_batch(rows)
    assert [r["entropy_source"] for r in made.records] == ["topk"] * G
    assert [len(r["token_entropy"]) for r in made.records] == [3, 4, 5, 6]


@pytest.mark.parametrize("kept", ["used", "all"])
@pytest.mark.parametrize("mode", ["recompute", "behaviour"])
def test_rows_keep_their_logprobs_then_and_now(mode, kept):
    """exp(now - then) is the ratio, whatever the update takes it against: of recalled rows, with "all" of fresh ones too."""
    stored = sample(C, tokens=(9, 9), step=2).r3_rollout
    config = config_with(replay={"old_logprobs": mode}, logging={"token_values": kept})
    made = maker(Measuring, history=history_with(stored), config=config)
    made.gap = 0.05
    made.make_experience_batch(group(W, W, W, W))
    (recalled,) = [r for r in made.records if r["recalled_from"] is not None]
    # the store keeps ids only
    assert (recalled["recalled_from"], recalled["text"]) == (
        3,
        "[9, 9]",
    )
    assert made.metrics["r3/replay/recalled"] == 1 and made.metrics["r3/replay/mean_lag"] == 3
    assert recalled["token_logprob"].tolist() == pytest.approx([-0.9] * 2, abs=1e-3)
    assert recalled["token_policy_logprob"].tolist() == pytest.approx([-0.85] * 2, abs=1e-3)
    for fresh in (r for r in made.records if r is not recalled):
        if kept == "used":
            assert fresh["token_logprob"] is fresh["token_policy_logprob"] is None
        else:
            assert fresh["token_policy_logprob"] - fresh["token_logprob"] == pytest.approx(
                0.05, abs=2e-3
            )
            assert len(fresh["token_policy_logprob"]) == fresh["num_tokens"]
    assert [r["prompt"] for r in made.records] == ["p"] * 5


def test_a_stock_estimator_keeps_prompts_and_what_is_asked_for():
    made = maker(Recording, config=config_with(logging={"token_values": "all"}))
    made.gap = 0.05
    made.make_experience_batch(group(C, W, W, C) + group(W, C, C, C, prompt="q"))
    assert [r["prompt"] for r in made.records] == ["p"] * 4 + ["q"] * 4
    assert all(
        len(r["token_logprob"]) == r["num_tokens"] and r["token_entropy"] is None
        for r in made.records
    )
    assert all(
        r["token_policy_logprob"] - r["token_logprob"] == pytest.approx(0.05, abs=2e-3)
        for r in made.records
    )


# ── rows that nobody reads ──


class Passing(Given):
    """Remembers which rows passed through the policy, in which micro-batches. Its log-probs tell."""

    gap = 0.05

    def make_experience(self, samples_list):
        self.passed = [list(samples.index) for samples in samples_list]
        experiences = super().make_experience(samples_list)
        for experience in experiences:
            experience.info |= {
                "kl": torch.zeros(len(experience.index)),
                "logprobs_diff": torch.zeros(len(experience.index)),
            }
        return experiences

    def _exact_entropy(self, samples_list):
        found, seconds = super()._exact_entropy(samples_list)
        passed = {index for batch in self.passed for index in batch}
        return {i: values for i, values in found.items() if i in passed}, seconds


class OursPassing(Passing, R3ExperienceMaker):
    pass


class StockPassing(Passing, StockExperienceMaker):
    pass


def drawn_groups(draw, *, ungraded=True):
    """Groups that collapsed, mixed ones, some with truncated or ungraded responses."""
    found = []
    for number in range(draw.randint(2, 8)):
        kind = draw.choice(["right", "wrong", "wrong", "mixed", "cut"])
        for _ in range(G):
            verdict = {"right": C, "mixed": draw.choice([C, W])}.get(kind, W)
            if ungraded and draw.random() < 0.1:
                verdict = U
            # a right answer's reward has its length in it
            tokens = tuple(range(3, 6 if kind == "right" else draw.randint(5, 12)))
            cut = kind == "cut" and draw.random() < 0.7
            found.append(sample(verdict, prompt=f"p{number}", tokens=tokens, truncated=cut))
    return found


def step_of(cls, draw, *, skips, ranks, dynamic):
    draw = random.Random(draw)
    stored = [sample(C, prompt=f"p{i}", tokens=(9, 9), step=2).r3_rollout for i in (0, 3)]
    stock = cls is StockPassing
    # without a centred ranking a failure beside the ranked ones has an advantage, too
    ranking = {"ranking": {"guard": draw.choice(["centred", "no_std", "none"])}}
    config = config_with(
        **(OFF if stock else ranking),
        train={"skip_zero_advantage": skips},
        reward={"max_ungraded_rate": 1.0},
    )
    history = None if stock else history_with(*stored)
    made = maker(cls, history=history, config=config, ranks=ranks)
    made.args.train.dynamic_batch_enable = dynamic
    samples = drawn_groups(draw)
    return made, samples, made.make_experience_batch(samples)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cls", [OursPassing, StockPassing])
@pytest.mark.parametrize(("ranks", "dynamic"), [(1, False), (2, False), (4, True)])
def test_a_row_that_nobody_reads_does_not_pass_and_nothing_else_changes(
    cls, seed, ranks, dynamic
):
    every, _, wanted = step_of(cls, seed, skips=False, ranks=ranks, dynamic=dynamic)
    made, _, found = step_of(cls, seed, skips=True, ranks=ranks, dynamic=dynamic)
    # the update's rows, micro-batches and advantages are the same
    assert [one.index for one in found] == [one.index for one in wanted]
    for name in ("sequences", "action_mask", "rollout_log_probs", "advantages", "rewards"):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(getattr(one, name), getattr(other, name))
    passed = {index for batch in made.passed for index in batch}
    check_rows_that_passed(found, wanted, passed)
    # every rank has as many passes, and no more rows pass than fill the ranks
    assert len(made.passed) % ranks == 0
    if not dynamic:
        assert len(set(rows_per_rank(made.passed, ranks))) == 1
    check_same_metrics(made.metrics, every.metrics)


def check_rows_that_passed(found, wanted, passed):
    """What passed has the log-probs of a step that skips none; what did not has no advantage."""
    advantages = by_row(found, "advantages")
    logprobs = by_row(found, "action_log_probs")
    old = by_row(wanted, "action_log_probs")
    for i in range(len(advantages)):
        if i in passed:
            torch.testing.assert_close(logprobs[i], old[i])
        else:
            assert not advantages[i].any()
    idle = [i for i, values in enumerate(advantages) if len(values) and not values.any()]
    if any(i not in passed for i in idle):
        assert any(i in passed for i in idle)  # the gap is measured on some of them


def rows_per_rank(passed, ranks):
    """Rows of each rank's passes; the ranks have as many passes, one rank's after the other's."""
    per_rank = len(passed) // ranks
    by_rank = [passed[rank * per_rank : (rank + 1) * per_rank] for rank in range(ranks)]
    return [sum(map(len, passes)) for passes in by_rank]


def check_same_metrics(found, wanted):
    assert found["r3/sync/rows"] <= wanted["r3/sync/rows"]
    assert found["r3/sync/abs_logprob_gap"] == pytest.approx(0.05, abs=1e-6)
    times = {key for key in found if key.startswith("r3/time/")}
    for key in wanted.keys() - times - {"r3/sync/rows"}:
        assert found[key] == pytest.approx(wanted[key], rel=1e-5), key


@pytest.mark.parametrize("cls", [OursPassing, StockPassing])
def test_of_a_step_that_teaches_nothing_one_row_in_sixteen_passes(cls):
    made = maker(cls, config=config_with(**OFF))
    made.make_experience_batch([sample(W, prompt=f"p{i}") for i in range(10) for _ in range(G)])
    assert sum(map(len, made.passed)) == 3 and made.metrics["r3/sync/rows"] == 3


@pytest.mark.parametrize(
    ("settings", "passed"),
    [
        ({}, 1),
        ({"logging": {"token_values": "all"}}, 8),
        ({"train": {"skip_zero_advantage": False}}, 8),
        ({"train": {"kl_coef": 0.01}}, 8),
    ],
)
def test_what_is_read_of_every_row_is_computed_of_every_row(settings, passed):
    made = maker(StockPassing, config=config_with(**OFF | settings))
    made.make_experience_batch(group(W, W, W, W) + group(W, W, W, W, prompt="q"))
    assert sum(map(len, made.passed)) == passed


def test_another_step_compares_other_rows():
    rows = range(160)
    lots = {step: drawn(rows, seed=1, step=step) for step in (1, 2)}
    assert lots[1] != lots[2] and lots[1] == drawn(rows, seed=1, step=1)
    assert len(lots[1]) == 10 and drawn([], seed=1, step=1) == set()
