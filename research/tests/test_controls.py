"""The statistics of the controls, on numbers worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.runs.directory import RunDirectory
from research import load
from research.controls import (
    Shares,
    area_under_curve,
    bootstrap,
    entropy_rank_against_outcome,
    reflection_against_resampling,
    shares,
)
from research.loop import Lab, held_out_problems


def test_area_by_hand():
    # pairs (right, wrong): (3, 1) won, (3, 3) tied, (2, 1) won, (2, 3) lost
    assert area_under_curve([3, 1, 2, 3], [True, False, True, False]) == pytest.approx(2.5 / 4)
    assert area_under_curve([5, 5], [True, False]) == 0.5


@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=20))
def test_turning_the_scores_around_mirrors_the_area(rows):
    scores, right = [s for s, _ in rows], [r for _, r in rows]
    if len(set(right)) < 2:
        with pytest.raises(ValueError, match="right and wrong"):
            area_under_curve(scores, right)
        return
    turned = area_under_curve([-s for s in scores], right)
    assert area_under_curve(scores, right) == pytest.approx(1 - turned)


def test_a_bootstrap_interval_covers_the_mean_of_many():
    covered = 0
    for seed in range(60):
        values = np.random.default_rng(seed).normal(0.3, 1, size=50)
        interval = bootstrap(values)
        assert interval.low <= interval.mean <= interval.high and interval.num_problems == 50
        covered += interval.low <= 0.3 <= interval.high
    assert covered >= 50


def test_controls_of_a_policy_that_knows_nothing(model_dir, tmp_path):
    """Neither reflection nor any rank can help a model whose weights are random: both sides are zero."""
    settings = [
        "held_out.max_samples=4",
        "held_out.reasoning_gym.size=20",
        "data.reasoning_gym.size=20",
    ]
    config = load(
        "lab",
        [*settings, f"run_dir={tmp_path}", "rollout.max_new_tokens=8", "rollout.batch_size=4"],
    )
    lab = Lab(config, model_dir=model_dir)
    labels = held_out_problems(config, lab.tokenizer, RunDirectory(tmp_path))
    found = reflection_against_resampling(lab, labels, n=4, hard_below=0.1)
    assert found["all/reflection"].mean == found["all/resampling"].mean == 0.0
    assert found["hard/difference"].num_problems == 4
    ranks = entropy_rank_against_outcome(lab, labels, n=4)
    assert ranks["right after twice the limit"].mean == 0.0
    assert "auc/ranking reward" not in ranks  # nothing right to compare with


def test_the_reflection_prompts_hold_the_errors(model_dir, tmp_path, monkeypatch):
    config = load(
        "lab", [f"run_dir={tmp_path}", "rollout.max_new_tokens=8", "held_out.max_samples=2"]
    )
    lab = Lab(config, model_dir=model_dir)
    asked = []
    real = Lab.ask

    def ask(self, questions, **options):
        asked.append(questions)
        return real(self, questions, **options)

    monkeypatch.setattr(Lab, "ask", ask)
    reflection_against_resampling(
        lab,
        held_out_problems(config, lab.tokenizer, RunDirectory(tmp_path)),
        n=3,
        hard_below=0.1,
    )
    first, reflect, plain = asked
    assert len(first) == 2 and len(reflect) == len(plain) == 6  # everything was wrong
    assert all("earlier attempt begins" in prompt for _, prompt, _ in reflect)
    assert not any("earlier attempt" in prompt for _, prompt, _ in plain)


def test_shares_by_hand(model_dir, tmp_path, monkeypatch):
    """Three groups of four: all wrong, one of them truncated; two right; all right."""
    config = load("lab", ["rollout.n_samples_per_prompt=4", "data.reasoning_gym.size=3"])
    lab = Lab(config, model_dir=model_dir)
    real = Lab.ask

    def ask(self, questions, **options):
        sampled = real(self, questions, **options)
        assert len(sampled) == 12
        for place, one in enumerate(sampled):
            one.rollout.verdict = (
                Verdict.CORRECT if place in (4, 5, 8, 9, 10, 11) else Verdict.WRONG
            )
            one.rollout.truncated = place in (0, 8, 9)
        return sampled

    monkeypatch.setattr(Lab, "ask", ask)
    labels = load_problems(config.data).labels
    one_third = pytest.approx(1 / 3)
    assert shares(lab, labels, n=1) == Shares(
        all_wrong=one_third,
        all_correct=one_third,
        truncated=0.25,
        truncated_of_wrong=pytest.approx(1 / 6),
        correct=0.5,
    )
    # three groups of one problem
    assert lab.tokens == 0 and shares(lab, labels[:1], n=3).all_wrong == one_third
