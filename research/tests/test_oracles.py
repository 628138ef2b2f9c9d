"""The controls that bound what selection and replay could save: what they count, keep and drop."""

import numpy as np
import pytest

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.sources import load_problems
from research import load
from research.controls import FreeCollapsed, KnownAndFree
from research.loop import Lab, by_group
from research.tests.test_loop import SMALL

PLAIN = ["replay.enabled=false", "reflection.enabled=false", "ranking.enabled=false"]


def config_of(tmp_path, *overrides):
    return load("lab", [*SMALL, *PLAIN, f"run_dir={tmp_path / 'run'}", *overrides])


@pytest.fixture
def verdicts(monkeypatch):
    """A model whose groups are all wrong, mixed, all wrong, all right, mixed, ... in the order in which they are asked; the
    list of everything that it was asked."""
    asked, number, real = [], [0], Lab.ask

    def ask(self, questions, **options):
        sampled = real(self, questions, **options)
        for group in by_group(sampled):
            right = [0, 2, 0, len(group), 1][number[0] % 5]
            number[0] += 1
            for place, one in enumerate(group):
                one.rollout.verdict = Verdict.CORRECT if place < right else Verdict.WRONG
                one.rollout.reward = float(place < right)
            asked.append(group)
        return sampled

    monkeypatch.setattr(Lab, "ask", ask)
    return asked


def tokens_of(groups):
    return sum(one.rollout.num_sampled_tokens for group in groups for one in group)


def num_right(group):
    return sum(one.rollout.verdict is Verdict.CORRECT for one in group)


def test_only_groups_that_teach_are_counted_and_kept(model_dir, tmp_path, verdicts):
    lab = FreeCollapsed(config_of(tmp_path), model_dir=model_dir)
    labels = load_problems(lab.config.data).labels
    lab._spare = labels[4:6]
    sampled, _ = lab.sample_step(labels[:4], lab.r3_with(None))
    kept, dropped = lab.complete(sampled, labels)
    # of the first four one is mixed; the three that are missing are mixed, wrong, mixed; then wrong; then right; then mixed
    assert [num_right(group) for group in verdicts] == [
        0,
        2,
        0,
        4,
        1,
        0,
        2,
        0,
        4,
        1,
    ] and dropped == 6
    assert [num_right(group) for group in by_group(kept)] == [2, 1, 2, 1]
    assert lab.tokens == tokens_of(by_group(kept)) < tokens_of(verdicts)
    # the epoch's next problems first, then any
    assert [group[0].rollout.uid for group in verdicts[4:6]] == [
        label.uid for label in labels[4:6]
    ]
    assert lab._spare == []
    batch = lab.mixed_batch(kept, lab.r3_with(None))
    assert len(batch.groups) == 4 and all(
        any(batch.rows[i].advantage for i in group.rows) for group in batch.groups
    )


def test_a_whole_run_stops_at_the_tokens_that_it_counts(model_dir, tmp_path, verdicts):
    run = FreeCollapsed(
        config_of(tmp_path, "train.max_generated_tokens=300", "held_out.path=null"),
        model_dir=model_dir,
    ).train()
    metrics = run.read_metrics()
    totals = [line["generated_tokens_total"] for line in metrics]
    assert totals[-1] >= 300 > max([0, *totals[:-1]])
    assert all(
        line["r3/groups/mixed"] == 4 and line["r3/groups/collapsed_before"] == 0
        for line in metrics
    )
    assert totals[-1] == sum(line["r3/tokens/mixed"] for line in metrics)
    assert (
        sum(line["r3/filter/dropped_groups"] for line in metrics)
        == len(verdicts) - 4 * len(metrics)
        > 0
    )


def test_other_groups_stay_and_are_counted(model_dir, tmp_path, verdicts):
    lab = FreeCollapsed(config_of(tmp_path), model_dir=model_dir)
    labels = load_problems(lab.config.data).labels
    lab._spare = labels[4:]
    sampled, _ = lab.sample_step(labels[:4], lab.r3_with(None))
    reflected = lab.ask([(labels[0], lab.plain_prompt(labels[0]), Context.REFLECTION)], n=4)
    lab.tokens += tokens_of([reflected])
    kept, _ = lab.complete(sampled + reflected, labels)
    assert (
        len(by_group(kept)) == 5
        and kept[-4:] == reflected
        and lab.tokens == tokens_of(by_group(kept))
    )


def test_with_known_successes_an_all_wrong_group_teaches(model_dir, tmp_path, verdicts):
    lab = KnownAndFree(config_of(tmp_path, "replay.enabled=true"), model_dir=model_dir)
    labels = load_problems(lab.config.data).labels
    lab._spare = labels[4:]
    sampled, _ = lab.sample_step(labels[:4], lab.r3_with(None))
    # of the two that are all wrong only the first
    lab.known = {labels[0].uid: sampled[4].rollout}
    kept, dropped = lab.complete(sampled, labels)
    assert [num_right(group) for group in verdicts] == [0, 2, 0, 4, 1, 0, 2]
    assert [num_right(group) for group in by_group(kept)] == [0, 2, 1, 2] and dropped == 3
    assert lab.tokens == tokens_of(by_group(kept))


def test_a_model_that_never_gives_a_group_that_teaches(model_dir, tmp_path, monkeypatch):
    lab = FreeCollapsed(config_of(tmp_path), model_dir=model_dir)
    monkeypatch.setattr(lab, "MAX_ROUNDS", 3)
    labels = load_problems(lab.config.data).labels
    lab._spare = []
    sampled, _ = lab.sample_step(labels[:4], lab.r3_with(None))
    assert not any(num_right([one]) for one in sampled)  # it is untrained
    with pytest.raises(
        R3Error, match="3 draws of 4 problems gave no group that teaches anything"
    ):
        lab.complete(sampled, labels)
    assert lab.tokens == 0


def test_a_short_batch_where_too_few_teach(model_dir, tmp_path, verdicts, monkeypatch):
    lab = FreeCollapsed(config_of(tmp_path), model_dir=model_dir)
    monkeypatch.setattr(lab, "MAX_ROUNDS", 1)
    labels = load_problems(lab.config.data).labels
    lab._spare = labels[4:]
    sampled, _ = lab.sample_step(labels[:4], lab.r3_with(None))
    kept, dropped = lab.complete(sampled, labels)
    assert len(by_group(kept)) == 1 and dropped == 3 and lab.tokens == tokens_of(by_group(kept))
    assert np.isfinite([one.rollout.reward for one in kept]).all()
