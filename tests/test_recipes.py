"""The GPU experiments beside their published sources: DeepScaleR's script by hand, and each line's mark of its source."""

import re

import pytest
import yaml

from r3_openrlhf.config.loading import CONFIGS, experiments, flatten, load_config

PUBLISHED = "grpo_1p5b_deepscaler_published"
DEEPSCALER = [name for name in experiments() if "deepscaler" in name]

# run_deepscaler_1.5b_8k.sh and the defaults of the verl that it brings, typed from them
BY_HAND = {
    "algo": "grpo",
    "data.max_len": 1024 + 8192,
    "rollout.batch_size": 128,
    "rollout.n_samples_per_prompt": 8,
    "rollout.max_new_tokens": 8192,
    "rollout.temperature": 0.6,
    "rollout.max_tokens_per_gpu": 32768,
    "train.batch_size": 64 * 8,
    "train.inner_epochs": 1,
    "train.learning_rate": 1e-6,
    "train.kl_coef": 0.001,
    "train.eps_clip_low": 0.2,
    "train.eps_clip_high": 0.2,
    "train.max_steps": 1040,
    "reward.length_reward_max_tokens": None,
    "cluster.vllm_gpu_memory_utilization": 0.85,
}
FLAGS_BY_HAND = {
    "actor.entropy_coef": 0.001,
    "actor.adam.betas": [0.9, 0.999],
    "actor.adam.weight_decay": 0.01,
    "actor.max_norm": 1.0,
}
# 32,768 do not fit with the entropy bonus, as the file says
OF_THE_STACK = {"train.max_tokens_per_gpu"}


def test_the_published_recipe_has_the_values_of_its_script():
    config = load_config(PUBLISHED, [])
    values = flatten(config)
    assert {key: values[key] for key in BY_HAND} == BY_HAND
    assert {flag: config.flag(flag) for flag in FLAGS_BY_HAND} == FLAGS_BY_HAND
    assert not (config.replay.enabled or config.reflection.enabled or config.ranking.enabled)


@pytest.mark.parametrize("name", [*DEEPSCALER, "r3_7b_code_8gpu", "r3_1p5b_1gpu"])
def test_a_step_makes_two_updates(name):
    """With one, every ratio of a fresh row is 1."""
    config = load_config(name, [])
    assert config.rows_per_step == 2 * config.train_batch_size


def marked_lines(text):
    """Yield (key, its value, the mark [D] or [D: value] of its line or of the comment above it)."""
    section, above = "", ""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            above = line
            continue
        named = re.match(r"( *)([\w.]+):([^#]*)", line)
        if named and not named[1]:
            section = named[2]
        mark = re.search(r"\[D(?:: ([^;\]]+)[^\]]*)?\]", line) or re.search(
            r"# \[D(?:: ([^;\]]+)[^\]]*)?\]", above
        )
        if named and named[1] and named[3].strip() and mark:
            yield f"{section}.{named[2]}", yaml.safe_load(named[3]), mark[1]
        above = ""


def test_each_mark_of_the_1p5b_run_says_what_the_published_recipe_has():
    """[D] the same value, [D: value] another one: that one."""
    text = (CONFIGS / "experiment" / "r3_1p5b_deepscaler_8gpu.yaml").read_text()
    published, marks = flatten(load_config(PUBLISHED, [])), list(marked_lines(text))
    assert len(marks) >= 20
    for key, ours, theirs in marks:
        if key in OF_THE_STACK or key == "data.prompt_template":
            continue
        wanted = ours if theirs is None else yaml.safe_load(theirs.replace(",", ""))
        assert published[key] == wanted, key
        assert theirs is None or ours != wanted, key
