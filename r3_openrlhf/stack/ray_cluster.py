"""Start or join Ray for the time of a run, and end what was started."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import psutil

from r3_openrlhf.config import R3Config
from r3_openrlhf.machine import every_process, memory, shared_memory, stores
from r3_openrlhf.machine.cpu import cpu_platform
from r3_openrlhf.machine.places import SHARED_MEMORY
from r3_openrlhf.machine.ray_start import patient_raylet
from r3_openrlhf.machine.ray_temporary import private_directory, ray_temporary, sweep
from r3_openrlhf.method.errors import ConfigError, R3Error
from r3_openrlhf.runs.stop_request import DEADLINE, SIGNALS, ignore_signals_in_children
from r3_openrlhf.stack import safe_pickles
from r3_openrlhf.stack.arguments import ray_address
from r3_openrlhf.stack.environment import THREADS, environment_of

LEAVING_S = 10.0
# Of the user's environment, to Ray's workers on every node. The last two choose between two parts
# of vLLM (docs/install.md#your-first-run-on-gpus).
PASSED_ON = (
    DEADLINE,
    "OMP_NUM_THREADS",
    "TORCHINDUCTOR_CACHE_DIR",
    "VLLM_USE_RAY_V2_EXECUTOR_BACKEND",
    "VLLM_USE_V2_MODEL_RUNNER",
)


@contextlib.contextmanager
def running_ray(options: dict) -> Iterator[ModuleType]:
    """`ray.init(**options)` for the block. A Ray of this run has a private directory, and calls
    need a token (`of_this_machine` is in the environment). R3Error: the token has no effect."""
    import ray
    from ray._private.ray_constants import DEFAULT_DASHBOARD_AGENT_LISTEN_PORT

    with contextlib.ExitStack() as block:
        if options.get("address") == "local":
            if ray._raylet.get_authentication_mode() != ray._raylet.AuthenticationMode.TOKEN:
                raise R3Error(
                    "Ray was imported before the run could ask for a token; start it with `r3 train`"
                )
            sweep(ray_temporary())
            # of the engine's process: Ray's worker ends them before the resource tracker can
            block.callback(shared_memory.sweep, names=shared_memory.SEMAPHORES)
            directory = block.enter_context(private_directory(ray_temporary()))
            options = options | {"_temp_dir": str(directory)}
            options["runtime_env"]["env_vars"] |= stores.on_one_node(directory.parent)
        heard = {number: signal.getsignal(number) for number in SIGNALS}

        def hear(_handler: object = None) -> None:
            """Restore the handlers: Ray's, one in C++, would end a run within a step."""
            for number, handler in heard.items():
                signal.signal(number, handler)

        with (
            ignore_signals_in_children(),
            patient_raylet(common_port=DEFAULT_DASHBOARD_AGENT_LISTEN_PORT),
            patch.multiple(ray._private.utils, set_sigterm_handler=hear),
        ):
            ray.init(**options)
            hear()
        patience_s = LEAVING_S
        try:
            yield ray
        except KeyboardInterrupt:
            patience_s = 0.0
            raise
        finally:
            # ray.shutdown() waits for no one: neither for the raylet's workers nor for what they have started
            family = raylets()
            ray.shutdown()
            _, alive = psutil.wait_procs(family, timeout=patience_s)
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(alive, timeout=LEAVING_S)


def raylets() -> list[psutil.Process]:
    """Return this process's raylets and what they have started. Any of its children may end at any time."""
    family = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == "raylet":
                family += [child, *child.children(recursive=True)]
    return family


def object_store_warning() -> str | None:
    """Say where this process's Ray keeps its objects, if that is not in /dev/shm.

    Ray takes a directory on disk where too little of /dev/shm is free
    (ray/_private/services.py:2212; its command line has it, :1944), and says so in a log file."""
    option = "--plasma_directory="
    for process in raylets():
        with contextlib.suppress(psutil.Error):
            given = [word for word in process.cmdline() if word.startswith(option)]
            folder = given[-1].removeprefix(option) if given else str(SHARED_MEMORY)
            if Path(folder) != SHARED_MEMORY:
                return (
                    f"Ray: the object store is on disk, in {folder}, because {SHARED_MEMORY} has too little free; rollouts "
                    "go through it, so make room there"
                )
    return None


def hidden_gpus(config: R3Config, platform: str) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES for Ray where GPUs are hidden: Ray counts words, a CPU rank takes one
    (ray/_private/resource_and_label_spec.py: "Attempting to start raylet with 1 GPU"). No device is -1."""
    if platform != "cpu" or "CUDA_VISIBLE_DEVICES" not in os.environ:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(["-1"] * config.cluster.num_ranks)}


def ray_options(config: R3Config, platform: str) -> dict:
    """Arguments of ray.init: a cluster that is there (RAY_ADDRESS), else one for this run."""
    environment = {**every_process.ENVIRONMENT, **environment_of(config, platform)}
    environment |= {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    # as cli/train_ppo_ray.py:29, which finds Ray running. What came through Ray is read-only
    environment["RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"] = os.environ.get(
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS", "1"
    )
    environment |= safe_pickles.ENVIRONMENT
    hook = cpu_platform if platform == "cpu" else every_process
    runtime: dict = {
        "env_vars": environment,
        "worker_process_setup_hook": f"{hook.__name__}.install",
    }
    address = ray_address()
    options: dict = {"runtime_env": runtime}
    if address:
        options["address"] = address
    elif config.cluster.num_nodes > 1:
        raise ConfigError(
            f"cluster.num_nodes is {config.cluster.num_nodes}, but no Ray cluster is given; `r3 submit slurm` starts one on "
            "the nodes of a job, or set RAY_ADDRESS to one that is there"
        )
    else:
        # Ray gives its workers a niceness of 15: next to any other program they would not progress
        options |= {
            "address": "local",
            "include_dashboard": False,
            "_system_config": {"worker_niceness": 0, "prestart_worker_first_driver": False},
        }
    if platform == "cpu":
        ranks = config.cluster.num_ranks
        threads = os.environ.get("OMP_NUM_THREADS")
        if not threads:
            threads = str(max(1, len(os.sched_getaffinity(0)) // ranks))  # a job has fewer
        environment |= cpu_platform.ENVIRONMENT | environment
        environment |= {"OMP_NUM_THREADS": threads, "VLLM_LOGGING_LEVEL": "WARNING"}
        # vllm/platforms/cpu.py:271 puts the engine's worker into one more process to set OMP for
        # it. It is set above, so that process, which would import everything again, is not needed
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if not address:  # GPUs are bookkeeping here: upstream asks for one per rank
            options |= {
                "num_gpus": ranks,
                "num_cpus": ranks + 4,
                "object_store_memory": 500 * 2**20,
            }
    else:
        if "OMP_NUM_THREADS" not in environment:
            environment[THREADS] = str(
                config.policy_gpus_per_node * (1 + config.algorithm.has_critic)
            )
        # cli/train_ppo_ray.py:26
        environment["NCCL_DEBUG"] = os.environ.get("NCCL_DEBUG", "WARN")
        if not address:  # Ray would take 30% of the host's memory, also in a job that has less
            free = shutil.disk_usage(SHARED_MEMORY).free
            options["object_store_memory"] = memory.object_store_bytes(
                free, memory.available_memory()
            )
    return options


def check_devices(
    nodes: list[dict], config: R3Config, platform: str, *, own: bool = False
) -> list[str]:
    """Return a sentence if Ray's nodes (`ray.nodes()`) have too few GPUs, or CPUs next to them.

    Upstream asks for a bundle of one GPU and one CPU per rank (cli/train_ppo_ray.py:48). own: the
    run has started this Ray, so no other node will join.

    Raises ConfigError where the run would take the CPU platform on a cluster of GPUs, and where a
    Ray of its own has too little. Ray names the kind of a GPU that it finds itself
    ("accelerator_type:H100"); "GPU" alone may be bookkeeping.
    """
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    kinds = sorted(
        {
            key.partition(":")[2]
            for found in resources
            for key in found
            if key.startswith("accelerator_type:")
        }
    )
    if platform == "cpu" and kinds:
        raise ConfigError(
            f"no CUDA device is visible on this machine, but Ray's nodes have {', '.join(kinds)}, and cluster.device is "
            f"{config.cluster.device}; use cluster.device=cuda"
        )
    needed = config.cluster.num_ranks
    gpus = sum(found.get("GPU", 0) for found in resources)
    bundles = sum(min(found.get("GPU", 0), found.get("CPU", 0)) for found in resources)
    if gpus < needed:
        shortage = f"the run needs {needed} GPUs and Ray has {gpus:g} now"
        remedy = f"use cluster.gpus_per_node={gpus:g}"
    elif bundles < needed:
        shortage = f"the run needs {needed} CPUs, one next to each GPU, and Ray has {bundles:g} there now"
        remedy = f"give the job more CPUs, or use cluster.gpus_per_node={bundles:g}"
    else:
        return []
    if own:
        raise ConfigError(f"{shortage}; {remedy}")
    minutes = config.cluster.placement_minutes
    return [
        f"{shortage}; it waits until the others join, at most {minutes:g} minutes (cluster.placement_minutes)"
    ]


@contextlib.contextmanager
def limited_placement(ray: ModuleType, config: R3Config) -> Iterator[None]:
    """Let `ready` of a placement group raise R3Error after cluster.placement_minutes, inside the
    block. Upstream has no limit (cli/train_ppo_ray.py:50, vllm_engine.py:251, launcher.py:252)."""
    from ray.util.placement_group import PlacementGroup

    ready, minutes = PlacementGroup.ready, config.cluster.placement_minutes

    def ready_in_time(group: PlacementGroup) -> object:
        reference = ready(group)
        done, _ = ray.wait([reference], timeout=minutes * 60)
        if done:
            return reference
        free = ray.available_resources()
        raise R3Error(
            f"Ray had no room for {group.bundle_count} GPUs with a CPU each within {minutes:g} minutes; {free.get('GPU', 0):g} GPUs "
            f"and {free.get('CPU', 0):g} CPUs are free now. End other jobs on this Ray, add nodes, or raise cluster.placement_minutes"
        )

    with patch.object(PlacementGroup, "ready", ready_in_time):
        yield
