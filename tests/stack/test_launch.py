"""How a run starts Ray, and how its errors come back to the user."""

import contextlib
import os
import re
import signal
import subprocess
import time
from types import SimpleNamespace

import psutil
import pytest
import torch
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2MoeConfig

from r3_openrlhf import cli
from r3_openrlhf.config.loading import config_from_json, load_config
from r3_openrlhf.machine.gpus import Gpu
from r3_openrlhf.machine.ray_start import of_this_machine
from r3_openrlhf.machine.ray_temporary import MAX_BYTES
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.stop_request import Stopped
from r3_openrlhf.stack import environment, launch, ray_cluster, safe_pickles, start_checks
from r3_openrlhf.stack.arguments import platform_of
from r3_openrlhf.stack.launch import num_steps, plan, train
from r3_openrlhf.stack.ray_cluster import check_devices, hidden_gpus, ray_options, raylets
from r3_openrlhf.stack.start_checks import (
    check_context,
    check_places,
    gpu_warnings,
    host_memory_warning,
    memory_warning,
)
from tests.problems.files import write_jsonl

pytestmark = pytest.mark.stack


@pytest.fixture
def config(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return load_config("cpu_smoke", ["run_dir=unused"])


def test_a_local_cluster_of_its_own_on_cpus(config):
    options = ray_options(config, "cpu")
    assert options["address"] == "local"  # another user's cluster on this machine is not joined
    assert options["num_gpus"] == 1  # bookkeeping
    assert options["runtime_env"]["worker_process_setup_hook"].endswith("cpu_platform.install")
    # 15 is Ray's: a busy machine would starve the run
    assert options["_system_config"]["worker_niceness"] == 0


@pytest.mark.parametrize(("asked", "threads"), [("", "3"), ("5", "5")])
def test_threads_are_as_many_as_the_cores_that_the_run_may_use(
    config, monkeypatch, asked, threads
):
    """A job, a container or `taskset` may give it fewer than the machine has; more threads than cores wait for each other. Who starts
    several runs on one machine, or a scheduler that shares its cores out, knows better."""
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 5, 9})
    assert ray_options(config, "cpu")["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == threads


HOOKS = {"cpu": "cpu_platform.install", "cuda": "every_process.install"}


@pytest.mark.parametrize("platform", HOOKS)
def test_a_given_cluster_is_joined_with_nothing_but_the_environment(
    config, monkeypatch, platform
):
    """Without the hook the processes of the CPU platform end with "No module named 'flash_attn'"."""
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    options = ray_options(config, platform)
    assert set(options) == {"address", "runtime_env"} and options["address"] == "somewhere:6379"
    assert options["runtime_env"]["worker_process_setup_hook"].endswith(HOOKS[platform])
    assert platform == "cuda" or options["runtime_env"]["env_vars"]["DS_ACCELERATOR"] == "cpu"


@pytest.mark.parametrize("platform", HOOKS)
@pytest.mark.parametrize("address", ["", "head:6379"])
def test_what_every_process_of_every_node_is_told(config, monkeypatch, address, platform):
    """The configuration and the platform: an engine that spans GPUs has none of its own. That tensors cross without a copy
    (cli/train_ppo_ray.py:29 sets it where it starts Ray), that pickles run no code, that nothing is reported, and a choice between
    parts of vLLM."""
    monkeypatch.delenv("RAY_ENABLE_ZERO_COPY_TORCH_TENSORS", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "0")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    variables = ray_options(config, platform)["runtime_env"]["env_vars"]
    assert config_from_json(variables[environment.VARIABLE]) == config
    monkeypatch.setenv(environment.PLATFORM, variables[environment.PLATFORM])
    assert environment.on_cpu() is (platform == "cpu")
    for name in ("VLLM_NO_USAGE_STATS", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        assert variables[name] == "1"
    assert variables["RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"] == "1"
    assert (
        variables["VLLM_USE_RAY_V2_EXECUTOR_BACKEND"]
        == variables["VLLM_USE_V2_MODEL_RUNNER"]
        == "0"
    )
    assert variables.items() >= safe_pickles.ENVIRONMENT.items()
    assert of_this_machine()["RAY_USAGE_STATS_ENABLED"] == "0"


def test_compiled_code_is_read_from_no_directory_that_another_user_can_make(
    config, monkeypatch
):
    """torch's own place for it is in /tmp, by the user's name."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    found = ray_options(config, "cpu")["runtime_env"]["env_vars"]["TORCHINDUCTOR_CACHE_DIR"]
    assert found.startswith("/") and found.endswith("/.cache/torchinductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/scratch/mine")
    assert (
        ray_options(config, "cpu")["runtime_env"]["env_vars"]["TORCHINDUCTOR_CACHE_DIR"]
        == "/scratch/mine"
    )


def test_ray_takes_ranks_on_cpus_where_all_gpus_are_hidden(config, monkeypatch):
    """An empty CUDA_VISIBLE_DEVICES, as people hide GPUs: Ray counts its words, and a rank on CPUs takes the place of a GPU."""
    config.cluster.gpus_per_node = 2
    spec = {"num_cpus": 4, "num_gpus": 2, "memory": 10**9, "object_store_memory": 10**8}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert hidden_gpus(config, "cpu") == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hidden_gpus(config, "cuda") == {}
    with pytest.raises(ValueError, match="Attempting to start raylet with 2 GPU"):
        ResourceAndLabelSpec(**spec).resolve(is_head=True)
    for name, value in hidden_gpus(config, "cpu").items():
        monkeypatch.setenv(name, value)
    assert ResourceAndLabelSpec(**spec).resolve(is_head=True).num_gpus == 2


def test_a_policy_actor_on_gpus_gets_its_share_of_the_cores(config, monkeypatch):
    """Ray would give it one thread. The engines keep that one."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config.cluster.gpus_per_node = 2
    variables = ray_options(config, "cuda")["runtime_env"]["env_vars"]
    assert "OMP_NUM_THREADS" not in variables
    threads = torch.get_num_threads()
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Ray's
        monkeypatch.setenv(environment.THREADS, variables[environment.THREADS])
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(9)))
        environment.use_share_of_cores()
        assert os.environ["OMP_NUM_THREADS"] == "4" and torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(threads)
    monkeypatch.delenv("OMP_NUM_THREADS")
    # which update at a time
    with_critic = load_config("cpu_smoke", ["algo=ppo", "cluster.gpus_per_node=2"])
    assert (
        ray_options(with_critic, "cuda")["runtime_env"]["env_vars"][environment.THREADS] == "4"
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # a user's
    variables = ray_options(config, "cuda")["runtime_env"]["env_vars"]
    assert variables["OMP_NUM_THREADS"] == "3" and environment.THREADS not in variables


def test_gpus_that_are_taken_end_the_start_and_nobody_asks_on_cpus(config, monkeypatch):
    taken = [
        Gpu(str(index), f"GPU-{index}", 80 * 2**30, index * 40 * 2**30) for index in range(3)
    ]
    monkeypatch.setattr(start_checks, "gpus_of_this_machine", lambda: taken)
    assert gpu_warnings(config, platform="cpu") == []
    assert gpu_warnings(config, platform="cuda") == []  # Ray takes the first
    config.cluster.gpus_per_node, config.cluster.vllm_gpu_memory_utilization = 2, 0.4
    (sentence,) = gpu_warnings(config, platform="cuda")
    assert sentence.startswith("GPU 1 has 40.0 of 80.0 GiB free: ")
    config.cluster.vllm_gpu_memory_utilization = 0.6
    with pytest.raises(
        ConfigError, match=r"GPU 1 has 40\.0 of 80\.0 GiB free, and an engine takes 48\.0 of it"
    ):
        gpu_warnings(config, platform="cuda")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert gpu_warnings(config, platform="cuda") == []
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(ConfigError, match="cannot open expandable segments"):
        gpu_warnings(config, platform="cuda")


def test_the_head_of_a_cluster_needs_no_gpu(config, monkeypatch):
    """cluster.device=cuda and an address: the nodes have the GPUs. Without an address there is nobody to have them."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    config.cluster.device = "cuda"
    with pytest.raises(
        ConfigError, match="cluster.device is cuda, but no CUDA device is visible here"
    ):
        platform_of(config)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert platform_of(config) == "cuda"


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": {"CPU": 8.0, **resources}}


def test_a_cluster_of_gpus_is_never_taken_for_cpus(config):
    head, h100 = node(), node(GPU=8.0, **{"accelerator_type:H100": 1.0})
    with pytest.raises(
        ConfigError,
        match="no CUDA device .* but Ray's nodes have H100, and cluster.device is auto; use",
    ):
        check_devices([head, h100], config, "cpu")
    assert check_devices([head, node(GPU=1.0)], config, "cpu") == []  # bookkeeping, as on CPUs
    dead = node(alive=False, **{"accelerator_type:H100": 1.0})
    (sentence,) = check_devices([head, dead], config, "cpu")
    assert sentence.startswith("the run needs 1 GPUs and Ray has 0 now; it waits")


def test_a_cluster_with_too_few_gpus_is_named(config):
    """Upstream waits for them without a word (cli/train_ppo_ray.py:50); they may join yet."""
    config.cluster.num_nodes, config.cluster.gpus_per_node = 2, 8
    h100 = node(GPU=8.0, **{"accelerator_type:H100": 1.0})
    (sentence,) = check_devices([h100], config, "cuda")
    assert sentence.startswith("the run needs 16 GPUs and Ray has 8 now")
    assert check_devices([h100, h100], config, "cuda") == []


def test_several_nodes_without_a_cluster(config):
    config.cluster.num_nodes = 2
    with pytest.raises(
        ConfigError,
        match="cluster.num_nodes is 2, but no Ray cluster is given; `r3 submit slurm` starts",
    ):
        ray_options(config, "cuda")


def test_a_directory_for_temporary_files_without_room_for_sockets(config, monkeypatch):
    run = RunDirectory(config.run_dir)
    monkeypatch.setenv("RAY_TMPDIR", "/" + "t" * (MAX_BYTES - 1))
    check_places(run, platform="cpu")
    monkeypatch.setenv("RAY_TMPDIR", "/" + "t" * MAX_BYTES)
    with pytest.raises(
        ConfigError,
        match="/t*, has a path of 28 bytes, and Ray's sockets in it leave room for 27; set RAY_TMPDIR",
    ):
        check_places(run, platform="cpu")
    # that cluster's files are its own matter
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert check_places(run, platform="cpu") == []


def test_without_the_configuration_a_process_says_so(monkeypatch):
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    environment.config_from_environment.cache_clear()
    with pytest.raises(ConfigError, match="start the job with `r3 train`"):
        environment.config_from_environment()


def test_heads_that_vllm_cannot_share_are_found_before_it_starts(tmp_path, config):
    Qwen2Config(num_attention_heads=28, num_key_value_heads=4).save_pretrained(tmp_path)
    config.cluster.vllm_tensor_parallel_size = 8
    with pytest.raises(
        ConfigError,
        match="tensor_parallel_size is 8, but .* 28 attention heads, 4 for keys and values",
    ):
        check_context(config, str(tmp_path))
    config.cluster.vllm_tensor_parallel_size = 4
    check_context(config, str(tmp_path))


def test_a_dry_run_asks_the_table_where_the_model_is_on_the_hub():
    config = load_config("r3_7b_deepscaler_multinode", ["cluster.vllm_tensor_parallel_size=8"])
    with pytest.raises(
        ConfigError, match="28 attention heads, 4 for keys and values.*use 1, 2, 4$"
    ):
        plan(config)
    platform, _, remarks, _ = plan(load_config("r3_7b_deepscaler_multinode", []))
    assert platform == "cuda" and remarks[0].startswith("Not checked: the chat template")


def test_held_out_problems_that_cannot_be_had_hide_no_page(monkeypatch, tmp_path):
    """They are on the hub, and the problems to train on are here."""
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(9)]
    data = write_jsonl(tmp_path / "own.jsonl", rows)
    monkeypatch.setattr(
        launch,
        "hub_fault",
        lambda parts: next((one.path for one in parts if one.path == "o/set"), None),
    )
    config = load_config("cpu_smoke", [f"data.path={data}", "held_out.path=o/set"])
    found = plan(config)
    assert found.page is not None and found.page.used == 9
    assert found.page.algorithm[-1].startswith("held out: all problems of o/set")
    assert "Not checked: the held-out problems, which are on the hub: o/set" in found.notes


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("is_job", [False, True])
def test_a_start_that_is_refused_leaves_the_state_of_the_run(
    monkeypatch, tmp_path, config, has_begun, is_job
):
    """A resume with another key made a run "failed" that had ended as it should."""
    run = RunDirectory(tmp_path / "run")
    run.create(config)
    run.events.write_text("{}\n")
    if is_job:
        run.cluster.mkdir()

    def refused(_config, **_options):
        if has_begun:
            run.events.write_text("{}\n{}\n")
        raise ConfigError("no")

    monkeypatch.setattr(launch, "train", refused)
    with pytest.raises(ConfigError):
        cli._train(config, run, verbose=False, quiet=True)
    assert run.error.is_file() == (has_begun or is_job)


def test_what_only_experts_have_is_refused_without_them(tmp_path):
    for flag in ("actor.aux_loss_coef=0.001", "ds.experts_implementation=eager"):
        config = load_config("cpu_smoke", [f"openrlhf.{flag}"])
        Qwen2Config().save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match=r"openrlhf.*has no experts; leave it out"):
            check_context(config, str(tmp_path))
        Qwen2MoeConfig().save_pretrained(tmp_path)
        check_context(config, str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("qwen3_5_text", "linear_attention"),
        ("qwen3_5", "linear_attention"),
        ("gemma3", "reads images"),
        ("gemma4", "reads images"),
    ]
    + [
        ("recurrent_gemma", "recurrent"),
        ("gemma3_text", None),
        ("gemma4_text", None),
        ("qwen3", None),
        ("olmo2", None),
    ],
)
def test_rows_are_packed_for_models_that_tell_them_apart(tmp_path, kind, said):
    """The others are trained row by row, with one warning; the user's configuration stays as it is."""
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    settings = [
        f"model.path={tmp_path}",
        "cluster.device=cuda",
        "data.max_len=2048",
        "rollout.max_new_tokens=1024",
    ]
    asked = load_config("r3_1p5b_deepscaler_8gpu", settings)
    _, words, notes, _ = plan(asked)
    assert (
        ("--ds.packing_samples" in words)
        == ("--train.dynamic_batch_enable" in words)
        == (said is None)
    )
    for name in ("train", "rollout"):
        assert said is None or words[words.index(f"--{name}.micro_batch_size") + 1] == "1"
    warned = [note for note in notes if "a packed row would see the one before it" in note]
    assert len(warned) == (said is not None) and all(said in note for note in warned)
    assert asked.train.packing and asked.train.dynamic_batch


def test_packed_rows_of_a_linear_attention_see_each_other():
    """Why they are refused; where this fails, the installed transformers keeps packed rows apart."""
    sizes = dict(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    sizes |= dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8)
    sizes |= dict(num_key_value_heads=2, linear_num_value_heads=4, linear_num_key_heads=2)
    torch.manual_seed(0)
    made = AutoConfig.for_model("qwen3_5_text", **sizes)
    model = AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").eval()
    first, second = torch.randint(64, (1, 7)), torch.randint(64, (1, 9))
    with torch.no_grad():
        alone = model(second, use_cache=False).logits
        positions = torch.cat([torch.arange(7), torch.arange(9)])[None]
        packed = model(
            torch.cat([first, second], 1), position_ids=positions, use_cache=False
        ).logits[:, 7:]
    assert (packed - alone).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("gib", "settings", "said"),
    [
        (79.1, [], None),
        (30, [], "the phase .* is expected to take .* GiB of a GPU, which has 30.0; use "),
        (
            79.1,
            ["openrlhf.ds.tensor_parallel_size=2"],
            "memory was not checked: .*openrlhf.ds.tensor_parallel_size=2",
        ),
    ],
)
def test_a_start_on_cuda_asks_the_plan(monkeypatch, gib, settings, said):
    """With a GPU of so much memory in the place of none."""
    seen = SimpleNamespace(name="a GPU", total_memory=int(gib * 2**30))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: seen)
    config = load_config(
        "r3_1p5b_deepscaler_8gpu", ["cluster.vllm_gpu_memory_utilization=0.6", *settings]
    )
    found = memory_warning(config, config.model.path, platform="cuda")
    assert found is None if said is None else re.search(said, found)
    seen.total_memory = 4 * 2**30
    with (
        contextlib.nullcontext()
        if settings
        else pytest.raises(ConfigError, match="this run does not fit")
    ):
        memory_warning(config, config.model.path, platform="cuda")
    assert memory_warning(config, config.model.path, platform="cpu") is None


def test_a_start_on_cuda_knows_the_memory_of_its_job(monkeypatch):
    config = load_config("r3_1p5b_deepscaler_8gpu", [])
    gpu = Gpu(index="0", uuid="GPU-0", total=80 << 30, used=0)
    monkeypatch.setattr(start_checks, "gpus_of_this_machine", lambda: [gpu])
    monkeypatch.setattr(start_checks.memory, "total_memory", lambda: 10 * 2**30)
    found = host_memory_warning(config, config.model.path, platform="cuda")
    assert "GiB of host memory, and this machine or its job has 10.0; ask for more" in found
    options = ray_options(config, "cuda")  # Ray takes 30% of the host's memory
    assert options["object_store_memory"] <= 32 * 2**30
    monkeypatch.setattr(start_checks.memory, "total_memory", lambda: 2000 * 2**30)
    assert host_memory_warning(config, config.model.path, platform="cuda") is None
    assert host_memory_warning(config, config.model.path, platform="cpu") is None


def test_a_second_start_on_a_run_directory_is_refused(tmp_path):
    """Before anything of the first one's is touched."""
    config = load_config("cpu_smoke", [f"run_dir={tmp_path}/run"])
    with lock.held(RunDirectory(config.run_dir)):
        with pytest.raises(lock.RunBusy, match="run is being written by process"):
            train(config, quiet=True)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.lock"]


def test_steps_of_a_run(config):
    # 4 batches of 8, the last one short, twice
    assert num_steps(config, SimpleNamespace(num_problems=30)) == 8
    config.train.max_steps = 5
    assert num_steps(config, SimpleNamespace(num_problems=30)) == 5


def test_a_child_that_ends_while_its_run_looks_for_raylets_is_none(monkeypatch):
    with subprocess.Popen(["raylet"], executable="/bin/true") as ended:
        children = [psutil.Process(ended.pid)]
    monkeypatch.setattr(psutil.Process, "children", lambda process: children)
    assert raylets() == []


@pytest.mark.parametrize(
    ("folder", "said"), [("/dev/shm", None), ("/tmp/ray", "in /tmp/ray, ")]
)
def test_an_object_store_on_disk_is_named(monkeypatch, folder, said):
    """Ray's own raylet has the directory on its command line (test_end_to_end.py has a real one)."""
    words = ["raylet", "--plasma_directory=/tmp/other", f"--plasma_directory={folder}"]
    raylet = SimpleNamespace(cmdline=lambda: words)
    monkeypatch.setattr(ray_cluster, "raylets", lambda: [raylet])
    found = ray_cluster.object_store_warning()
    assert found is None if said is None else said in found


def test_what_a_signal_says_survives_the_interrupt_that_ray_makes_of_it(tmp_path):
    """A run that is told to end while its engine starts is in ray.get."""
    console = SimpleNamespace(run=None, say=lambda text: None)
    with (
        pytest.raises(Stopped, match="before a step began; nothing was lost") as stopped,
        contextlib.ExitStack() as block,
    ):
        block.push(launch.listen(RunDirectory(tmp_path), console))
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None
    assert stopped.value.nothing_lost
