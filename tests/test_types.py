"""Words with a fixed set of values: a misspelt one is named at every entrance, and never means something else."""

import random

import pytest

from r3_openrlhf import method
from r3_openrlhf.config import (
    AdvantageConfig,
    ClusterConfig,
    DataConfig,
    HistoryConfig,
    RankingConfig,
    ReplayConfig,
    TrainConfig,
)
from r3_openrlhf.core.mixed_batch import MixedBatch
from r3_openrlhf.core.replay import choose
from r3_openrlhf.errors import ConfigError, HistoryError
from r3_openrlhf.history.eviction import rows_to_evict
from r3_openrlhf.history.store import HistoryLimits, HistoryStore
from r3_openrlhf.openrlhf_adapter.arguments import openrlhf_arguments
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.problems.training_file import rendered
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.types import Context, EntropyStatistics, RankingGuard, Task, Verdict
from tests.test_method import config_of, rollout


def batch():
    return MixedBatch([rollout(truncated=True), rollout(number=1, truncated=True)], ["g", "g"])


def advantages(**words):
    return batch().advantages(**{"alpha": 1.0, "lam": 0.0, "scope": "literal", "guard": "none", **words})


def misspelt(settings, **words):
    """Settings whose words were changed after they had been checked."""
    for name, word in words.items():
        setattr(settings, name, word)
    return settings


def flags(**words):
    return openrlhf_arguments(config_of(**words), RunDirectory("run"), model_dir="model", platform="cuda")


def recalled(batch):
    method.recall(batch, lambda uid, verdict: [rollout("correct")], config_of(), step=0)
    return batch.rows[-1]


@pytest.mark.parametrize(
    ("entrance", "sentence"),
    [
        (lambda: advantages(guard="centered"), "guard is 'centered'; did you mean 'centred'? it must be one of none, no_std, centred"),
        (lambda: advantages(scope="litteral"), "scope is 'litteral'; did you mean 'literal'?"),
        (lambda: batch().recall(lambda *_: [], mode="replcae", rng=random.Random(0)), "mode is 'replcae'; did you mean 'replace'?"),
        (lambda: batch().rows_to_rank(scope="fialed"), "scope is 'fialed'; did you mean 'failed'?"),
        (lambda: choose([], k=1, order="newst", rng=random.Random(0)), "order is 'newst'; did you mean 'newest'?"),
        (lambda: rows_to_evict([None] * 2, cap=1, policy="odlest", verdict=Verdict.WRONG, seed=0), "policy is 'odlest'; did you mean"),
        (lambda: EntropyStatistics(peak=1.0, global_=0.5, source="exatc"), "source is 'exatc'; did you mean 'exact'?"),
        (lambda: EntropyStatistics(peak=1.0, global_=0.5, source="auto"), "source is 'auto'; statistics come from"),
        (lambda: rollout("corect"), "verdict is 'corect'; did you mean 'correct'?"),
        (lambda: rollout(context="plian"), "context is 'plian'; did you mean 'plain'?"),
        (lambda: rollout(context=7), "context is 7; it must be one of plain, reflection"),
        (lambda: method.rows_with_exact_entropy(batch(), {0: [0]}, config_of(ranking__entropy_source="tokp")), "ranking.entropy_source is 'tokp'; did you mean 'topk'?"),
        (lambda: method.uses_stored_logprobs(b := batch(), recalled(b), config_of(replay__old_logprobs="behavior")), "replay.old_logprobs is 'behavior'; did you mean 'behaviour'?"),
        (lambda: method.assign_advantages(batch(), {}, lambda row: None, config_of(algo="dpao")), "algo is 'dpao'; did you mean 'dapo'?"),
        (lambda: load_problems(misspelt(DataConfig(path="none.jsonl"), unusable="eror")), "data.unusable is 'eror'; did you mean 'error'?"),
        (lambda: list(rendered([], misspelt(DataConfig(path="none.jsonl"), overlong="dorp"), None, room=1)), "data.overlong is 'dorp'; did you mean 'drop'?"),
        (lambda: flags(algo="grop"), "algo is 'grop'; did you mean 'grpo'?"),
        (lambda: flags(train__loss_aggregation="token_mean"), "train.loss_aggregation is 'token_mean'; did you mean 'token-mean'?"),
        (lambda: flags(train__kl_estimator="k4", train__kl_coef=0.1), "train.kl_estimator is 'k4'"),
        (lambda: flags(cluster__sync_backend="ncl"), "cluster.sync_backend is 'ncl'; did you mean 'nccl'?"),
    ],
)  # fmt: skip
def test_a_misspelt_word_is_named(entrance, sentence):
    with pytest.raises(ValueError) as refusal:
        entrance()
    assert str(refusal.value).startswith(sentence) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("entrance", "error", "sentence"),
    [
        (lambda: RankingConfig(guard="centered"), ConfigError, "ranking.guard is 'centered', which does not exist; did you mean centred?"),
        (lambda: ReplayConfig(mode="replcae"), ConfigError, "did you mean replace?"),
        (lambda: AdvantageConfig(scope="fialed"), ConfigError, "advantage.scope is 'fialed'"),
        (lambda: HistoryConfig(journal="wla"), ConfigError, "did you mean wal?"),
        (lambda: DataConfig(path="none.jsonl", unusable="eror"), ConfigError, "data.unusable is 'eror', which does not exist; did you mean error?"),
        (lambda: DataConfig(path="none.jsonl", overlong="dorp"), ConfigError, "did you mean drop?"),
        (lambda: TrainConfig(loss_aggregation="token_mean"), ConfigError, "did you mean token-mean?"),
        (lambda: TrainConfig(kl_estimator="k4"), ConfigError, "train.kl_estimator is 'k4'"),
        (lambda: ClusterConfig(sync_backend="ncl"), ConfigError, "did you mean nccl?"),
        (lambda: ClusterConfig(device="cud"), ConfigError, "did you mean cuda?"),
        (lambda: HistoryLimits(eviction="odlest"), HistoryError, "use one of oldest, reservoir, shortest_correct"),
        (lambda: HistoryStore.open(":memory:", journal="wla"), HistoryError, "use one of auto, wal, delete"),
    ],
)  # fmt: skip
def test_settings_have_their_own_error(entrance, error, sentence):
    with pytest.raises(error, match=sentence.replace("?", "[?]").replace(".", "[.]")):
        entrance()


def test_plain_text_is_as_good_as_the_word():
    made = rollout("correct", context="reflection")
    assert made.verdict is Verdict.CORRECT and made.context is Context.REFLECTION
    assert advantages(guard="no_std") == advantages(guard=RankingGuard.NO_STD)
    assert f"{Task.MATH}" == "math"
