"""Lessons in the lab: the teacher's term of every token, written out, and the update that takes it."""

import copy
from collections import Counter

import numpy as np
import pytest
import torch

from r3_openrlhf.method.core.distill import DISTILL_LOSSES
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.sources import load_problems
from research.controls import ShuffledTeacher, SupervisedLessons, reading
from research.loop import Lab
from research.tests.test_loop import config_of, wrong_and_right
from research.tests.test_trunk import half, rows_with_one_prompt, with_trunk  # noqa: F401
from research.tests.test_update import row_by_row, rows_of
from research.update import Target, TrainedRow, accumulate_gradient, score

OFF = ("replay.enabled=false", "reflection.enabled=false", "ranking.enabled=false")
TEACHER = (*OFF, "distill.coef=0.5", "distill.source=group", "distill.bound=2.0")


def logprobs(model, prompt_ids, response_ids, *, temperature):
    """The distributions at the places that predict the response, [T, V]."""
    ids = torch.tensor([[*prompt_ids.tolist(), *response_ids.tolist()]])
    logits = model(ids).logits[0, len(prompt_ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def of_response(model, prompt_ids, response_ids, *, temperature):
    logp = logprobs(model, prompt_ids, response_ids, temperature=temperature)
    return logp.gather(1, torch.tensor(response_ids).long()[:, None])[:, 0].detach().numpy()


# ── the update ──


def rows_with_advantages_of_tokens():
    """Two of them alike but for their advantages, one without any."""
    rows, draw = rows_of(3, count=9), np.random.default_rng(5)
    for row in rows:
        row.advantage = draw.normal(size=len(row.response_ids)).astype(np.float32)
    for place in (0, 1, 2):
        rows[place].prompt_ids = rows[0].prompt_ids
        rows[place].response_ids = rows[0].response_ids
        rows[place].advantage = rows[min(place, 1)].advantage[0] * np.ones(
            len(rows[0].response_ids), np.float32
        )
    rows[2].advantage = rows[2].advantage.copy()
    rows[2].advantage[-1] += 1.0
    rows[8].advantage = np.zeros(len(rows[8].response_ids), np.float32)
    return rows


def one_by_one(model, rows, *, temperature):
    """-sum A_t log pi(y_t) / tokens, of the current policy's own rows."""
    tokens = sum(len(row.response_ids) for row in rows)
    for row in rows:
        logp = logprobs(model, row.prompt_ids, row.response_ids, temperature=temperature)
        own = logp.gather(1, torch.tensor(row.response_ids).long()[:, None])[:, 0]
        (-(own * torch.tensor(row.advantage)).sum() / tokens).backward()


@pytest.mark.parametrize("micro_batch_size", [1, 5, 100])
def test_each_token_has_its_own_advantage(model, micro_batch_size):
    rows = rows_with_advantages_of_tokens()
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    accumulate_gradient(ours, rows, temperature=0.8, micro_batch_size=micro_batch_size)
    one_by_one(theirs, rows, temperature=0.8)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-6)


def test_a_constant_array_is_the_number(model):
    rows = rows_of(2)
    arrays = copy.deepcopy(rows)
    for row in arrays:
        row.advantage = np.full(len(row.response_ids), row.advantage, np.float32)
    found = []
    for each in (rows, arrays):
        policy = copy.deepcopy(model)
        accumulate_gradient(policy, each, temperature=1.0, micro_batch_size=4)
        found.append([parameter.grad for parameter in policy.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_rows_are_one_only_where_every_token_has_the_same_advantage():
    rows = rows_with_advantages_of_tokens()
    twin = copy.deepcopy(rows[3])
    assert twin.content() == rows[3].content()
    twin.advantage[0] += 1e-6
    assert twin.content() != rows[3].content()
    assert Counter(row.has_gradient for row in rows) == {True: 8, False: 1}
    one = np.zeros(len(rows[8].response_ids), np.float32)
    one[-1] = 1e-3
    rows[8].advantage = one
    assert rows[8].has_gradient


@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl", "jensen_shannon"])
def test_a_loss_on_the_likeliest_tokens_is_that_of_the_formula(model, name):
    """On three of nine rows, beside the advantages of all; the last of the three has a token that was given."""
    rows, draw = rows_of(7, count=9), np.random.default_rng(1)
    for row in rows[:3]:
        size = len(row.response_ids)
        weights = np.full(size, 0.7, np.float32)
        ids = np.stack([draw.permutation(60)[:4] for _ in range(size)]).astype(np.int64)
        log_shares = np.log(draw.dirichlet(np.ones(5), size)).astype(np.float32)
        row.target = Target(ids, log_shares[:, :4], weights)
    rows[2].target.weights[0] = 0.0
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    function = DISTILL_LOSSES[name]
    accumulate_gradient(ours, rows, temperature=0.8, micro_batch_size=5, distill_loss=function)
    tokens = sum(len(row.response_ids) for row in rows)
    row_by_row(theirs, rows, low=0.2, high=0.2, temperature=0.8)
    for row in rows[:3]:
        logp = logprobs(theirs, row.prompt_ids, row.response_ids, temperature=0.8)
        kept = logp.gather(1, torch.tensor(row.target.ids))
        student = torch.cat([kept, (1 - kept.exp().sum(1, keepdim=True)).log()], 1)
        teacher = torch.tensor(row.target.logprobs)
        teacher = torch.cat([teacher, (1 - teacher.exp().sum(1, keepdim=True)).log()], 1)
        loss = function.function(student, teacher) * torch.tensor(row.target.weights)
        (loss.sum() / tokens).backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=2e-3, atol=1e-5)


# ── scores ──


def test_scores_are_those_of_the_whole_distribution(model):
    rows = rows_of(4, count=7)
    rows.append(copy.deepcopy(rows[2]))
    found = score(model, rows, temperature=0.7, micro_batch_size=4, top_k=3)
    for row, scores in zip(rows, found, strict=True):
        logp = logprobs(model, row.prompt_ids, row.response_ids, temperature=0.7).detach()
        own = of_response(model, row.prompt_ids, row.response_ids, temperature=0.7)
        np.testing.assert_allclose(scores.logprobs, own, atol=1e-4)
        entropy = -(logp.exp() * logp).sum(-1).numpy()
        np.testing.assert_allclose(scores.entropies, entropy, atol=1e-4)
        likeliest = logp.sort(-1, descending=True).values[:, :3].numpy()
        np.testing.assert_allclose(scores.kept_logprobs, likeliest, atol=1e-4)


def test_scores_with_the_first_layers_kept(half):  # noqa: F811
    rows = rows_with_one_prompt()
    plain, kept = (
        score(each, rows, temperature=0.7, micro_batch_size=4, top_k=3)
        for each in (half, with_trunk(half))
    )
    for one, other in zip(plain, kept, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)


# ── lessons of a step ──


def taught(lab, *, right):
    """(batch, targets, metrics) of the first problems, with so many right responses of four."""
    labels = load_problems(lab.config.data).labels[: len(right)]
    r3 = lab.r3_with(None)
    batch = lab.mixed_batch(wrong_and_right(lab, labels, right=right), r3)
    targets, metrics = lab.teach(batch, r3)
    return batch, targets, metrics


def test_the_advantages_of_failures_are_those_of_the_formula(model_dir, tmp_path):
    lab = Lab(config_of(tmp_path, *TEACHER), model_dir=model_dir)
    batch, targets, metrics = taught(lab, right=[1, 0, 4, 2])
    assert sorted(batch.lessons) == [1, 2, 3, 14, 15]  # what failed in a group with a success
    temperature, read = lab.config.rollout.temperature, 0
    for index, row in enumerate(batch.rows):
        if index not in batch.lessons:
            assert row.token_advantages is None
            continue
        response = row.rollout.response_ids
        success = batch.lessons[index].success
        assert success.verdict is Verdict.CORRECT and success.uid == row.rollout.uid
        prompt = lab.encode(batch.lessons[index].prompt)
        behind = (prompt, batch.prompt_ids_of(row))
        teacher, student = (
            of_response(lab.model, ids, response, temperature=temperature) for ids in behind
        )
        expected = row.advantage + 0.5 * (teacher - student).clip(-2, 2)
        np.testing.assert_allclose(row.token_advantages, expected, atol=2e-4)
        assert np.abs(row.token_advantages - row.advantage).max() > 0.01
        read += len(prompt) + len(response)
    assert targets == {} and metrics["teacher_tokens"] == read
    assert metrics["r3/distill/taught"] == 5 and metrics["r3/distill/without_success"] == 4
    rows = lab.trained_rows(batch, targets)
    advantages = [row.advantage for row in rows if isinstance(row.advantage, np.ndarray)]
    assert len(advantages) == 5
    assert lab.update(batch, targets).grad_norm > 0


def test_a_teacher_that_says_the_same_changes_nothing(model_dir, tmp_path, monkeypatch):
    lab = Lab(config_of(tmp_path, *TEACHER), model_dir=model_dir)
    monkeypatch.setattr(
        type(lab.render), "teacher", lambda self, problem, success, **_: self.plain(problem)
    )
    batch, _, metrics = taught(lab, right=[1, 2])
    assert len(batch.lessons) == 5 and metrics["r3/distill/abs_gap"] == 0.0
    for index in batch.lessons:
        row = batch.rows[index]
        assert (row.token_advantages == np.float32(row.advantage)).all()


def test_sdpo_trains_on_the_gaps_alone(model_dir, tmp_path):
    """An all-right group has no other advantage, and its rows are taught."""
    sdpo = ("distill.rows=all", "distill.group_advantage=none")
    lab = Lab(config_of(tmp_path, *TEACHER, *sdpo), model_dir=model_dir)
    batch, targets, _ = taught(lab, right=[4, 0])
    assert sorted(batch.lessons) == [0, 1, 2, 3]
    assert all(row.advantage == 0 for row in batch.rows)
    rows = lab.trained_rows(batch, targets)
    assert [row.has_gradient for row in rows] == [True] * 4 + [False] * 4


def test_a_loss_on_logits_leaves_the_advantages(model_dir, tmp_path):
    lab = Lab(
        config_of(tmp_path, *TEACHER, "distill.loss=reverse_kl", "distill.top_k=3"),
        model_dir=model_dir,
    )
    batch, targets, _ = taught(lab, right=[1, 2])
    assert sorted(targets) == sorted(batch.lessons)
    assert all(row.token_advantages is None for row in batch.rows)
    for index, target in targets.items():
        size = len(batch.rows[index].rollout.response_ids)
        assert target.ids.shape == target.logprobs.shape == (size, 3)
        assert (target.weights == 0.5).all()
    assert lab.update(batch, targets).grad_norm > 0


def test_a_run_counts_the_taught_rows(model_dir, tmp_path):
    config = config_of(tmp_path, *TEACHER, "distill.source=any", "train.max_steps=2")
    metrics = Lab(config, model_dir=model_dir).train().read_metrics()
    for line in metrics:
        # both are of taught rows, which need a success
        taught = line["r3/distill/taught"] > 0
        assert (line["teacher_tokens"] > 0) is taught
        assert ("r3/distill/gap" in line) is taught


# ── controls ──


def test_a_shuffled_teacher_shows_other_problems_successes(model_dir, tmp_path):
    lab = ShuffledTeacher(config_of(tmp_path, *TEACHER), model_dir=model_dir)
    labels = load_problems(lab.config.data).labels[:3]
    sampled = wrong_and_right(lab, labels, right=[2, 1, 3])
    texts = {}
    for one in sampled:
        if one.rollout.verdict is Verdict.CORRECT:
            texts.setdefault(one.rollout.uid, set()).add(one.rollout.text.strip())
    r3 = lab.r3_with(None)
    batch = lab.mixed_batch(sampled, r3)
    assert sorted(batch.lessons) == [2, 3, 5, 6, 7, 11]
    for index, lesson in batch.lessons.items():
        uid = batch.rows[index].rollout.uid
        shown = lesson.prompt.split("right solution begins ---\n")[1]
        shown = shown.split("\n--- right solution ends")[0]
        others = set().union(*(found for key, found in texts.items() if key != uid))
        assert shown in others


def test_supervised_lessons_train_on_what_would_be_shown(model_dir, tmp_path):
    lab = SupervisedLessons(config_of(tmp_path, *TEACHER), model_dir=model_dir)
    batch, targets, metrics = taught(lab, right=[1, 0, 2, 4])
    rows = lab.trained_rows(batch, targets)
    added = rows[len(batch.trained) :]
    assert len(added) == len(batch.lessons) == 5 and metrics["teacher_tokens"] == 0
    for row, (index, lesson) in zip(added, batch.lessons.items(), strict=True):
        assert row.advantage == 0.5
        assert row.response_ids is lesson.success.response_ids
        assert row.prompt_ids.tolist() == batch.prompt_ids_of(batch.rows[index]).tolist()
    assert all(row.token_advantages is None for row in batch.rows)
    assert lab.update(batch, targets).grad_norm > 0


def test_reading_is_measured(model_dir, tmp_path):
    lab = Lab(config_of(tmp_path), model_dir=model_dir)
    labels = load_problems(lab.config.data).labels[:4]
    found = reading(lab, labels)
    assert set(found) == {
        f"{what}/{how}"
        for what in ("right", "logprob")
        for how in ("with", "without", "with another's")
    }
    assert found["logprob/with"].mean != found["logprob/without"].mean < 0


def test_a_trained_row_without_a_target_needs_an_advantage():
    row = TrainedRow(
        prompt_ids=np.array([1]), response_ids=np.array([2]), advantage=0.0, target=None
    )
    assert not row.has_gradient
