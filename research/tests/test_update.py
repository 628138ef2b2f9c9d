"""The lab's update, against autograd on one row at a time and against OpenRLHF's loss."""

import copy
import math

import numpy as np
import pytest
import torch

from r3_openrlhf.method.core.losses import LOSSES, LossSettings
from research.update import TrainedRow, accumulate_gradient, make_optimizer, step
from tests.method.rehearsals import rehearsal_history


@pytest.fixture
def history():
    with rehearsal_history() as store:
        yield store


def rows_of(seed=0, count=9, behaviour=False):
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        response = draw.integers(1, 60, draw.integers(1, 12)).astype(np.int32)
        rows.append(
            TrainedRow(
                prompt_ids=draw.integers(1, 60, draw.integers(1, 8)).astype(np.int32),
                response_ids=response,
                advantage=float(draw.normal()),
                old_logprobs=draw.normal(-4, 0.5, len(response)).astype(np.float32)
                if behaviour
                else None,
            )
        )
    return rows


def row_by_row(model, rows, *, low, high, temperature):
    """The formula of the docstring, one row and one token at a time."""
    tokens = sum(len(row.response_ids) for row in rows)
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]]).long()
        logp = (model(ids).logits[0] / temperature).log_softmax(-1)
        for t, token in enumerate(row.response_ids):
            new = logp[len(row.prompt_ids) - 1 + t, int(token)]
            old = (
                new.detach() if row.old_logprobs is None else torch.tensor(row.old_logprobs[t])
            )
            ratio = (new - old).exp()
            gain = torch.min(
                ratio * row.advantage, ratio.clamp(1 - low, 1 + high) * row.advantage
            )
            (-gain / tokens).backward(retain_graph=True)


@pytest.mark.parametrize("behaviour", [False, True])
@pytest.mark.parametrize("micro_batch_size", [1, 4, 100])
def test_the_gradient_is_that_of_the_formula(model, behaviour, micro_batch_size):
    rows = rows_of(count=20, behaviour=behaviour)
    draw = np.random.default_rng(1)
    # near the policy, so that ratios fall on both sides of both bounds
    for row in rows if behaviour else ():
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]]).long()
        logp = (
            (model(ids).logits[0, len(row.prompt_ids) - 1 : -1] / 0.8).log_softmax(-1).detach()
        )
        own = logp.gather(1, torch.tensor(row.response_ids).long()[:, None])[:, 0].numpy()
        row.old_logprobs = (own + draw.normal(0, 0.4, len(own))).astype(np.float32)
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    accumulate_gradient(
        ours,
        rows,
        temperature=0.8,
        settings=LossSettings(0.1, 0.4),
        micro_batch_size=micro_batch_size,
    )
    row_by_row(theirs, rows, low=0.1, high=0.4, temperature=0.8)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-6)


def test_the_loss_on_the_current_policy_is_minus_the_mean_advantage_per_token(model):
    rows = rows_of(3)
    gradient = accumulate_gradient(
        copy.deepcopy(model), rows, temperature=1.0, micro_batch_size=4
    )
    tokens = sum(len(row.response_ids) for row in rows)
    assert gradient.ratio_max == 0.0  # no row has stored log-probs
    assert gradient.loss == pytest.approx(
        -sum(row.advantage * len(row.response_ids) for row in rows) / tokens, abs=1e-5
    )


def test_a_step_clips_and_clears(model):
    policy = copy.deepcopy(model)
    optimizer = make_optimizer(policy, learning_rate=1e-3)
    rows = rows_of(4)
    accumulate_gradient(policy, rows, temperature=1.0, micro_batch_size=4)
    norm = math.sqrt(sum((p.grad**2).sum().item() for p in policy.parameters()))
    assert step(policy, optimizer, max_grad_norm=1e-3) == pytest.approx(norm, rel=1e-4)
    assert all(parameter.grad is None for parameter in policy.parameters())
    # Adam's first step moves every weight that has a gradient by the learning rate
    moved = torch.cat(
        [
            (a - b).flatten()
            for a, b in zip(policy.parameters(), model.parameters(), strict=True)
        ]
    ).abs()
    assert moved.max().item() == pytest.approx(1e-3, rel=0.05)


def test_the_logprobs_are_the_policys_row_by_row(model):
    rows = rows_of(5)  # sorted by length inside
    gradient = accumulate_gradient(
        copy.deepcopy(model), rows, temperature=0.8, micro_batch_size=4
    )
    for row, found in zip(rows, gradient.logprobs, strict=True):
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]]).long()
        logp = (
            (model(ids).logits[0, len(row.prompt_ids) - 1 : -1] / 0.8).log_softmax(-1).detach()
        )
        own = logp.gather(1, torch.tensor(row.response_ids).long()[:, None])[:, 0].numpy()
        np.testing.assert_allclose(found, own, rtol=1e-4, atol=1e-5)


class Counted(torch.nn.Module):
    """The model, which counts the packs of rows that are run through it, and the responses in them."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.lm_head, self.packs, self.responses = model.model, model.lm_head, 0, 0

    def model(self, ids, **_places):
        self.packs += len(ids)
        # a response begins where the place jumps back, or behind its prompt
        self.responses += len(ids) + int((_places["position_ids"].diff() < 0).sum())
        return self.inner(ids, **_places)


def test_a_row_without_an_advantage_counts_its_tokens_and_is_not_run_through_the_model(model):
    rows = rows_of(6, count=8)
    for row in rows[::2]:
        row.advantage = 0.0
    counted, whole = Counted(copy.deepcopy(model)), copy.deepcopy(model)
    settings = dict(temperature=1.0, micro_batch_size=4)
    gradient = accumulate_gradient(counted, rows, **settings)
    # the formula knows no such exception
    row_by_row(whole, rows, low=0.2, high=0.2, temperature=1.0)
    assert (
        counted.packs == 4 and [one is None for one in gradient.logprobs] == [True, False] * 4
    )
    for mine, other in zip(counted.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-6)


def test_equal_rows_are_run_through_the_model_once_and_count_as_often_as_they_come(model):
    rows = rows_of(8, count=3, behaviour=True)
    rows += [copy.copy(rows[0]), copy.copy(rows[1]), copy.copy(rows[0])]
    rows[4].advantage = 0.7  # no copy any more
    counted, whole = Counted(copy.deepcopy(model)), copy.deepcopy(model)
    settings = dict(temperature=1.0)
    gradient = accumulate_gradient(counted, rows, micro_batch_size=1, **settings)
    row_by_row(whole, rows, low=0.2, high=0.2, temperature=1.0)
    assert counted.packs == 3 and counted.responses == 4
    for place in (3, 5):
        np.testing.assert_array_equal(gradient.logprobs[place], gradient.logprobs[0])
    # row 4 passes through the model beside row 1, and may be rounded otherwise there
    np.testing.assert_allclose(gradient.logprobs[4], gradient.logprobs[1], rtol=1e-5)
    for mine, other in zip(counted.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-6)


def test_where_no_row_has_an_advantage_momentum_goes_on(model):
    """As after a gradient of 0: by hand, Adam's second step of size learning rate * m / sqrt(v)."""
    policy, rows = copy.deepcopy(model), rows_of(7)
    optimizer = make_optimizer(policy, learning_rate=1e-3)
    settings = dict(temperature=1.0, micro_batch_size=4)
    accumulate_gradient(policy, rows, **settings)
    first = policy.lm_head.weight.grad.clone()
    step(policy, optimizer, max_grad_norm=1e9)
    before = policy.lm_head.weight.detach().clone()
    for row in rows:
        row.advantage = 0.0
    accumulate_gradient(policy, rows, **settings)
    assert step(policy, optimizer, max_grad_norm=1e9) == 0.0
    m = 0.9 * 0.1 * first / (1 - 0.9**2)
    v = 0.95 * 0.05 * first**2 / (1 - 0.95**2)
    expected = before - 1e-3 * m / (v.sqrt() + 1e-8)
    torch.testing.assert_close(policy.lm_head.weight.detach(), expected, rtol=1e-3, atol=1e-6)


def test_an_update_needs_rows(model):
    with pytest.raises(ValueError, match="needs rows"):
        accumulate_gradient(model, [], temperature=1.0, micro_batch_size=4)


@pytest.mark.parametrize("by_token", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_in_packs_is_that_of_rows_alone(model, name, by_token):
    """A mean over tokens, or over responses; equal rows, rows without an advantage and recalled ones among them."""
    rows, loss = rows_of(9, count=12, behaviour=True), LOSSES[name]
    rows[3].advantage, rows[5].recalled = 0.0, True
    rows.append(copy.copy(rows[0]))
    packed, whole = copy.deepcopy(model), copy.deepcopy(model)
    found = accumulate_gradient(
        packed, rows, temperature=1.0, micro_batch_size=4, loss=loss, by_token=by_token
    )
    total, num_tokens = 0.0, sum(len(row.response_ids) for row in rows)
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]]).long()
        logp_1T = whole(ids).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        logp_1T = logp_1T.gather(1, torch.tensor(row.response_ids).long()[:, None]).T
        ones_1T = torch.ones_like(logp_1T)
        per_token, _ = loss.of(
            logp_1T,
            torch.tensor(row.old_logprobs)[None],
            row.advantage * ones_1T,
            ones_1T,
            settings=LossSettings(),
            recalled=torch.tensor([[row.recalled]]),
        )
        total = total + per_token.sum() / (
            num_tokens if by_token else len(row.response_ids) * len(rows)
        )
    total.backward()
    assert found.loss == pytest.approx(total.item(), rel=1e-4, abs=1e-6)
    for mine, other in zip(packed.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-6)
