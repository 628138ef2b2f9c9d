"""Numbers of a step, worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from pytest import approx

from r3_openrlhf.method.core.batch_metrics import fresh_metrics
from r3_openrlhf.method.types import Context, EntropyBounds, EntropyStatistics, Verdict
from r3_openrlhf.stack.step_metrics import entropy_metrics, extra_metrics
from tests.method.history.samples import make_rollout


def rollout(logprobs, **found):
    return replace(
        make_rollout(ids=range(len(logprobs))),
        response_logprobs=np.array(logprobs, dtype=np.float32),
        **found,
    )


def test_the_entropy_of_a_step_by_hand():
    """Sampled are four tokens of log-prob -1, -2, -4 and -1; what a prefix gave is no sample."""
    bounds = [
        EntropyBounds(peak_lower=2.0, peak_upper=3.0, global_lower=0.5, global_upper=1.5),
        EntropyBounds(peak_lower=4.0, peak_upper=9.0, global_lower=1.5, global_upper=3.5),
    ]
    exact = EntropyStatistics(peak=3.0, global_=1.0, source="exact")
    of_engine = EntropyStatistics(peak=99.0, global_=99.0, source="topk")
    rows = [
        rollout([-1, -2], entropy_bounds=bounds[0], entropy=exact),
        rollout([-50, -4, -1], given=((0, 1),), entropy_bounds=bounds[1], entropy=of_engine),
    ]
    assert entropy_metrics(rows) == approx(
        {
            "r3/entropy/global_lower": 1.0,
            "r3/entropy/global_upper": 2.5,
            "r3/entropy/bound_width": 1.5,
            "r3/entropy/peak_lower": 3.0,
            "r3/entropy/ranked_peak": 3.0,
            "r3/entropy/ranked_global": 1.0,
        }
    )
    assert (
        fresh_metrics(rows)["fresh/entropy"] == 2.0
        and fresh_metrics([])["fresh/entropy"] == 0.0
    )
    assert entropy_metrics([rollout([-1, -2])]) == entropy_metrics([]) == {}


def test_what_a_reward_function_returned_beside_its_reward_becomes_metrics():
    extras = {"format": 1.0, "by": "a judge"}, {"format": 0.0}, {"error": "no"}
    assert extra_metrics([rollout([-1], extras=one) for one in extras]) == {
        "r3/reward/format": 0.5
    }


@pytest.mark.parametrize("context", [one for one in Context if one is not Context.PLAIN])
def test_reward_and_accuracy_are_of_the_same_rows(context):
    """Groups of other prompts moved the reward and not the accuracy, so a rise of one alone meant nothing."""
    right = [rollout([-1], verdict=Verdict.CORRECT, reward=1.5) for _ in range(3)]
    wrong = [rollout([-1], verdict=Verdict.WRONG, reward=0.0)]
    others = [replace(one, context=context) for one in wrong * 8]
    found, plain = fresh_metrics(right + wrong + others), fresh_metrics(right + wrong)
    for name, value in (("fresh/accuracy", 0.75), ("fresh/reward", 1.125)):
        assert found[name] == plain[name] == value
