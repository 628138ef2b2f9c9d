"""Every refused setting, with its sentence, and the composition of experiments."""

import dataclasses
import json
import math
import os
import re
import shutil
import typing
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.algorithms import Algorithm
from r3_openrlhf.config.loading import (
    CONFIGS,
    RETIRED,
    config_from_json,
    config_from_yaml,
    config_to_json,
    config_to_yaml,
    experiments,
    flatten,
    load_config,
    presets,
)
from r3_openrlhf.config.with_environment import WITH_AN_ENVIRONMENT, as_typed
from r3_openrlhf.method.core.estimators import ESTIMATORS
from r3_openrlhf.method.core.losses import LOSSES
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.directory import RunDirectory

SMOKE = "cpu_smoke"
# Overrides -> words that the sentence must hold: the key, the value, the way out. Preset -> what it changes in an
# experiment with all of R³ on. Key -> its text on the command, and a value of the environment with which that is valid.
TABLES = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
ARMS = TABLES["presets"]


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
    assert (config.replay.k, config.replay.order, config.data.system_prompt) == (
        5,
        "newest",
        "a, b",
    )
    assert config.reward.urls == ["http://a:1", "http://b:2"]
    assert config.openrlhf == {"actor": {"dual_clip": 3.0}}
    assert config.data.reasoning_gym["size"] == 64 and config.train.max_steps is None
    flat = flatten(config)  # free dictionaries stay whole
    assert flat["replay.k"] == 5 and flat["openrlhf"] == {"actor": {"dual_clip": 3.0}}
    assert flat["data.reasoning_gym"]["min_terms"] == 2


def test_a_configuration_leaves_nothing_behind_for_the_next():
    first = load_config("cpu_smoke", [])
    load_config("cpu_smoke", ["train.seed=7", "reward.urls=[http://a:1]"]).reward.urls.append(
        "x"
    )
    assert load_config("cpu_smoke", []) == first


@pytest.mark.parametrize("word", sorted({*ESTIMATORS, *LOSSES}.difference(presets())))
def test_a_part_of_an_algorithm_is_answered_by_settings_that_load(word):
    with pytest.raises(ConfigError, match="set .+, with algo=r3$") as refusal:
        load_config(SMOKE, [f"algo={word}"])
    asked_for_next = ["ranking.enabled=false", "train.loss_aggregation=seq-mean-token-mean"]
    load_config(SMOKE, re.findall(r"[\w.]+=\w+", str(refusal.value)) + asked_for_next)


REFUSED = [(SMOKE, "", *case) for case in TABLES["refused"].items()]
REFUSED += [
    ("agent_smoke", "agents.environment is vault", *case)
    for case in TABLES["refused with an environment"].items()
]


TAUGHT = Algorithm(estimator="rloo", mechanisms=frozenset({"distill"}))


def test_a_teacher_beside_openrlhfs_own_advantages_is_refused():
    off = [f"{name}.enabled=false" for name in ("replay", "reflection", "ranking")]
    with pytest.raises(ConfigError, match=r"whose advantages are OpenRLHF's own; use algo=r3"):
        load_config("cpu_smoke", [*off, "algo=tests.test_config:TAUGHT", "distill.coef=0.1"])


@pytest.mark.parametrize(("experiment", "begin", "overrides", "sentence"), REFUSED)
def test_a_bad_setting_is_refused_with_one_sentence(experiment, begin, overrides, sentence):
    with pytest.raises(ConfigError) as refusal:
        load_config(experiment, overrides.split(" & "))
    assert str(refusal.value).startswith(begin) and sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def fields_of(schema=R3Config, prefix=""):
    """(key, section, field) of every key."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from fields_of(hints[field.name], f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", schema, field


CHECKED = {
    key: (schema, field)
    for key, schema, field in fields_of()
    if field.metadata and schema is not R3Config
}


@pytest.mark.parametrize("key", CHECKED)
def test_what_a_field_may_not_be_is_refused_with_key_value_and_a_way_out(key):
    """Law: every bound and every fixed set of words holds where the section is made."""
    schema, field = CHECKED[key]
    if "words" in field.metadata:
        with pytest.raises(
            ConfigError,
            match=f"^{re.escape(key)} is 'no-such', which does not exist; known: .+",
        ):
            schema(**{field.name: "no-such"})
        return
    bounds = field.metadata["bounds"]
    limits = [(bounds.min, -1), (bounds.above, 0), (bounds.max, 1), (bounds.below, 0)]
    for value in (*(limit + by for limit, by in limits if limit is not None), math.nan, 2**54):
        with pytest.raises(ConfigError, match=f"^{re.escape(f'{key} is {value}; ')}.+"):
            schema(**{field.name: value})


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"rooms": 3, "keys": 1}),
        (["agents.options={}"], {}),
        (["agents.options={keys:2}"], {"keys": 2}),
        (["agents.options.rooms=4"], {"rooms": 4, "keys": 1}),
        (
            ["agents.options.rooms=4", "agents.options={keys:2}", "agents.options.rooms=5"],
            {"keys": 2, "rooms": 5},
        ),
    ],
    ids=str,
)
def test_options_of_an_environment_take_the_place_of_the_experiment_s(overrides, expected):
    """Another environment has other options: what agent_smoke gives the vault must be possible to leave out."""
    assert load_config("agent_smoke", overrides).agents.options == expected


@pytest.mark.parametrize("preset", ["hgpo", "gigpo", "agent_grpo"])
def test_the_presets_of_trajectories_choose_the_estimator(preset):
    before, after = (
        flatten(load_config("agent_smoke", [])),
        flatten(load_config("agent_smoke", [f"algo={preset}"])),
    )
    changed = {key: value for key, value in after.items() if value != before[key]}
    assert (changed.pop("arm"), changed.pop("run_dir")) == (
        preset,
        f"{before['run_dir']}_{preset}",
    )
    wanted = preset.removeprefix("agent_")
    assert changed == ({} if wanted == "hgpo" else {"agents.estimator": wanted})


def test_the_tasks_of_an_environment_are_the_data():
    """Also where a file or another process reads the configuration, and of no other run."""
    for config in (
        load_config("agent_smoke", []),
        config_from_json(config_to_json(load_config("agent_smoke", []))),
    ):
        assert (
            config.data.path == config.held_out.path == "environment:vault"
            and config.is_agentic
        )
    assert load_config("agent_smoke", ["held_out.max_samples=null"]).held_out.path is None
    assert load_config(SMOKE, ["held_out.max_samples=3"]).held_out.path is None


def test_the_table_of_the_paper_preset_is_its_difference_from_ours():
    ours, paper = (
        flatten(load_config("r3_1p5b_deepscaler_8gpu", [f"algo={name}"]))
        for name in ("r3", "r3_paper")
    )
    text = (CONFIGS.resolve().parent / "docs" / "algorithms.md").read_text()
    rows = re.findall(r"^\| `([a-z_.]+)` \| (\S+) \| (\S+) \| .+\|$", text, re.MULTILINE)
    found = {key: tuple(map(yaml.safe_load, values)) for key, *values in rows}
    differing = {key for key in ours if ours[key] != paper[key]} - {"arm", "run_dir"}
    assert found == {key: (ours[key], paper[key]) for key in differing}


def test_an_experiment_may_be_a_file_elsewhere(tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text(
        "# @package _global_\nrun_dir: runs/one\nmodel: {path: tiny}\nreplay: {k: 3}\n"
    )
    config = load_config(str(file), ["algo=r3", "data.path=x.jsonl"])
    assert (config.replay.k, config.algo, config.run_dir) == (
        3,
        "r3",
        str(Path("runs/one_r3").absolute()),
    )
    file.write_text("model: {path: tiny}\n")
    for name, words in (
        ("two", "is a file that does not exist"),
        ("one", "must begin with the line '# @package"),
    ):
        with pytest.raises(ConfigError, match=f"{name}.yaml {words}"):
            load_config(str(file.with_name(f"{name}.yaml")), [])


SHIPPED = [f"{file.parent.name}/{file.stem}" for file in sorted(CONFIGS.glob("*/*.yaml"))]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_file_with_a_shipped_name_is_never_passed_over(name, tmp_path):
    """Named itself, as a preset, in another's defaults: Hydra would take the package's."""
    body = "# @package _global_\nrun_dir: x\nmodel: {path: tiny}\ndata: {path: y}\n"
    body += "train: {learning_rate: 0.125}\n"
    own, other = tmp_path / f"{name}.yaml", tmp_path / "mine" / "other.yaml"
    for file in (own, other, tmp_path / "train.yaml"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(body)
    refused = (
        f"{re.escape(str(own))} has the name of a shipped file, which would be read instead"
    )
    in_defaults = body.replace("run_dir", f"defaults: [/{name}, _self_]\nrun_dir")
    for file, text, typed in [
        (own, body, []),
        (other, body, [f"algo={own.stem}"] if name.startswith("algo/") else None),
        (other, in_defaults, []),
    ]:
        file.write_text(text)
        if typed is not None:
            with pytest.raises(ConfigError, match=refused):
                load_config(str(file), typed)
    other.write_text(body)
    assert load_config(str(other), []).train.learning_rate == 0.125
    renamed = own.rename(own.with_name("another.yaml"))
    assert load_config(str(renamed), []).train.learning_rate == 0.125


def test_a_copy_of_the_shipped_files_is_read(tmp_path):
    shutil.copytree(CONFIGS, tmp_path / "configs")
    file = tmp_path / "configs" / "experiment" / "cpu_smoke.yaml"
    assert load_config(str(file), ["algo=grpo"]) == load_config("cpu_smoke", ["algo=grpo"])


def test_every_preset_is_known_here():
    assert sorted([*ARMS, "hgpo", "gigpo", "agent_grpo"]) == presets()


@pytest.mark.parametrize("preset", ARMS)
@pytest.mark.parametrize("experiment", [SMOKE, "grpo_cpu_smoke"])
def test_a_preset_changes_what_it_names_and_nothing_else(preset, experiment):
    """From a stock experiment too: the mechanisms are on or off as the preset says."""
    begin = ["history.start=x"] if "replay.imported." in str(ARMS[preset]) else []
    before = flatten(load_config(SMOKE, begin))
    after = flatten(load_config(experiment, [f"algo={preset}", *begin]))
    assert all(before[key] == value for key, value in TABLES["all of R³"].items())
    changed = {key: value for key, value in after.items() if value != before[key]}
    assert changed.pop("run_dir") == before["run_dir"].replace(SMOKE, f"{experiment}_{preset}")
    assert changed.pop("arm") == preset
    assert {key: after[key] for key in ARMS[preset]} == ARMS[preset] and changed.keys() <= ARMS[
        preset
    ].keys()


def test_what_is_said_on_the_command_line_wins_over_the_preset(tmp_path):
    config = load_config(
        SMOKE, ["train.eps_clip_high=0.25", "algo=dapo", "arm=mine", f"run_dir={tmp_path}"]
    )
    assert (config.train.eps_clip_high, config.arm, config.run_dir) == (
        0.25,
        "mine",
        str(tmp_path),
    )


def test_a_key_that_a_file_misspells_is_refused_too():
    text = config_to_yaml(load_config(SMOKE, [])).replace("max_policy_lag", "max_lag")
    with pytest.raises(
        ConfigError,
        match=re.escape("x.yaml sets replay.max_lag, which does not exist; did you mean"),
    ):
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
        ConfigError,
        match="advantage.scope is 'literal', which damped every group .*; use mixed_groups",
    ):
        load_config(SMOKE, ["advantage.scope=literal"])
    config = load_config(SMOKE, [])
    text = config_to_yaml(config).replace("scope: mixed_groups", "scope: literal")
    assert "literal" in text and config_from_yaml(text, source="x.yaml") == config


def test_a_file_of_a_run_reads_no_environment(monkeypatch):
    monkeypatch.setenv("SECRET", "of-the-reader")
    text = config_to_yaml(load_config(SMOKE, [])).replace("arm: null", "arm: ${oc.env:SECRET}")
    with pytest.raises(
        ConfigError, match=re.escape("x.yaml holds an interpolation, '${oc.env:SECRET}'")
    ):
        config_from_yaml(text, source="x.yaml")


TEXTS = {
    key: ("'${oc.env:TEXT}'", "hunter2")
    for key, _, field in fields_of()
    if field.type in ("str", "str | None") and "words" not in field.metadata
} | TABLES["texts"]


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
            rollout=RolloutConfig(
                batch_size=prompts, n_samples_per_prompt=samples, micro_batch_size=1
            ),
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
    assume(
        "${" not in path
        and path != "???"
        and not (len(path) > 1 and path[0] == path[-1] and path[0] in "'\"")
    )
    settings = [f"{key}={path}" for key in ("data.path", "model.path", "held_out.path")]
    config = load_config("cpu_smoke", settings)
    given = [config.data.path, config.model.path, config.held_out.path]
    assert given == [path, path, None if path == "null" else path]
    if path.strip() and not set(path) & set(",@"):  # OpenRLHF splits at these two
        assert load_config("cpu_smoke", [f"run_dir={path}"]).run_dir == str(
            Path(os.path.expanduser(path)).absolute()
        )


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


@pytest.mark.parametrize("key", WITH_AN_ENVIRONMENT)
def test_the_value_that_an_environment_asks_for_is_taken(key):
    """As it is typed: the remedy of the refusal is a command line."""
    remedy = f"{key}={as_typed(WITH_AN_ENVIRONMENT[key].value)}"
    assert load_config("agent_smoke", [remedy]).is_agentic


@pytest.mark.parametrize(
    ("most", "wanted"),
    [
        (9216, 3072 + 2048),  # room for all
        (8192, 4096),  # the success is cut
        (7168, 3072),  # a plain prompt always fits
    ],
)
def test_a_teachers_prompt_leaves_room_for_the_response(most, wanted):
    config = load_config(
        "r3_1p5b_1gpu", ["algo=r3_teacher", f"rollout.max_tokens_per_gpu={most}"]
    )
    assert config.max_teacher_prompt_tokens == wanted
    assert config.longest_taught_row <= most


def test_a_limit_of_the_teachers_prompt_is_taken_or_refused():
    words = ["algo=r3_teacher", "rollout.max_tokens_per_gpu=8192"]
    config = load_config("r3_1p5b_1gpu", [*words, "distill.max_prompt_tokens=4000"])
    assert config.max_teacher_prompt_tokens == 4000
    with pytest.raises(ConfigError, match="cannot be split"):
        load_config("r3_1p5b_1gpu", [*words, "distill.max_prompt_tokens=5000"])
