"""Groups that start from a stored state, in the lab's loop."""

import numpy as np
import pytest
import torch

from r3_openrlhf.method.core.prefix import Continuations
from r3_openrlhf.method.history.codec import state_digest
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.study.lab.loop import Lab
from r3_openrlhf.study.lab.sampling import sample
from tests.study.lab.test_loop import config_of, wrong_and_right

ON = (
    "exploration.prefix=fractions",
    "reflection.threshold=0.5",
    "reflection.max_share=1",
    "reflection.enabled=false",
)


@pytest.fixture
def visited(model_dir, tmp_path):
    """A lab in its second epoch, two hard problems, and their history: one has a success, the other has none."""

    def make(*overrides):
        lab = Lab(config_of(tmp_path, *ON, "ranking.enabled=false", *overrides), model_dir=model_dir)
        labels = load_problems(lab.config.data).labels[:2]
        history = HistoryStore.open(":memory:")
        history.commit_step(1, 1, [one.rollout for one in wrong_and_right(lab, labels, right=[1, 0])])
        lab.step, lab.epoch, lab.tokens = 1, 2, 0
        return lab, labels, history

    return make


def groups_of(sampled):
    found = {}
    for one in sampled:
        found.setdefault(one.group, []).append(one.rollout)
    return list(found.values())


def test_hard_problems_go_on_from_a_stored_response(visited):
    lab, labels, history = visited()
    sampled, _ = lab.sample_step(labels, lab.r3_with(history))
    assert [group[0].context for group in groups_of(sampled)] == ["plain", "plain", "prefix", "prefix"]
    for label, group in zip(labels, groups_of(sampled)[2:], strict=True):
        verdict = Verdict.CORRECT if label is labels[0] else Verdict.WRONG  # a success where there is one
        stored = [one.rollout for one in history.recall(label.uid, verdict, k=9, step=1, max_policy_lag=9)]
        assert len({one.prefix_tokens for one in group}) == 1 and group[0].prefix_tokens >= 1
        for one in group:
            given = one.prefix_tokens
            source = next(s for s in stored if s.response_ids[:given].tolist() == one.response_ids[:given].tolist())
            np.testing.assert_array_equal(one.response_logprobs[:given], source.response_logprobs[:given])
            assert one.prompt_ids.tolist() == lab.encode(lab.plain_prompt(label)).tolist()
            assert given < one.num_tokens <= lab.config.rollout.max_new_tokens
            assert one.truncated == (one.response_ids[-1] != lab.tokenizer.eos_token_id)
    # only what was sampled is counted
    assert lab.tokens == sum(one.rollout.num_tokens - one.rollout.prefix_tokens for one in sampled)
    assert lab.tokens < sum(one.rollout.num_tokens for one in sampled)


def test_the_update_has_the_sampled_tokens_alone(visited):
    """The gradient against one row at a time, with the mask written out: 0 on the prompt and on the prefix."""
    lab, labels, history = visited("replay.enabled=false")
    sampled, _ = lab.sample_step(labels, lab.r3_with(history))
    for place, one in enumerate(sampled):  # a difference in every group
        one.rollout.verdict = Verdict.CORRECT if place % 2 else Verdict.WRONG
        one.rollout.reward = 1.5 if place % 2 else 0.0
    batch = lab.mixed_batch(sampled, lab.r3_with(history))
    assert any(row.rollout.prefix_tokens for row in batch.rows)
    total = sum(row.rollout.num_tokens - row.rollout.prefix_tokens for row in batch.rows)
    loss = 0.0
    for row in batch.rows:
        one, ids = row.rollout, [*row.rollout.prompt_ids, *row.rollout.response_ids]
        logp = lab.model(torch.tensor([ids]).long()).logits[0].log_softmax(-1)
        mask = [0.0] * (len(one.prompt_ids) + one.prefix_tokens) + [1.0] * (one.num_tokens - one.prefix_tokens)
        for t in range(1, len(ids)):
            new = logp[t - 1, int(ids[t])]
            loss = loss - mask[t] * row.advantage * (new - new.detach()).exp() / total
    lab.model.zero_grad()
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in lab.model.parameters()])
    lab.model.zero_grad()
    before = torch.cat([p.detach().flatten() for p in lab.model.parameters()])
    seen = {}

    def keep(*_):
        seen["gradient"] = torch.cat([p.grad.flatten().clone() for p in lab.model.parameters()])

    lab.optimizer.register_step_pre_hook(keep)
    update = lab.update(batch)
    scale = min(1.0, lab.config.train.max_grad_norm / (update.grad_norm + 1e-6))  # the step clips the norm
    torch.testing.assert_close(seen["gradient"], expected * scale, atol=1e-6, rtol=1e-3)
    assert (torch.cat([p.detach().flatten() for p in lab.model.parameters()]) != before).any()


def test_a_success_from_a_prefix_is_stored_whole_and_recalled_into_a_plain_group(visited):
    lab, labels, history = visited()
    sampled, _ = lab.sample_step(labels, lab.r3_with(history))
    continued = [one.rollout for one in sampled if one.rollout.context is Context.PREFIX]
    of_second = [one for one in continued if one.uid == labels[1].uid]
    for place, one in enumerate(of_second):
        one.verdict, one.reward = (Verdict.CORRECT, 1.5) if place == 0 else (Verdict.WRONG, 0.0)
    history.commit_step(2, 2, [one.rollout for one in sampled])
    known = history.continuations(labels[1].uid)
    state = state_digest(of_second[0].response_ids[: of_second[0].prefix_tokens])
    assert known == {state: Continuations(tries=4, successes=1)}
    lab.step = 2
    batch = lab.mixed_batch(wrong_and_right(lab, labels, right=[2, 0]), lab.r3_with(history))
    (recalled,) = [row for row in batch.rows if row.recalled]
    found = of_second[0]
    assert recalled.rollout.response_ids.tolist() == found.response_ids.tolist()
    np.testing.assert_array_equal(recalled.rollout.response_logprobs, found.response_logprobs)
    assert recalled.rollout.prefix_tokens == 0 and batch.has_own_prompt(recalled)
    # the next state is cut from the success
    again, _ = lab.sample_step([labels[1]], lab.r3_with(history))
    (start,) = {
        tuple(one.rollout.response_ids[: one.rollout.prefix_tokens].tolist())
        for one in again
        if one.rollout.context is Context.PREFIX
    }
    assert list(start) == found.response_ids[: len(start)].tolist()


def test_a_ranking_looks_at_what_was_sampled(visited):
    """The given tokens have the same log-probs in every row, and would pull short continuations to their mean."""
    lab, labels, history = visited("ranking.enabled=true", "ranking.score=logprob", "replay.enabled=false")
    sampled, _ = lab.sample_step(labels, lab.r3_with(history))
    for place, one in enumerate(sampled):
        rollout = one.rollout
        rollout.verdict, rollout.reward, rollout.truncated = Verdict.WRONG, 0.0, True
        if given := rollout.prefix_tokens:
            end = min(given + 1 + place % 4, rollout.num_tokens)  # the longest were the least likely
            rollout.response_ids, rollout.response_logprobs = (
                rollout.response_ids[:end],
                np.array([-9.0] * given + [-1.0 - place % 4] * (end - given), dtype=np.float32),
            )
    batch = lab.mixed_batch(sampled, lab.r3_with(history))
    groups = [[batch.rows[i] for i in g.rows] for g in batch.groups if g.context is Context.PREFIX]
    assert groups
    for rows in groups:
        means = [float(row.rollout.response_logprobs[row.rollout.prefix_tokens :].mean()) for row in rows]
        best_first = sorted(range(len(rows)), key=lambda i: -means[i])
        assert [rows[i].reward for i in best_first] == sorted((row.reward for row in rows), reverse=True)


@pytest.mark.parametrize(
    "overrides, contexts",
    [
        (("exploration.prefix=null",), 0),
        (("reflection.max_share=0.01",), 1),
    ],
)
def test_who_gets_a_group(visited, overrides, contexts):
    lab, labels, history = visited(*overrides)
    sampled, _ = lab.sample_step(labels, lab.r3_with(history))
    assert sum(group[0].context is Context.PREFIX for group in groups_of(sampled)) == contexts


def test_each_prompt_may_have_a_limit_of_its_own(model):
    eos = 40
    found = sample(
        model,
        [[5, 9, 11], [7], [12, 13]],
        n=4,
        max_new_tokens=[3, 9, 1],
        temperature=0.7,
        eos=eos,
        generator=torch.Generator().manual_seed(0),
    )
    for one in found:
        limit = (3, 9, 1)[one.prompt]
        ended = one.response_ids[-1] == eos
        assert one.truncated != ended and len(one.response_ids) <= limit
        assert len(one.response_ids) == limit or ended
    with pytest.raises(ValueError, match="1 or more"):
        sample(model, [[1]], n=1, max_new_tokens=[0], temperature=1.0, eos=eos, generator=torch.Generator())


def test_a_whole_run_counts_its_tokens(model_dir, tmp_path):
    lab = Lab(
        config_of(tmp_path, *ON, "train.num_epochs=3"),
        model_dir=model_dir,
    )
    metrics = lab.train().read_metrics()
    assert sum(line["r3/prefix/groups"] for line in metrics) > 0
    assert all(line["generated_tokens"] == line["response_tokens"] for line in metrics)
    kinds = ("mixed", "all_correct", "none_correct", "reflection", "prefix")
    for line in metrics:
        assert line["generated_tokens"] == sum(line[f"r3/tokens/{kind}"] for kind in kinds)
