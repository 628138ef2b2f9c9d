"""Words with a fixed set of values: a misspelt one is named at every entrance, and never means something else."""

import random

import pytest

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context, EntropyStatistics, RankingGuard, Verdict
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.arguments import openrlhf_arguments
from tests.method.steps import Storing, rollout, settings_of


def batch():
    return MixedBatch([rollout(truncated=True), rollout(number=1, truncated=True)], ["g", "g"])


def advantages(**words):
    return batch().advantages(
        **{"alpha": 1.0, "lam": 0.0, "scope": "mixed_groups", "guard": "none", **words}
    )


def misspelt(settings, **words):
    """Settings whose words were changed after they had been checked."""
    for name, word in words.items():
        setattr(settings, name, word)
    return settings


def flags(**words):
    config = R3Config(run_dir="run")
    for key, word in words.items():
        section, _, name = key.rpartition("__")
        setattr(getattr(config, section) if section else config, name, word)
    return openrlhf_arguments(config, RunDirectory("run"), model_dir="model", platform="cuda")


def recalled(**words):
    return Storing(lambda uid, verdict: [rollout("correct")], **words).recall(
        batch().rollouts, step=0
    )


@pytest.mark.parametrize(
    ("entrance", "sentence"),
    [
        (
            lambda: advantages(guard="centered"),
            "guard is 'centered'; did you mean 'centred'? it must be one of none, no_std, centred",
        ),
        (
            lambda: advantages(scope="mixd_groups"),
            "scope is 'mixd_groups'; did you mean 'mixed_groups'?",
        ),
        (
            lambda: batch().recall(lambda *_: [], mode="replcae", rng=random.Random(0)),
            "mode is 'replcae'; did you mean 'replace'?",
        ),
        (
            lambda: batch().rows_to_rank(scope="fialed"),
            "scope is 'fialed'; did you mean 'failed'?",
        ),
        (
            lambda: EntropyStatistics(peak=1.0, global_=0.5, source="exatc"),
            "source is 'exatc'; did you mean 'exact'?",
        ),
        (
            lambda: EntropyStatistics(peak=1.0, global_=0.5, source="auto"),
            "source is 'auto'; statistics come from",
        ),
        (lambda: rollout("corect"), "verdict is 'corect'; did you mean 'correct'?"),
        (lambda: rollout(context="plian"), "context is 'plian'; did you mean 'plain'?"),
        (lambda: rollout(context=7), "context is 7; it must be one of plain, reflection"),
        (
            lambda: (r3 := R3(settings_of(ranking__entropy_source="tokp"))).rows_to_measure(
                r3.recall(batch().rollouts, step=0)
            ),
            "ranking.entropy_source is 'tokp'; did you mean 'topk'?",
        ),
        (
            lambda: recalled(replay__old_logprobs="behavior"),
            "replay.old_logprobs is 'behavior'; did you mean 'behaviour'?",
        ),
        (
            lambda: flags(train__loss_aggregation="token_mean"),
            "train.loss_aggregation is 'token_mean'; did you mean 'token-mean'?",
        ),
    ],
)
def test_a_misspelt_word_is_named(entrance, sentence):
    with pytest.raises(ValueError) as refusal:
        entrance()
    assert str(refusal.value).startswith(sentence) and "\n" not in str(refusal.value)


def test_plain_text_is_as_good_as_the_word():
    made = rollout("correct", context="reflection")
    assert made.verdict is Verdict.CORRECT and made.context is Context.REFLECTION
    assert advantages(guard="no_std") == advantages(guard=RankingGuard.NO_STD)
    assert f"{Context.REFLECTION}" == "reflection"
