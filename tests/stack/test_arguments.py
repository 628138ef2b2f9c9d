"""Our configuration as OpenRLHF's own flags, judged by the installed OpenRLHF's own parser and checks."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.config.loading import experiments, load_config, presets
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack import flags, work
from r3_openrlhf.stack.arguments import openrlhf_arguments, own_flags
from r3_openrlhf.stack.upstream_parser import check_arguments, installed_flags, installed_source
from tests.tables import rows_of

STACK = Path(work.__file__).parent


def arguments_for(*overrides, experiment="cpu_smoke", platform="cuda", resume=False):
    config = load_config(experiment, ["run_dir=/runs/x", *overrides])
    return openrlhf_arguments(config, RunDirectory("/runs/x"), model_dir="/m", platform=platform, resume=resume)


def checked(*overrides, **options):
    return check_arguments(arguments_for(*overrides, **options))


@functools.cache
def is_agentic(experiment):
    return load_config(experiment, []).is_agentic


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
@pytest.mark.parametrize("experiment", experiments())
def test_openrlhf_accepts_every_experiment_as_it_is(experiment, platform, capsys):
    arguments = arguments_for(experiment=experiment, platform=platform)
    args = check_arguments(arguments)
    executor = Path("agents", "executor.py") if is_agentic(experiment) else Path("rollout_executor.py")
    path = Path(args.train.agent_func_path)
    assert path.is_file() and path.is_relative_to(STACK) and path.relative_to(STACK) == executor
    assert capsys.readouterr().err == ""  # upstream prints a line for each setting that it changes
    # every flag that is given arrives with its value, so none was read as the beginning of another one
    flags = [argument.removeprefix("--") for argument in arguments if argument.startswith("--")]
    assert len(flags) == len(set(flags))
    for flag in flags:
        node = args
        for part in flag.split("."):
            node = getattr(node, part)


def test_the_settings_arrive_where_openrlhf_looks_for_them():
    args = checked(
        "cluster.num_nodes=2",
        "cluster.gpus_per_node=4",
        "cluster.vllm_tensor_parallel_size=2",
        "train.kl_coef=0.01",
        "train.batch_size=32",
        "train.micro_batch_size=2",
        "train.num_epochs=3",
        "replay.dual_clip=2.5",
        "cluster.enable_sleep=true",
    )
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node, args.vllm.num_engines) == (2, 4, 4)
    assert (args.ref.num_nodes, args.ref.num_gpus_per_node) == (2, 4)
    assert (args.algo.kl.init_coef, args.algo.kl.use_loss, args.algo.kl.estimator) == (0.01, True, "k3")
    assert (args.train.batch_size, args.train.micro_batch_size, args.train.num_episodes) == (32, 2, 3)
    assert args.actor.dual_clip == 2.5
    assert (args.ckpt.path, args.ckpt.output_dir) == ("/runs/x/checkpoints", "/runs/x/final_model")
    assert args.vllm.enable_sleep and args.ds.enable_sleep
    assert args.algo.advantage.estimator == "group_norm" and args.critic.model_name_or_path is None
    assert args.data.prompt_dataset == "/runs/x/data/problems.jsonl" and not args.data.apply_chat_template


def test_passes_over_a_step_and_their_bound_reach_openrlhf():
    off = [f"{name}.enabled=false" for name in ("replay", "reflection", "ranking")]
    args = checked("algo=grpo", *off, "train.inner_epochs=2", "openrlhf.actor.dual_clip=2.5")
    assert (args.train.max_epochs, args.actor.dual_clip) == (2, 2.5)
    assert checked("algo=grpo", *off).actor.dual_clip is None
    assert checked("openrlhf.actor.dual_clip=2.5").actor.dual_clip == 2.5


def test_without_kl_no_reference_model_is_loaded():
    assert checked("train.kl_coef=0").algo.kl.init_coef == 0


def test_the_cpu_platform_takes_what_exists_there():
    args = checked("cluster.enable_sleep=true", platform="cpu")
    assert (args.ds.attn_implementation, args.vllm.sync_backend, args.vllm.enforce_eager) == ("sdpa", "gloo", True)
    assert not args.vllm.enable_sleep and not args.ds.enable_sleep


def test_dynamic_batches_are_packed_as_upstream_wants(capsys):
    overrides = [
        "train.dynamic_batch=true",
        "train.max_tokens_per_gpu=4096",
        "rollout.max_tokens_per_gpu=8192",
    ]
    args = checked(*overrides, "model.attn_implementation=flash_attention_2")
    assert args.train.dynamic_batch_enable and args.ds.packing_samples
    assert (args.train.max_tokens_per_gpu, args.rollout.max_tokens_per_gpu) == (4096, 8192)
    assert checked(*overrides[:2], "model.attn_implementation=flash_attention_2").rollout.max_tokens_per_gpu == 4096
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("preset", presets())
def test_openrlhf_accepts_every_preset_with_every_experiment(preset, capsys):
    for experiment in experiments():
        if is_agentic(experiment) != (preset in ("hgpo", "gigpo", "agent_grpo")):
            continue  # one is about whole responses, the other about trajectories
        mean = "seq-mean-token-mean" if preset in ("r3_paper", "gspo") else "token-mean"  # eq. 2
        assert checked(f"algo={preset}", experiment=experiment).actor.loss_agg_mode == mean
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("preset", "estimator"),
    [("grpo", "group_norm"), ("rloo", "rloo"), ("reinforce_pp_baseline", "reinforce_baseline"), ("r3", "group_norm")],
)
def test_stock_algorithms(preset, estimator):
    args = checked(f"algo={preset}")
    assert args.algo.advantage.estimator == estimator
    assert not args.algo.dynamic_filtering_enable and args.reward.overlong_buffer_len is None
    assert args.actor.eps_clip_low_high == [0.2, 0.2]


def test_ppo_has_a_critic_on_the_policys_gpus():
    of_critic = ("critic.adam.lr=1e-5", "critic.freezing_steps=2", "critic.value_clip=0.2")
    of_advantage = ("algo.advantage.gamma=0.99", "algo.advantage.lambd=0.95")
    args = checked("algo=ppo", "cluster.gpus_per_node=2", *(f"openrlhf.{flag}" for flag in of_critic + of_advantage))
    assert (args.algo.advantage.estimator, args.algo.advantage.gamma, args.algo.advantage.lambd) == ("gae", 0.99, 0.95)
    assert (args.critic.adam.lr, args.critic.value_clip, args.critic.freezing_steps) == (1e-5, 0.2, 2)
    assert (
        (args.critic.num_nodes, args.critic.num_gpus_per_node)
        == (1, 2)
        == (args.actor.num_nodes, args.actor.num_gpus_per_node)
    )
    assert checked("algo=ppo", "train.learning_rate=2e-4").critic.adam.lr == 1.8e-3  # as OpenRLHF's 9e-6 beside 1e-6
    # the same text: only then OpenRLHF begins with a head of its own
    assert args.critic.model_name_or_path == args.actor.model_name_or_path == "/m"
    assert (
        checked(
            "algo=ppo", "openrlhf.critic.model_name_or_path=/c", "openrlhf.critic.save_value_network=true"
        ).critic.model_name_or_path
        == "/c"
    )
    assert checked("algo=grpo").critic.model_name_or_path is None


def test_dapo():
    args = checked("algo=dapo", "rollout.max_new_tokens=100")
    assert args.algo.dynamic_filtering_enable and tuple(args.algo.dynamic_filtering_range) == (0, 1)
    assert args.actor.eps_clip_low_high == [0.2, 0.28]
    assert (args.reward.overlong_buffer_len, args.reward.overlong_penalty_factor) == (20, 0.5)
    assert args.algo.advantage.estimator == "group_norm"


def test_resuming_loads_the_checkpoint():
    assert not checked().ckpt.load_enable
    assert checked(resume=True).ckpt.load_enable


def test_further_flags_in_both_spellings_and_kinds():
    args = checked(
        "openrlhf={actor.adam.betas: [0.9, 0.98], ds.overlap_comm: true, ds: {zpg: 2}}", "train.zero_stage=3"
    )
    assert args.actor.adam.betas == [0.9, 0.98] and args.ds.overlap_comm and args.ds.zpg == 2


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("openrlhf.actor.adam.lr=1", "openrlhf.actor.adam.lr is set by R³ itself"),
        ("openrlhf.actor.eps_clip=0.3", "openrlhf.actor.eps_clip is set by R³ itself"),
        ("openrlhf.actor.dual_clp=3", "OpenRLHF has no flag --actor.dual_clp; did you mean --actor.dual_clip?"),
        ("openrlhf.actor.dual=3", "OpenRLHF has no flag --actor.dual"),  # argparse would take the beginning of a flag
        ("openrlhf.actor.policy_loss_type=dpo", "argument --actor.policy_loss_type: invalid choice: 'dpo'"),
        ("openrlhf.actor.adam.eps=high", "argument --actor.adam.eps: invalid float value: 'high'"),
        (
            "openrlhf.algo.advantage={is_correction_level: token, is_correction_threshold: [1, 2, 3]}",
            "takes HIGH or LOW HIGH",
        ),  # an assertion of upstream
    ],
)
def test_bad_flags(setting, sentence):
    with pytest.raises(ConfigError) as refusal:
        checked(setting)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_renamed_flag_upstream_fails_at_once(tmp_path):
    """The check can fail: the same arguments against an OpenRLHF in which one flag has another name."""
    package = installed_source().parent.parent
    (tmp_path / "cli").mkdir()
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "config.py").write_text((package / "utils" / "config.py").read_text())
    source = tmp_path / "cli" / "train_ppo_ray.py"
    source.write_text(installed_source().read_text().replace('"--train.colocate_all"', '"--train.colocate_models"'))
    with pytest.raises(ConfigError, match="no flag --train.colocate_all; did you mean --train.colocate_models"):
        check_arguments(arguments_for(), source=source)
    source.write_text("print('another program')")
    with pytest.raises(ConfigError, match="has no parser under __main__; R³ supports OpenRLHF 0.11.2"):
        check_arguments(arguments_for(), source=source)


def heavy_modules_of(statement):
    code = f"{statement}; import sys; print(*[m for m in 'ray vllm deepspeed torch transformers'.split() if m in sys.modules])"
    return subprocess.check_output([sys.executable, "-c", code], text=True).split()


def test_checking_loads_no_framework():
    check = "from r3_openrlhf.stack.upstream_parser import check_arguments as c; c(['--vllm.num_engines', '1', '--train.agent_func_path', 'x', '--actor.model_name_or_path', 'm', '--actor.num_gpus_per_node', '1'])"
    assert heavy_modules_of(check) == []


def test_the_check_for_frameworks_can_fail():
    assert "torch" in heavy_modules_of("import torch")


AHEAD = ("openrlhf.train.async_enable=true", "cluster.gpus_per_node=8", "cluster.enable_sleep=false")
GSPO = ("openrlhf.actor.policy_loss_type=gspo", "train.loss_aggregation=seq-mean-token-mean")


def test_the_table_of_flags_names_every_flag_of_the_installed_parser():
    """A flag that a new OpenRLHF adds is in no list: KeyError. One that it drops is in the page and not in the parser."""
    page = Path(__file__).parents[2] / "docs" / "openrlhf-flags.md"
    assert page.read_text(encoding="utf-8") == flags.table(installed_flags(), own_flags())
    known = set(installed_flags())
    named = {*flags.REFUSED, *flags.REFUSED_WITH_R3, *flags.PASSED, *flags.ALSO_SET}
    assert named <= known and own_flags() <= known
    lists = (set(flags.REFUSED), set(flags.REFUSED_WITH_R3), set(flags.PASSED), set(flags.ALSO_SET) | own_flags())
    assert sum(map(len, lists)) == len(set().union(*lists))  # each in one list


REFUSED = rows_of(Path(__file__).with_name("refused_flags.txt"))


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_flags_that_would_be_ignored_or_break_the_run_are_refused(settings, sentence):
    groups = {"*AHEAD": AHEAD, "*GSPO": GSPO}
    overrides = [one for word in settings.split() for one in groups.get(word, [word])]
    with pytest.raises(ConfigError) as refusal:
        arguments_for(*overrides)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


def test_half_of_the_gpus_sample_ahead():
    args = checked(*AHEAD, "openrlhf.train.async_queue_size=3")
    assert (args.actor.num_gpus_per_node, args.vllm.num_engines, args.train.async_queue_size) == (4, 4, 3)
    args = checked(*AHEAD, "cluster.vllm_tensor_parallel_size=2")
    assert (args.actor.num_gpus_per_node, args.vllm.num_engines) == (4, 2)


def test_flags_that_do_something_here_reach_openrlhf():
    args = checked(*GSPO, "openrlhf.algo.advantage.is_correction_level=token")
    assert (args.actor.policy_loss_type, args.actor.loss_agg_mode) == ("gspo", "seq-mean-token-mean")
    divergence = "{is_correction_level: seq, is_correction_gating: binary_kl, is_correction_threshold: [0.01]}"
    assert checked(f"openrlhf.algo.advantage={divergence}").algo.advantage.is_correction_threshold == [0.0, 0.01]
    assert checked("algo=reinforce_pp_baseline", "openrlhf.algo.advantage.no_std_norm=true").algo.advantage.no_std_norm
    args = checked("openrlhf.actor.lr_scheduler=cosine_with_min_lr", "openrlhf.actor.min_lr_ratio=0.5")
    assert (args.actor.lr_scheduler, args.actor.min_lr_ratio) == ("cosine_with_min_lr", 0.5)
    assert checked().actor.lr_scheduler == "constant_with_warmup"
    reference = ("train.kl_coef=0.01", "openrlhf.ref.offload=true", "openrlhf.algo.kl.unbiased_gradient=true")
    assert checked(*reference).ref.offload
    # on a CPU nothing sleeps; ZeRO 2 can always send its states to the host
    checked("train.zero_stage=0", "cluster.enable_sleep=true", platform="cpu")
    checked("train.zero_stage=2", "openrlhf.ds.grad_accum_dtype=fp32", "cluster.enable_sleep=true")
    checked("train.zero_stage=1", "cluster.enable_sleep=true")


def test_an_adapter_reaches_openrlhf():
    args = checked("openrlhf.ds.lora.rank=8", "openrlhf.ds.lora.target_modules=[q_proj,v_proj]")
    assert (args.ds.lora.rank, args.ds.lora.alpha, args.ds.lora.target_modules) == (8, 16, ["q_proj", "v_proj"])
    assert checked("openrlhf.ds.lora.rank=8").ds.lora.target_modules == "all-linear"


def test_what_is_refused_for_r3_alone_reaches_a_stock_algorithm():
    args = checked("algo=grpo", "openrlhf.reward.stop_properly_penalty_coef=0.5")
    assert args.reward.stop_properly_penalty_coef == 0.5
    args = checked("openrlhf.train.enable_ema=false", "openrlhf.ds.ring_attn_size=1", "openrlhf.ds.zpg=1")
    assert (args.ds.zpg, args.ds.ring_attn_size, args.train.enable_ema) == (1, 1, False)
