"""Our configuration as OpenRLHF's own flags, judged by the installed OpenRLHF's own parser and checks."""

import functools
import json
import re
import shlex
from pathlib import Path

import pytest

from r3_openrlhf.config.loading import experiments, fields_of, load_config, presets
from r3_openrlhf.machine import flash_attention
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack import flags, work
from r3_openrlhf.stack.arguments import given_flags, openrlhf_arguments, own_flags
from r3_openrlhf.stack.upstream_parser import check_arguments, installed_flags, installed_source
from tests.imports import loaded_by
from tests.tables import rows_of
from tools.openrlhf_flags import table

STACK = Path(work.__file__).parent


def arguments_for(*overrides, experiment="cpu_smoke", platform="cuda", resume=False):
    config = load_config(experiment, ["run_dir=/runs/x", *overrides])
    return openrlhf_arguments(
        config, RunDirectory("/runs/x"), model_dir="/m", platform=platform, resume=resume
    )


def checked(*overrides, **options):
    return check_arguments(arguments_for(*overrides, **options))


def value_of(args, flag):
    return functools.reduce(getattr, flag.split("."), args)


@functools.cache
def is_agentic(experiment):
    return load_config(experiment, []).is_agentic


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
@pytest.mark.parametrize("experiment", experiments())
def test_openrlhf_accepts_every_experiment_as_it_is(experiment, platform, capsys):
    arguments = arguments_for(experiment=experiment, platform=platform)
    args = check_arguments(arguments)
    executor = (
        Path("agents", "executor.py") if is_agentic(experiment) else Path("rollout_executor.py")
    )
    path = Path(args.train.agent_func_path)
    assert path.is_file() and path.is_relative_to(STACK) and path.relative_to(STACK) == executor
    # upstream prints a line for each setting that it changes
    assert capsys.readouterr().err == ""
    # every flag that is given arrives with its value, so none was read as the beginning of another one
    flags = [argument.removeprefix("--") for argument in arguments if argument.startswith("--")]
    assert len(flags) == len(set(flags))
    for flag in flags:
        value_of(args, flag)


@pytest.mark.parametrize("value", ["false", "null"])
def test_a_flag_that_does_not_exist_is_refused_when_it_is_off_too(value):
    config = load_config(
        "cpu_smoke", ["run_dir=/runs/x", f"openrlhf.train.shuffle_data={value}"]
    )
    with pytest.raises(ConfigError, match="OpenRLHF has no flag --train.shuffle_data"):
        check_arguments(
            openrlhf_arguments(
                config, RunDirectory("/runs/x"), model_dir="/m", platform="cuda"
            ),
            off=given_flags(config),
        )


@pytest.mark.parametrize("experiment", experiments())
def test_without_flash_attn_no_row_is_packed(experiment, monkeypatch, capsys):
    """OpenRLHF's own checks would turn it on again for packed rows, and packs dynamic batches always."""
    monkeypatch.setattr(flash_attention, "is_missing", lambda: True)
    args = checked(experiment=experiment)
    assert (
        args.ds.attn_implementation,
        args.ds.packing_samples,
        args.train.dynamic_batch_enable,
    ) == (
        "sdpa",
        False,
        False,
    )


@pytest.mark.parametrize("preset", presets())
def test_openrlhf_accepts_every_preset_with_every_experiment(preset, capsys):
    for experiment in experiments():
        if is_agentic(experiment) != (preset in ("hgpo", "gigpo", "agent_grpo")):
            continue  # one is about whole responses, the other about trajectories
        # a state may end inside a tool's answer, and a success with one has no text to show
        if experiment == "tools_smoke" and preset in ("rrl", "r3_teacher", "sdpo", "srpo"):
            continue
        # eq. 2
        mean = (
            "seq-mean-token-mean"
            if preset in ("r3_paper", "gspo", "flash_reinforce")
            else "token-mean"
        )
        begin = (
            ["history.start=x"]
            if preset in ("luffy", "prefix", "rlep", "sft_then_grpo")
            else []
        )
        assert (
            checked(f"algo={preset}", *begin, experiment=experiment).actor.loss_agg_mode == mean
        )
    assert capsys.readouterr().err == ""


def test_a_renamed_flag_upstream_fails_at_once(tmp_path):
    """The check can fail: the same arguments against an OpenRLHF in which one flag has another name."""
    package = installed_source().parent.parent
    (tmp_path / "cli").mkdir()
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "config.py").write_text((package / "utils" / "config.py").read_text())
    source = tmp_path / "cli" / "train_ppo_ray.py"
    source.write_text(
        installed_source()
        .read_text()
        .replace('"--train.colocate_all"', '"--train.colocate_models"')
    )
    with pytest.raises(
        ConfigError, match="no flag --train.colocate_all; did you mean --train.colocate_models"
    ):
        check_arguments(arguments_for(), source=source)
    source.write_text("print('another program')")
    with pytest.raises(
        ConfigError, match="has no parser under __main__; R³ supports OpenRLHF 0.11.2"
    ):
        check_arguments(arguments_for(), source=source)


def test_checking_loads_no_framework():
    check = "from r3_openrlhf.stack.upstream_parser import check_arguments as c; c(['--vllm.num_engines', '1', '--train.agent_func_path', 'x', '--actor.model_name_or_path', 'm', '--actor.num_gpus_per_node', '1'])"
    assert loaded_by(check, {"ray", "vllm", "deepspeed", "torch", "transformers"}) == set()


def test_the_table_of_flags_names_every_flag_of_the_installed_parser():
    """A flag that a new OpenRLHF adds, or drops, is one more or less than the page has."""
    page = Path(__file__).parents[2] / "docs" / "algorithms.md"
    assert page.read_text(encoding="utf-8").endswith(table())
    known = set(installed_flags())
    named = {
        *flags.REFUSED,
        *flags.REFUSED_WITH_R3,
        *flags.ALSO_SET,
        *flags.SAME,
        *flags.TOGETHER,
    }
    assert named <= known and own_flags() <= known
    lists = (set(flags.REFUSED), set(flags.REFUSED_WITH_R3), flags.ALSO_SET | own_flags())
    assert sum(map(len, lists)) == len(set().union(*lists))  # each in one list


WORDS = {
    "*AHEAD": (
        "openrlhf.train.async_enable=true",
        "cluster.gpus_per_node=8",
        "cluster.enable_sleep=false",
    ),
    "*GSPO": (
        "openrlhf.actor.policy_loss_type=gspo",
        "train.loss_aggregation=seq-mean-token-mean",
    ),
    "*CPU": (),
    "*RESUME": (),
    "*OFF": tuple(f"{name}.enabled=false" for name in ("replay", "reflection", "ranking")),
}


def overrides_of(settings):
    return [one for word in shlex.split(settings) for one in WORDS.get(word, [word])]


@pytest.mark.parametrize(
    ("settings", "sentence"), rows_of(Path(__file__).with_name("refused_flags.txt"))
)
def test_flags_that_would_be_ignored_or_break_the_run_are_refused(settings, sentence):
    with pytest.raises(ConfigError) as refusal:
        checked(*overrides_of(settings))
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("flag", sorted((own_flags() | flags.ALSO_SET) - flags.MAY_BE_SET))
def test_a_flag_that_is_set_already_is_answered_by_a_key_that_there_is_or_a_reason(flag):
    with pytest.raises(ConfigError) as refusal:
        arguments_for("algo=ppo", *WORDS["*OFF"], f"openrlhf.{flag}=7")
    assert str(refusal.value) == f"openrlhf.{flag} is set by R³ itself; {flags.origin(flag)}"
    named = re.findall(r"[a-z_]+(?:\.[a-z_]+)+", flags.origin(flag))
    assert set(named) <= fields_of().keys() and (named or flag in flags.NO_COUNTERPART)


@pytest.mark.parametrize(
    ("settings", "expected"), rows_of(Path(__file__).with_name("arriving_flags.txt"))
)
def test_the_settings_arrive_where_openrlhf_looks_for_them(settings, expected):
    platform = "cpu" if "*CPU" in settings else "cuda"
    args = checked(*overrides_of(settings), platform=platform, resume="*RESUME" in settings)
    for flag, value in json.loads(expected).items():
        found = value_of(args, flag)
        assert (list(found) if isinstance(found, tuple) else found) == value, flag
