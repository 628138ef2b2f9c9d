"""A command line of verl becomes an experiment with the same batches, loss and rates."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.config.loading import flatten, with_overrides
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.stack.import_verl import MODULE, NAME, page
from r3_openrlhf.stack.shell_words import command_words

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "verl_commands.toml").read_text())
BESIDE = [
    "data.train_files=x.parquet",
    "actor_rollout_ref.model.path=a/b",
    "actor_rollout_ref.rollout.n=4",
]


def imported(*words):
    text, refused = page(words)
    assert refused is None
    return text, with_overrides(yaml.safe_load(text), [], source="test")


def test_a_script_with_branches_sums_and_arrays():
    text, config = imported(
        *command_words(["LR=2e-6", str(HERE / "verl_command.sh")], MODULE, NAME).words
    )
    assert [source["path"] for source in config.data.sources] == [
        "/data/gsm8k/train.parquet",
        "/data/math/train.parquet",
    ]
    assert (config.rollout.batch_size, config.rows_per_step, config.train.batch_size) == (
        256,
        1280,
        320,
    )
    assert (config.data.max_len, config.train.learning_rate, config.train.num_epochs) == (
        4096,
        2e-6,
        15,
    )
    assert (
        config.cluster.gpus_per_node,
        config.held_out.every_steps,
        config.logging.wandb_project,
    ) == (8, 5, "p")
    assert (config.train.kl_coef, config.flag("algo.kl.estimator"), config.model.path) == (
        0.001,
        "k3",
        "Qwen/Qwen3-8B",
    )
    assert "#   data.truncation: a longer prompt is left out\n" in text


@pytest.mark.parametrize("case", CASES["converted"])
def test_what_becomes_of_settings(case):
    text, config = imported(*BESIDE, *case["words"])
    found = flatten(config)
    assert {key: found[key] for key in case["settings"]} == case["settings"]
    assert {flag: config.flag(flag) for flag in case.get("flags", {})} == case.get("flags", {})
    assert re.search(case.get("said", ""), text)


def test_unknown_keys_are_listed_together():
    text, _ = imported(*BESIDE, "data.train_batchsize=4", "algo.gamma=1")
    assert (
        "#   data.train_batchsize: how rows are loaded\n#   algo.gamma: no key that is known; "
        in text
    )


@pytest.mark.parametrize("case", CASES["refused"])
def test_what_would_become_another_run_is_refused(case):
    with pytest.raises(ConfigError, match=case["sentence"]):
        page([*BESIDE[:1], *case["words"]])


SIZES = st.integers(1, 6).map(lambda power: 2**power)


@given(prompts=SIZES, mini=SIZES, num=SIZES, low=st.floats(0.01, 0.5), per_token=st.booleans())
@settings(max_examples=30, deadline=None)
def test_an_update_has_the_responses_of_a_mini_batch(prompts, mini, num, low, per_token):
    actor = "actor_rollout_ref.actor"
    words = [
        f"data.train_batch_size={prompts}",
        f"{actor}.ppo_mini_batch_size={mini}",
        f"actor_rollout_ref.rollout.n={num}",
    ]
    words += [
        f"{actor}.clip_ratio_low={low}",
        f"{actor}.loss_agg_mode={'' if per_token else 'seq-mean-'}token-mean",
    ]
    words += ["algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=2"]
    text, _ = page([*BESIDE[:2], *words])
    train = yaml.safe_load(text)["train"]
    assert (train["batch_size"] or prompts * num) == min(mini, prompts) * num
    assert (train["eps_clip_low"], train["loss_aggregation"] == "token-mean") == (
        low,
        per_token,
    )
