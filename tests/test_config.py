"""Every refused setting, with its sentence, and the composition of experiments."""

import dataclasses
import math
import os
import re
import typing
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import (
    CONFIGS,
    config_from_json,
    config_from_yaml,
    config_to_json,
    config_to_yaml,
    experiments,
    flatten,
    load_config,
    presets,
)
from r3_openrlhf.config.retired import RETIRED
from r3_openrlhf.method.checks import Bounds
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.directory import RunDirectory

SMOKE = "cpu_smoke"


def test_the_defaults_are_consistent():
    config = R3Config()
    assert (config.rows_per_step, config.train_batch_size, config.cluster.num_ranks) == (2048, 2048, 8)


@pytest.mark.parametrize("experiment", experiments())
def test_every_experiment_composes_and_survives_json_and_yaml(experiment):
    config = load_config(experiment, [])
    assert config_from_json(config_to_json(config)) == config
    assert config_from_yaml(config_to_yaml(config), source="test") == config


def test_overrides_win_and_take_hydra_values():
    config = load_config(
        SMOKE,
        [
            "replay.k=5",
            "data.system_prompt='a, b'",
            "reward.urls=[http://a:1,http://b:2]",
            "openrlhf.actor.dual_clip=3.0",
            "data.reasoning_gym.size=64",
            "train.max_steps=null",
            "+replay.order=newest",
        ],
    )
    assert (config.replay.k, config.replay.order, config.data.system_prompt) == (5, "newest", "a, b")
    assert config.reward.urls == ["http://a:1", "http://b:2"]
    assert config.openrlhf == {"actor": {"dual_clip": 3.0}}
    assert config.data.reasoning_gym["size"] == 64 and config.train.max_steps is None


def test_a_configuration_leaves_nothing_behind_for_the_next():
    first = load_config("cpu_smoke", [])
    load_config("cpu_smoke", ["train.seed=7", "reward.urls=[http://a:1]"]).reward.urls.append("x")
    assert load_config("cpu_smoke", []) == first


def test_the_run_directory_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(SMOKE, ["run_dir=runs/x"]).run_dir == str(tmp_path / "runs" / "x")


GRPO = ["replay.enabled=false", "reflection.enabled=false", "ranking.enabled=false"]
REFUSED = {  # overrides -> words that the sentence must hold: the key, the value, the way out
    ("replay.max_lag=3",): "replay.max_lag does not exist; did you mean replay.max_policy_lag?",
    ("+replay.max_lag=3",): "replay.max_lag does not exist; did you mean replay.max_policy_lag?",
    ("reply.k=3",): "reply.k does not exist; did you mean replay.k?",
    ("replay.k",): "'replay.k' is not of the form key=value",
    ("replay=3",): "replay is a group of keys",
    ("~replay.k",): "deletes a key",
    ("replay.k=1,2",): "names several values",
    ("replay.k=abc",): "replay.k: Value 'abc'",
    ("data.path=???",): "data.path has no value; add data.path=",
    ("algo=grop",): "algo is 'grop', which does not exist in configs/algo; did you mean grpo?",
    ("algo=grpo,dapo",): "names several values",
    ("algo=grpo", "replay.enabled=true"): "but replay would need algo=r3; add replay.enabled=false",
    ("algo=dapo", "replay.enabled=true"): "algo is dapo and replay.enabled is true",
    ("openrlhf.algo.dynamic_filtering_enable=true",): "dynamic filtering removes exactly the groups that replay",
    ("openrlhf.algo.dynamic_filtering_enable=true", *GRPO): "use algo=dapo, or leave it off",
    ("openrlhf.train.async_enable=true",): "openrlhf.train.async_enable is on",
    ("run_dir='a,b'",): "cannot read paths with a comma",
    (
        "data.task=reasoning_gym",
        "data.path=x.jsonl",
    ): "data.task is reasoning_gym, which needs problems of its own",
    ("data.task=maths",): "did you mean math?",
    ("data.prompt_template=hello",): "must contain {problem}",
    ("data.few_shot=[{problem:a,answer:b}]",): "keys ['answer', 'problem']; each needs problem and response",
    ("rollout.n_samples_per_prompt=1",): "rollout.n_samples_per_prompt is 1; advantages compare",
    ("rollout.max_new_tokens=300",): "no room is left for a prompt",
    ("rollout.micro_batch_size=128",): "rollout.micro_batch_size is 128",
    (
        "advantage.success_scale=3",
        "algo=grpo",
    ): "advantage.success_scale is 3.0, but algo is grpo, which has OpenRLHF's own advantages; use algo=r3 or advantage.success_scale=1",
    (
        "train.dynamic_batch=true",
        "train.max_tokens_per_gpu=255",
    ): "train.max_tokens_per_gpu is 255, but one row may have data.max_len=256 tokens and cannot be split; use 256 or more",
    (
        "train.logits_chunk_tokens=512",
        "openrlhf.actor.entropy_coef=0.001",
    ): "train.logits_chunk_tokens is 512, but the entropy bonus of openrlhf.actor.entropy_coef needs all logits",
    ("train.batch_size=48",): "train.batch_size is 48, which does not divide the 64 rows of a step",
    ("train.batch_size=128",): "train.batch_size is 128, which does not divide the 64 rows",
    ("train.micro_batch_size=128",): "train.micro_batch_size 128 on 1 ranks makes 128 rows",
    ("train.micro_batch_size=24",): "does not divide train.batch_size 64",
    ("logging.token_entropy=all",): "logging.token_entropy does not exist; did you mean logging.token_values?",
    ("train.zero_stage=4",): "train.zero_stage is 4",
    ("train.packing=true", "model.attn_implementation=sdpa"): "train.packing needs flash attention",
    ("train.dynamic_batch=true", "model.attn_implementation=sdpa"): "train.dynamic_batch needs flash attention",
    ("replay.k=0",): "replay.k is 0; use 1 to 10000, or replay.enabled=false",
    ("ranking.max_reward=1",): "ranking.max_reward is 1.0; use a number between 0 and 1",
    ("ranking.score=log_prob",): "ranking.score is 'log_prob', which does not exist; did you mean logprob?",
    ("exploration=true",): "exploration is a group of keys",
    ("algo=hgpo",): "algo is agents, but agents.environment is not set",
    ("agents.environment=vault",): "agents.environment is vault, but algo is r3, which compares whole responses",
    ("reward.max_ungraded_rate=2",): "reward.max_ungraded_rate is 2.0; use a number of at least 0 and at most 1",
    ("reward.urls=[localhost:9000]",): "starts with http:// or https://",
    ("reward.urls=['http://a b']",): "reward.urls holds 'http://a b'",
    ("reward.urls=['http://a:5000/x y']",): "reward.urls holds 'http://a:5000/x y'",
    ("reward.urls=['http://a<b']",): "reward.urls holds 'http://a<b'",
    ("cluster.gpus_per_node=65",): "cluster has 65 ranks, more than the 64 rows of a step",
    ("cluster.gpus_per_node=2", "cluster.vllm_tensor_parallel_size=3"): "does not divide the 2 GPUs",
    ("cluster.device=gpu",): "cluster.device is 'gpu', which does not exist; known: auto, cuda",
    ("checkpoint.save_steps=0",): "or -1 for the final model only",
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_a_bad_setting_is_refused_with_one_sentence(overrides):
    with pytest.raises(ConfigError) as refusal:
        load_config(SMOKE, list(overrides))
    assert REFUSED[overrides] in str(refusal.value)
    assert "\n" not in str(refusal.value)


def fields_of(schema=R3Config, prefix=""):
    """(key, section, field) of every key."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from fields_of(hints[field.name], f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", schema, field


CHECKED = {key: (schema, field) for key, schema, field in fields_of() if field.metadata and schema is not R3Config}


@pytest.mark.parametrize("key", CHECKED)
def test_what_a_field_may_not_be_is_refused_with_key_value_and_a_way_out(key):
    """Law: every bound and every fixed set of words holds where the section is made."""
    schema, field = CHECKED[key]
    if "words" in field.metadata:
        with pytest.raises(ConfigError, match=f"^{re.escape(key)} is 'no-such', which does not exist; known: .+"):
            schema(**{field.name: "no-such"})
        return
    bounds = field.metadata["bounds"]
    limits = [(bounds.min, -1), (bounds.above, 0), (bounds.max, 1), (bounds.below, 0)]
    for value in (*(limit + by for limit, by in limits if limit is not None), math.nan, 2**54):
        with pytest.raises(ConfigError, match=f"^{re.escape(f'{key} is {value}; ')}.+"):
            schema(**{field.name: value})


def test_sentences_of_bounds():
    said = [str(Bounds(**one)) for one in ({"min": 1}, {"above": 0}, {"min": 0, "max": 1}, {"above": 0, "below": 1})]
    assert said == [
        "use 1 or more, up to 2**53",
        "use a number above 0",
        "use a number of at least 0 and at most 1",
        "use a number above 0 and below 1",
    ]


WITH_AGENTS = {  # what does not work together with an environment -> why, and the way out
    "algo=grpo": "but algo is grpo, which compares whole responses; use algo=hgpo, algo=gigpo or algo=agent_grpo",
    "algo=r3": "but algo is r3, which compares whole responses",
    "data.path=x.jsonl": "data.path is x.jsonl, but its tasks are its seeds; leave data.path out",
    "held_out.path=x.jsonl": "held_out.path is x.jsonl, but held-out tasks are its next seeds; use held_out.max_samples",
    "data.max_samples=null": "a task is a seed, so say how many an epoch has: data.max_samples=1024",
    "openrlhf.train.async_enable=true": "not sampled ahead of the step that trains; use openrlhf.train.async_enable=false",
    "openrlhf.algo.dynamic_filtering_enable=true": "a task's group has a row for each turn; use openrlhf.algo.dynamic",
    "replay.include_reflection=true": "a reflected trajectory never joins the plain group; use replay.include_reflection=false",
    "ranking.enabled=true": "it ranks whole responses, not trajectories; use ranking.enabled=false",
    "reward.urls=['http://a:1']": "the environment gives the rewards, not a grader; use reward.urls=[]",
    "reward.length_reward_max_tokens=64": "not a grader; use reward.length_reward_max_tokens=null",
    "data.task=math": "the environment says what succeeds, not a grader; use data.task=null",
    "train.deterministic=true": "which turns are sampled together depends on timing; use train.deterministic=false",
    "advantage.success_scale=3": "it is a part of eq. 3; use advantage.success_scale=1",
}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"rooms": 3, "keys": 1}),
        (["agents.options={}"], {}),
        (["agents.options={keys:2}"], {"keys": 2}),
        (["agents.options.rooms=4"], {"rooms": 4, "keys": 1}),
        (["agents.options.rooms=4", "agents.options={keys:2}", "agents.options.rooms=5"], {"keys": 2, "rooms": 5}),
    ],
    ids=str,
)
def test_options_of_an_environment_take_the_place_of_the_experiment_s(overrides, expected):
    """Another environment has other options: what agent_smoke gives the vault must be possible to leave out."""
    assert load_config("agent_smoke", overrides).agents.options == expected


@pytest.mark.parametrize("override", WITH_AGENTS)
def test_what_does_not_work_with_an_environment_is_refused_with_one_sentence(override):
    with pytest.raises(ConfigError) as refusal:
        load_config("agent_smoke", [override])
    assert str(refusal.value).startswith("agents.environment is vault") and "\n" not in str(refusal.value)
    assert WITH_AGENTS[override] in str(refusal.value)


@pytest.mark.parametrize("preset", ["hgpo", "gigpo", "agent_grpo"])
def test_the_presets_of_trajectories_choose_the_estimator(preset):
    before, after = flatten(load_config("agent_smoke", [])), flatten(load_config("agent_smoke", [f"algo={preset}"]))
    changed = {key: value for key, value in after.items() if value != before[key]}
    assert (changed.pop("arm"), changed.pop("run_dir")) == (preset, f"{before['run_dir']}_{preset}")
    wanted = preset.removeprefix("agent_")
    assert changed == ({} if wanted == "hgpo" else {"agents.estimator": wanted})


def test_the_tasks_of_an_environment_are_the_data():
    """Also where a file or another process reads the configuration, and of no other run."""
    for config in (load_config("agent_smoke", []), config_from_json(config_to_json(load_config("agent_smoke", [])))):
        assert config.data.path == config.held_out.path == "environment:vault" and config.is_agentic
    assert load_config("agent_smoke", ["held_out.max_samples=null"]).held_out.path is None
    assert load_config(SMOKE, ["held_out.max_samples=3"]).held_out.path is None


R3_KEYS = ("replay.enabled", "reflection.enabled", "ranking.enabled", "replay.mode", "replay.old_logprobs")
R3_KEYS += ("advantage.scope", "ranking.scope", "ranking.guard", "ranking.score")
WHOLE = dict(
    zip(
        R3_KEYS, (True, True, True, "add", "behaviour", "mixed_groups", "truncated", "centred", "entropy"), strict=True
    )
)
WHOLE |= {"replay.recall_failures": True}
OFF = {"replay.enabled": False, "reflection.enabled": False, "ranking.enabled": False}
ARMS = {  # preset -> what it changes in an experiment with all of R³ on
    "r3": {},
    "r3_paper": {
        "replay.old_logprobs": "recompute",
        "replay.dual_clip": None,
        "replay.include_reflection": True,
        "reflection.hard_by": "reward",
        "reflection.max_share": 1.0,
        "ranking.guard": "none",
        "train.loss_aggregation": "seq-mean-token-mean",
    },
    "r3_earned": {
        "advantage.success_scale": 3.0,
        "replay.old_logprobs": "recompute",
        "replay.recall_failures": False,
        "replay.rehearse.share": 0.125,
        "reflection.enabled": False,
        "ranking.enabled": False,
    },
    "grpo": {"algo": "grpo", **OFF},
    "rloo": {"algo": "rloo", **OFF},
    "reinforce_pp_baseline": {"algo": "reinforce_pp_baseline", **OFF},
    "rrl": {
        "algo": "rrl",
        "exploration.rrl.ratio": 0.25,
        "openrlhf": {"algo": {"kl": {"use_loss": False, "estimator": "k1"}}},
        **OFF,
    },
    "ppo": {"algo": "ppo", "openrlhf": {"algo": {"kl": {"use_loss": False, "estimator": "k1"}}}, **OFF},
    "reinforce_pp": {
        "algo": "reinforce_pp",
        "openrlhf": {"algo": {"kl": {"use_loss": False, "estimator": "k1"}}},
        **OFF,
    },
    "dr_grpo": {"algo": "dr_grpo", **OFF},
    "gspo": {
        "algo": "gspo",
        "train.loss_aggregation": "seq-mean-token-mean",
        "train.eps_clip_low": 3e-4,
        "train.eps_clip_high": 4e-4,
        **OFF,
    },
    "dapo": {"algo": "dapo", "train.eps_clip_high": 0.28, "reward.length_reward_max_tokens": None, **OFF},
}


def test_the_table_of_the_paper_preset_is_its_difference_from_ours():
    ours, paper = (flatten(load_config("r3_1p5b_deepscaler_8gpu", [f"algo={name}"])) for name in ("r3", "r3_paper"))
    text = (CONFIGS.resolve().parent / "docs" / "algorithms.md").read_text()
    rows = re.findall(r"^\| `([a-z_.]+)` \| (\S+) \| (\S+) \| .+\|$", text, re.MULTILINE)
    found = {key: tuple(map(yaml.safe_load, values)) for key, *values in rows}
    differing = {key for key in ours if ours[key] != paper[key]} - {"arm", "run_dir"}
    assert found == {key: (ours[key], paper[key]) for key in differing}


def test_an_experiment_may_be_a_file_elsewhere(tmp_path):
    file = tmp_path / "my_experiments" / "one.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\nrun_dir: runs/one\nmodel: {path: tiny}\nreplay: {k: 3}\n")
    config = load_config(str(file), ["algo=r3", "data.path=x.jsonl"])
    assert (config.replay.k, config.algo, Path(config.run_dir).name) == (3, "r3", "one_r3")
    with pytest.raises(ConfigError, match="two.yaml is a file that does not exist"):
        load_config(str(file.with_name("two.yaml")), [])


def test_every_preset_is_known_here():
    assert sorted([*ARMS, "hgpo", "gigpo", "agent_grpo"]) == presets()


@pytest.mark.parametrize("preset", ARMS)
@pytest.mark.parametrize("experiment", [SMOKE, "grpo_cpu_smoke"])
def test_a_preset_changes_what_it_names_and_nothing_else(preset, experiment):
    """From a stock experiment too: the mechanisms are on or off as the preset says."""
    before, after = flatten(load_config(SMOKE, [])), flatten(load_config(experiment, [f"algo={preset}"]))
    assert all(before[key] == value for key, value in WHOLE.items())
    changed = {key: value for key, value in after.items() if value != before[key]}
    assert changed.pop("run_dir") == before["run_dir"].replace(SMOKE, f"{experiment}_{preset}")
    assert changed.pop("arm") == preset
    assert {key: after[key] for key in ARMS[preset]} == ARMS[preset] and changed.keys() <= ARMS[preset].keys()


def test_what_is_said_on_the_command_line_wins_over_the_preset(tmp_path):
    config = load_config(SMOKE, ["train.eps_clip_high=0.25", "algo=dapo", "arm=mine", f"run_dir={tmp_path}"])
    assert (config.train.eps_clip_high, config.arm, config.run_dir) == (0.25, "mine", str(tmp_path))


def test_an_experiment_may_set_the_plain_key():
    config = load_config("grpo_cpu_smoke", [])
    assert (config.algo, config.arm, config.run_dir[-14:]) == ("grpo", None, "grpo_cpu_smoke")


def test_an_unknown_experiment_names_the_nearest():
    with pytest.raises(ConfigError, match="'cpu_smok' does not exist in configs/experiment; did you mean cpu_smoke"):
        load_config("cpu_smok", [])


def test_a_key_that_a_file_misspells_is_refused_too():
    text = config_to_yaml(load_config(SMOKE, [])).replace("max_policy_lag", "max_lag")
    with pytest.raises(ConfigError, match=re.escape("x.yaml sets replay.max_lag, which does not exist; did you mean")):
        config_from_yaml(text, source="x.yaml")


@pytest.mark.parametrize("key", RETIRED)
def test_a_retired_key_is_answered_by_its_name_and_read_over_in_a_file_of_a_run(key):
    with pytest.raises(ConfigError) as refusal:
        load_config(SMOKE, [f"{key}=1"])
    assert str(refusal.value) == f"{key} is no key any more; {RETIRED[key]}"
    config = load_config(SMOKE, [])
    stored = OmegaConf.create(config_to_yaml(config))
    OmegaConf.update(stored, key, 1, force_add=True)
    assert config_from_yaml(OmegaConf.to_yaml(stored), source="x.yaml") == config


def test_a_retired_value_is_answered_too():
    with pytest.raises(
        ConfigError, match="advantage.scope is 'literal', which damped every group .*; use mixed_groups"
    ):
        load_config(SMOKE, ["advantage.scope=literal"])
    config = load_config(SMOKE, [])
    text = config_to_yaml(config).replace("scope: mixed_groups", "scope: literal")
    assert "literal" in text and config_from_yaml(text, source="x.yaml") == config


def test_a_file_of_a_run_reads_no_environment(monkeypatch):
    monkeypatch.setenv("SECRET", "of-the-reader")
    text = config_to_yaml(load_config(SMOKE, [])).replace("arm: null", "arm: ${oc.env:SECRET}")
    with pytest.raises(ConfigError, match=re.escape("x.yaml holds an interpolation, '${oc.env:SECRET}'")):
        config_from_yaml(text, source="x.yaml")


# key -> its text on the command, and a value of the environment with which that is valid
TEXTS = {key: ("'${oc.env:TEXT}'", "hunter2") for key, _, field in fields_of()
         if field.type in ("str", "str | None") and "words" not in field.metadata} | {
    "data.chat_template_kwargs.x": ("'${data.system_prompt}'", "hunter2"),
    "data.few_shot": ("[{problem: '${oc.env:TEXT}', response: b}]", "hunter2"),
    "data.path": ("'${oc.env:TEXT}'", "reasoning_gym:hunter2"),
    "data.prompt_template": ("'${oc.env:TEXT} {problem}'", "hunter2"),
    "data.sources": ("['${oc.env:TEXT}']", "hunter2.jsonl"),
    "data.template_date": ("'${oc.env:TEXT}'", "2026-01-31"),
    "openrlhf": ("{logger: {wandb: {key: '${oc.env:TEXT}', project: p}}}", "hunter2"),
    "reward.code.url": ("'http://me:${oc.env:TEXT}@host'", "hunter2"),
    "reward.urls": ("['${oc.env:TEXT}', 'http://host']", "http://me:hunter2@host"),
    "rollout.stop": ("['${oc.env:TEXT}']", "hunter2"),
}  # fmt: skip


@pytest.mark.parametrize(
    "key", sorted(TEXTS.keys() - {"agents.environment", "reward.function", "data.task"})
)  # imported
def test_what_comes_from_the_environment_stays_there(tmp_path, monkeypatch, key):
    """Law, over all texts: the run has the value, its files have the name, and its user may continue."""
    typed, value = TEXTS[key]
    monkeypatch.setenv("TEXT", value)
    monkeypatch.chdir(tmp_path)
    overrides = {
        "run_dir": str(tmp_path),
        "data.system_prompt": "'${oc.env:TEXT}'",
        "held_out.max_samples": "8",
        key: typed,
    }
    config = load_config(SMOKE, [f"{name}={text}" for name, text in overrides.items()])
    run = RunDirectory(config.run_dir if key == "run_dir" else tmp_path / "run")
    run.create(config)
    run.append_metrics({"step": 1})
    run.mark_finished()
    monkeypatch.delenv("TEXT")
    assert value not in run.config.read_text() and value not in run.finished.read_text()
    read = run.load_config()
    assert config.typed.items() <= flatten(read).items() and "${oc.env:TEXT}" in str(
        config.typed[key.removesuffix(".x")]
    )
    assert value in str(flatten(config)) and value not in str(flatten(read))
    assert run.is_finished(config) and run.check(config) is None
    assert config_to_yaml(read) == run.config.read_text()


def test_flatten_has_one_entry_per_key_and_keeps_free_dictionaries_whole():
    flat = flatten(load_config(SMOKE, ["openrlhf.actor.dual_clip=3.0"]))
    assert flat["replay.k"] == 2 and flat["openrlhf"] == {"actor": {"dual_clip": 3.0}}
    assert flat["data.reasoning_gym"]["min_terms"] == 2


@given(
    prompts=st.integers(1, 12),
    samples=st.integers(2, 12),
    ranks=st.integers(1, 16),
    batch=st.none() | st.integers(1, 150),
    micro=st.integers(1, 16),
)
def test_batches_that_pass_divide_evenly(prompts, samples, ranks, batch, micro):
    """Law: whatever is accepted, no rank is without rows and no row is left over by an optimizer step."""
    from r3_openrlhf.config import ClusterConfig, RolloutConfig, TrainConfig

    try:
        config = R3Config(
            rollout=RolloutConfig(batch_size=prompts, n_samples_per_prompt=samples, micro_batch_size=1),
            train=TrainConfig(batch_size=batch, micro_batch_size=micro),
            cluster=ClusterConfig(gpus_per_node=ranks),
        )
    except ConfigError:
        return
    assert config.rows_per_step % config.train_batch_size == 0
    assert config.train_batch_size % (ranks * micro) == 0
    assert config.rows_per_step >= ranks


@pytest.mark.parametrize(
    ("experiment", "overrides", "sequences"),
    [
        ("cpu_smoke", [], 128),  # 64 rollouts: vLLM's own 128 are enough
        ("r3_1p5b_deepscaler_8gpu", [], 320),  # 2,048 rollouts, 8 engines, and a quarter more
        ("r3_7b_deepscaler_multinode", [], 160),  # 16 engines
        ("r3_7b_deepscaler_multinode", ["cluster.vllm_max_num_seqs=64"], 64),
        ("r3_1p5b_deepscaler_8gpu", ["cluster.gpus_per_node=1"], 1024),
    ],
)
def test_an_engine_takes_the_rollouts_of_a_step_at_once(experiment, overrides, sequences):
    assert load_config(experiment, overrides).sequences_per_engine == sequences


@pytest.mark.parametrize(
    ("overrides", "bound"),
    [
        ([], 3.0),
        (["replay.enabled=false"], None),
        (["algo=grpo"], None),
        (["algo=grpo", "openrlhf.actor.dual_clip=4.0"], 4.0),
        (["openrlhf.actor.dual_clip=4.0"], 4.0),
    ],
)
def test_which_dual_clip_holds(overrides, bound):
    assert load_config(SMOKE, overrides).dual_clip == bound


@settings(max_examples=40)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_a_path_is_taken_as_it_is(path):
    """Whatever its characters are for Hydra. In quotes, or with an interpolation, it is Hydra's as before."""
    assume("${" not in path and path != "???" and not (len(path) > 1 and path[0] == path[-1] and path[0] in "'\""))
    settings = [f"{key}={path}" for key in ("data.path", "model.path", "held_out.path")]
    config = load_config("cpu_smoke", settings)
    given = [config.data.path, config.model.path, config.held_out.path]
    assert given == [path, path, None if path == "null" else path]
    if path.strip() and not set(path) & set(",@"):  # OpenRLHF splits at these two
        assert load_config("cpu_smoke", [f"run_dir={path}"]).run_dir == str(Path(os.path.expanduser(path)).absolute())


def test_hydras_grammar_is_there_for_other_keys_and_for_quotes(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRATCH", "/s")
    settings = [
        "rollout.stop=['a,b', c]",
        "data.reasoning_gym={size: 8}",
        "run_dir=${oc.env:SCRATCH}/r",
        "data.path='a b'",
    ]
    config = load_config("cpu_smoke", settings)
    assert (config.rollout.stop, config.data.reasoning_gym["size"]) == (["a,b", "c"], 8)
    assert (config.run_dir, config.data.path) == ("/s/r", "a b")
    file = tmp_path / "Läufe (a)'b" / "mine" / "q=#,\"'& (1).yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\ndefaults: [/experiment/cpu_smoke]\nrun_dir: x\n")
    assert load_config(str(file), []).run_dir == str(Path("x").absolute())
