"""Paused responses in the lab: by the stack's own loop, each token of the weights of its step."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from r3_openrlhf.method.errors import ConfigError
from research import load
from research.loop import Lab
from research.partial import LabEngines, PartialLab
from research.update import TrainedRow, score

SETTINGS = [
    "algo=r3_earned",
    "data.reasoning_gym.size=12",
    "held_out.reasoning_gym.size=20",
    "held_out.max_samples=6",
    "held_out.n_samples=2",
    "rollout.batch_size=4",
    "rollout.n_samples_per_prompt=4",
    "rollout.micro_batch_size=4",
    "train.micro_batch_size=4",
    "rollout.max_new_tokens=8",
    "rollout.partial=1.5",
]


def config_of(tmp_path, *overrides):
    return load("lab", [*SETTINGS, f"run_dir={tmp_path / 'run'}", *overrides])


class Kept(PartialLab):
    """The loop, with its batches kept."""

    def mixed_batch(self, sampled, r3):
        batch = super().mixed_batch(sampled, r3)
        self.batches = [*getattr(self, "batches", []), batch]
        return batch


def test_each_problem_is_trained_once_an_epoch_and_each_token_is_counted_once(
    model_dir, tmp_path
):
    lab = Kept(config_of(tmp_path, "train.num_epochs=2"), model_dir=model_dir)
    metrics = lab.train().read_metrics()
    fresh = [row.rollout for batch in lab.batches for row in batch.rows if not row.recalled]
    seen = sorted(rollout.uid for rollout in fresh)
    assert len(set(seen)) == 12
    assert all(seen.count(uid) == 2 * 4 for uid in set(seen))
    assert sum(rollout.num_tokens for rollout in fresh) == lab.tokens
    assert metrics[-1]["generated_tokens_total"] == lab.tokens
    assert any(rollout.pieces for rollout in fresh)
    assert max(line["partial/mean_age"] for line in metrics) > 0.2


def test_a_token_has_the_log_prob_of_the_weights_of_its_step(model_dir, tmp_path):
    """With a learning rate of nearly 0 all weights are those of the start."""
    config = config_of(tmp_path, "train.num_epochs=1", "train.learning_rate=1e-30")
    lab = Kept(config, model_dir=model_dir)
    lab.train()
    paused = [
        row
        for batch in lab.batches
        for row in batch.rows
        if row.rollout.pieces and not row.recalled
    ]
    assert paused
    rows = [
        TrainedRow(
            prompt_ids=row.rollout.prompt_ids,
            response_ids=row.rollout.response_ids,
            advantage=0.0,
        )
        for row in paused
    ]
    scores = score(
        lab.model, rows, temperature=config.rollout.temperature, micro_batch_size=4, top_k=0
    )
    for row, scored in zip(paused, scores, strict=True):
        np.testing.assert_allclose(row.rollout.response_logprobs, scored.logprobs, atol=1e-5)
        assert row.old_logprobs is row.rollout.response_logprobs
        assert sum(tokens for tokens, _ in row.rollout.pieces) == row.rollout.num_tokens


def test_a_pause_keeps_the_tokens_that_its_pace_allows(model_dir, tmp_path):
    lab = PartialLab(config_of(tmp_path), model_dir=model_dir)
    engines = LabEngines(lab)
    rest = SimpleNamespace(
        response_ids=np.arange(6, dtype=np.int32),
        logprobs=np.zeros(6, dtype=np.float32),
        entropies=np.zeros(6, dtype=np.float32),
        truncated=False,
    )
    from research.partial import _Running

    running = _Running(before=[], rest=rest, pace=0.5, begin=1.0)
    engines.clock = 2.6
    pieces = engines._sample_of(running)
    assert [piece.ids for piece in pieces] == [[0, 1, 2]]
    engines.clock = 4.0
    assert list(engines._sample_of(running)["ids"]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("setting", ["reflection.enabled=true", "algo=dapo"])
def test_what_the_lab_does_not_pause_is_refused(model_dir, tmp_path, setting):
    with pytest.raises(ConfigError, match=r"rollout\.partial"):
        PartialLab(config_of(tmp_path, setting), model_dir=model_dir)
    with pytest.raises(ConfigError, match="waits for all"):
        Lab(config_of(tmp_path), model_dir=model_dir)
