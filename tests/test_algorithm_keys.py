"""Keys of an algorithm: those that nothing reads are refused, as in test_config.py what does not fit together, and the first
page tells algorithms apart."""

import dataclasses
from itertools import combinations

import pytest

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import flatten, load_config, presets, with_overrides
from r3_openrlhf.method.core.estimators import ESTIMATORS
from r3_openrlhf.method.core.losses import LOSSES
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.first_page import algorithm_lines

SECTIONS = (
    *("advantage.", "replay.", "reflection.", "ranking."),
    *("distill.", "exploration.rrl.", "history."),
)
OF_IMPORTED = ("luffy", "prefix", "rlep", "sft_then_grpo")
BASELINES = ("ppo", "grpo", "dapo", "rloo")
TRAJECTORIES = ("hgpo", "gigpo", "agent_grpo")


def another_value(key):
    """A value of this key that is not its default, as it is typed."""
    field = field_of(key)
    default = field.default
    if field.metadata.get("words"):
        return next(word for word in field.metadata["words"] if word != default)
    if isinstance(default, bool):
        is_switch = field.name == "enabled"
        return "true" if is_switch else str(not default).lower()
    if default is None and "bounds" not in field.metadata:
        return "folder"
    kind = int if default is None else type(default)
    for value in (1.5, 3, 0.25, 0.5, 3_000_000, -1.5):
        is_another = isinstance(value, kind) and value != default
        if is_another and field.metadata["bounds"].allow(value):
            return value
    raise AssertionError(f"no value fits {key}")


def field_of(key):
    """The dataclass field of a dotted key."""
    *sections, name = key.split(".")
    owner = R3Config(run_dir="run")
    for section in sections:
        owner = getattr(owner, section)
    (field,) = [field for field in dataclasses.fields(owner) if field.name == name]
    return field


@pytest.mark.parametrize("algo", BASELINES)
def test_a_key_that_nothing_reads_is_refused_and_the_default_is_not(algo):
    # an experiment's keys are there, for its other arms
    config = load_config("cpu_smoke", [f"algo={algo}"])
    values, defaults = dataclasses.asdict(config), flatten(R3Config(run_dir="run"))
    keeps = ("history.", "exploration.rrl.") if config.keeps_history else ()
    keys = [key for key in defaults if key.startswith(SECTIONS) and not key.startswith(keeps)]
    assert len(keys) >= 25
    for key in keys:
        text = another_value(key)
        with pytest.raises(ConfigError) as refusal:
            with_overrides(values, [f"{key}={text}"], source="test")
        sentence = str(refusal.value)
        assert key in sentence or key.partition(".")[0] in sentence
        assert (
            f"algo is {algo}" in sentence or "dynamic_filtering" in sentence
        ) and "\n" not in sentence
        with_overrides(
            values,
            [f"{key}={'null' if defaults[key] is None else defaults[key]}"]
            * (not key.endswith(".enabled")),
            source="test",
        )


def test_an_experiment_of_ones_own_that_names_its_algorithm_is_asked_for_its_keys(tmp_path):
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "own.yaml"
    body = "# @package _global_\ndefaults:\n  - cpu_smoke\n  - _self_\nreplay: {enabled: false, k: 4}\n"
    body += "reflection: {enabled: false}\nranking: {enabled: false}\n"
    file.write_text(body + "algo: grpo\n")
    with pytest.raises(
        ConfigError,
        match="replay.k is 4, but algo is grpo, which replays no rollouts; use algo=r3",
    ):
        load_config(str(file), [])
    file.write_text(body)
    assert load_config(str(file), ["algo=grpo"]).replay.k == 4  # an arm of an experiment of r3


@pytest.mark.parametrize(("old", "algo"), [("advantage.lam", "r3"), ("advantage.lam", "ppo")])
def test_lam_is_answered_with_both_meanings(old, algo):
    with pytest.raises(ConfigError) as refusal:
        load_config("cpu_smoke", [f"algo={algo}", f"{old}=0.95"])
    assert "advantage.std_eps" in str(refusal.value) and "openrlhf.algo.advantage.lambd" in str(
        refusal.value
    )


def test_every_estimator_and_every_loss_works_with_all_of_r3_or_says_why_not():
    refused = {}
    for estimator in ESTIMATORS:
        for loss in LOSSES:
            mean = "seq-mean-token-mean" if LOSSES[loss].of_response else "token-mean"
            settings = [
                f"advantage.function={estimator}",
                f"train.loss={loss}",
                f"train.loss_aggregation={mean}",
            ]
            try:
                config = load_config("cpu_smoke", ["algo=r3", *settings])
            except ConfigError as error:
                refused.setdefault(estimator, str(error))
                config = load_config(
                    "cpu_smoke", ["algo=r3", *settings, "ranking.enabled=false"]
                )
            assert config.estimator is ESTIMATORS[estimator] and config.loss is LOSSES[loss]
    assert set(refused) == {"nsr", "w_reinforce"}
    assert refused["nsr"].endswith("a ranking would change nothing; use ranking.enabled=false")


def test_an_algorithm_of_a_user_is_one_function_in_one_file(tmp_path):
    config = load_config(
        "cpu_smoke",
        ["algo=examples/own_maxrl.py:maxrl", "train.loss=examples/own_cispo.py:cispo"],
    )
    assert config.estimator.of([1.0, 0.0, 0.0, 0.0]) == [3, -1, -1, -1] and config.loss.of_user
    assert config.algorithm.own_advantages and config.keeps_history and config.replay.enabled
    (tmp_path / "record.py").write_text(
        "from r3_openrlhf.config.algorithms import Algorithm\nMINE = Algorithm(advantages='maxrl', loss='cispo')\n"
    )
    off = [f"{name}.enabled=false" for name in ("replay", "reflection", "ranking")]
    config = load_config("cpu_smoke", [f"algo={tmp_path / 'record.py'}:MINE", *off])
    assert (
        config.estimator is ESTIMATORS["maxrl"]
        and config.loss is LOSSES["cispo"]
        and not config.keeps_history
    )


@pytest.mark.parametrize("preset", [one for one in presets() if one not in TRAJECTORIES])
def test_an_arm_of_imported_successes_needs_some_and_every_other_arm_none(preset):
    try:
        config = load_config("cpu_smoke", [f"algo={preset}"])
    except ConfigError as refusal:
        assert (
            preset in OF_IMPORTED
            and "history.start=DIR" in str(refusal)
            and "\n" not in str(refusal)
        )
        for source in ("history.start=x", "rollout.collect.share=0.1"):
            budget = ["train.max_generated_tokens=1000"]
            assert load_config("cpu_smoke", [f"algo={preset}", source, *budget]).has_imported
    else:
        assert (
            preset not in OF_IMPORTED
            and config.replay.imported == R3Config(run_dir="run").replay.imported
        )


def test_the_first_pages_of_two_algorithms_differ():
    lines = {}
    for preset in presets():
        experiment = "agent_smoke" if preset in TRAJECTORIES else "cpu_smoke"
        begin = ["history.start=x"] if preset in OF_IMPORTED else []
        lines[preset] = algorithm_lines(load_config(experiment, [f"algo={preset}", *begin]))
    for one, other in combinations(lines, 2):
        assert lines[one] != lines[other]
    assert lines["dapo"][0] == (
        "dapo: estimator group_norm of OpenRLHF; loss ppo, token-mean; clip: eps_clip_low 0.2, eps_clip_high 0.28, "
        "dual_clip off"
    )
    assert "prefix groups" in lines["prefix"][1] and all(
        "imported successes" in lines[one][1] for one in OF_IMPORTED
    )
    assert (
        lines["dapo"][1] == "on: group filter, overlong penalty"
        and "off: replay" in lines["dapo"][2]
    )
    assert [
        preset for preset in presets() if "without R³; algo=r3 adds it" in lines[preset]
    ] == [
        "dapo",
        "dr_grpo",
        "flash_reinforce",
        "grpo",
        "gspo",
        "ppo",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "rloo",
    ]
    own = algorithm_lines(
        load_config("cpu_smoke", ["algo=r3", "advantage.function=nsr", "ranking.enabled=false"])
    )
    assert "estimator nsr, which has no baseline" in own[0]


def test_the_page_names_what_this_run_has():
    """A reward of the user's is the reward as it is, and a limit on held-out problems is not their number."""
    held_out = ["held_out.path=h.jsonl", "held_out.max_samples=128"]
    plain = load_config("cpu_smoke", held_out)
    own = load_config("cpu_smoke", [*held_out, "reward.function=examples/own_reward.py:brief"])
    assert "length reward" in algorithm_lines(plain)[1]
    assert "length reward" in algorithm_lines(own)[2]
    assert "held out: up to 128 problems of h.jsonl" in algorithm_lines(plain)[-1]
    assert "held out: 12 problems of h.jsonl" in algorithm_lines(plain, num_held_out=12)[-1]
