"""Runs `openrlhf.cli.train_ppo_ray` as its own main module, with R³'s classes instead of some of its own.

Upstream's parser, checks and `train()` stay in charge. `train()` and `create_vllm_engines` look these names up in
their home modules when they need them, so replacing them there before the module runs is enough:

    openrlhf.trainer.ppo_trainer.PPOTrainer           (imported inside train(), cli/train_ppo_ray.py:148; with
                                                       train.async_enable ppo_trainer_async.PPOTrainerAsync, :146)
    openrlhf.trainer.ray.ppo_actor.PolicyModelActor   (imported by cli/train_ppo_ray.py:14)
    openrlhf.trainer.ray.ppo_critic.CriticModelActor  (:15; algo=ppo)
    openrlhf.trainer.ray.vllm_engine.RolloutRayActor  (used by create_vllm_engines, vllm_engine.py:294)
    the rollout executor                              (--train.agent_func_path)
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psutil

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.words import Device
from r3_openrlhf.machine import every_process, shared_memory
from r3_openrlhf.machine.cpu import cpu_platform
from r3_openrlhf.machine.gpus import expandable_segments, gpus_of_this_machine, taken_memory
from r3_openrlhf.machine.ray_start import of_this_machine, patient_raylet, replaced
from r3_openrlhf.machine.ray_temporary import MAX_BYTES, REMEDY, bytes_of, private_directory, ray_temporary, sweep
from r3_openrlhf.method.errors import ConfigError, DataError, R3Error
from r3_openrlhf.problems.files import is_on_the_hub
from r3_openrlhf.problems.held_out import check_held_out_source, held_out_data, prepare_held_out
from r3_openrlhf.problems.training_file import PreparedData, check_source, prepare
from r3_openrlhf.runs import checkpoint_record, history_witness, lock
from r3_openrlhf.runs.build_locks import build_root, remove_stale
from r3_openrlhf.runs.directory import RunDirectory, write_whole
from r3_openrlhf.runs.first_page import FirstPage, num_steps, page_of_run, page_of_tasks
from r3_openrlhf.runs.function_files import keep_functions
from r3_openrlhf.runs.lock import held
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.runs.models.locate import BUILDERS, locate_model, resolve_model
from r3_openrlhf.runs.models.own_code import check_own_code
from r3_openrlhf.runs.planning.forecast import not_planned
from r3_openrlhf.runs.planning.hardware import DEFAULT, GPUS
from r3_openrlhf.runs.planning.history_coverage import history_warnings
from r3_openrlhf.runs.planning.shapes import known_shape, shape_of
from r3_openrlhf.runs.planning.verdict import check_split, start_check
from r3_openrlhf.runs.stop_request import DEADLINE, GOES_ON, SIGNALS, RunInterrupted, StopRequest, deaf_children
from r3_openrlhf.stack import other_ranks, safe_pickles
from r3_openrlhf.stack.agent_tasks import check_environment, prepare_tasks
from r3_openrlhf.stack.arguments import openrlhf_arguments, platform_of, ray_address
from r3_openrlhf.stack.console import Console
from r3_openrlhf.stack.environment import THREADS, environment_of
from r3_openrlhf.stack.failures import lost_actor, memory_kills, r3_error
from r3_openrlhf.stack.phases import Phase, under_way
from r3_openrlhf.stack.upstream_parser import check_arguments

MODULE = "openrlhf.cli.train_ppo_ray"
LEAVING_S = 10.0
# Of the user's environment, to Ray's workers on every node. The last two choose between two parts of vLLM
# (docs/first-gpu-run.md).
PASSED_ON = (
    DEADLINE,
    "OMP_NUM_THREADS",
    "TORCHINDUCTOR_CACHE_DIR",
    "VLLM_USE_RAY_V2_EXECUTOR_BACKEND",
    "VLLM_USE_V2_MODEL_RUNNER",
)


def train(config: R3Config, *, verbose: bool = False, quiet: bool = False) -> RunDirectory:
    """Prepare the data, start Ray if none is given, train, and end every process.

    What the stack prints goes to train.log in the run directory; `verbose` shows it too, `quiet` shows nothing at all.
    Raises R3Error.
    """
    every_process.set_environment()
    with Console(verbose=verbose, quiet=quiet) as console, contextlib.ExitStack() as block:
        block.callback(gc.enable)
        gc.disable()  # until everything is imported: a fifth of that time, as what an import makes stays
        console.announce(Phase.CHECKING)
        run, killed_before = RunDirectory(config.run_dir), memory_kills()
        block.push(listen(run, console))
        platform = platform_of(config)
        if config.model.path in BUILDERS and not Path(locate_model(config.model.path)).is_dir():
            console.announce(Phase.UNPACKING if config.model.path == "smollm2" else Phase.TRAINING_MODEL)
        model = resolve_model(config.model.path)
        check_context(config, model, platform=platform)
        warnings = [*gpu_warnings(config, platform=platform), memory_warning(config, model, platform=platform)]
        arguments = checked_arguments(config, run, model, platform=platform)
        with held(run):
            run.error.unlink(missing_ok=True)
            run.create(config)
            for sentence in keep_functions(run.path, config.reward.all_functions):
                console.say(f"Warning: {sentence}")
            for sentence in remove_stale(build_root()):
                console.say(f"Warning: {sentence}")
            StopRequest(run.stop_request).clear()
            console.attach(run, first_phase=Phase.DATA)
            config = with_template_date(config, run)
            data, page = prepare_data(config, model, run)
            write_whole(run.first_page, json.dumps(page.as_dict(), ensure_ascii=False) + "\n")
            for line in page.lines():
                console.say(line)
            page.check()
            for sentence in [*filter(None, warnings), *history_warnings(config, num_problems=data.num_problems)]:
                console.say(f"Warning: {sentence}")
            console.expect(
                num_steps(config, data),
                max_tokens=config.train.max_generated_tokens,
                examples=config.logging.examples,
            )
            if config.checkpoint.resume:
                checkpoint_record.settle(run.checkpoints)
            if config.checkpoint.resume and other_ranks.must_convert(config, run):
                console.announce(Phase.CONVERTING)
                other_ranks.convert(run)
            try:
                _run_upstream(config, arguments, platform, console, short_batches=has_short_batches(config, data))
            except Exception as error:
                found = r3_error(error, run, killed_before=killed_before)
                if not isinstance(found, RunInterrupted):
                    with contextlib.suppress(OSError):  # a full disk
                        traceback.print_exc()  # into train.log
                raise found from error
    return run


def listen(run: RunDirectory, console: Console) -> Callable[..., None]:
    """Signals ask the run to end, until what this returns is called as an `__exit__`: it raises what a signal raised when Ray has put a
    KeyboardInterrupt of its own in its place (ray/_raylet.pyx, `check_status`). In a job the agent passes on what Slurm sends to the run,
    too, and Slurm itself ends a job that takes too long: a second signal says nothing there."""

    def kill(sentence: str) -> None:
        # in a thread of its own: who holds the display's lock may be what does not end
        saying = threading.Thread(target=console.say, args=(f"{sentence}{GOES_ON}",), daemon=True)
        saying.start()
        saying.join(timeout=1.0)
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(128 + signal.SIGINT)

    request = StopRequest(run.stop_request)
    restore = request.on_signals(
        under_way=lambda: under_way(run) if console.run is not None else None,
        say=console.say,
        ends_at_once=not os.environ.get(lock.TOKEN),
        kill=kill,
    )

    def leave(_kind: object, error: BaseException | None, _trace: object) -> None:
        restore()
        if isinstance(error, KeyboardInterrupt) and request.stopped not in (None, error):
            raise request.stopped from error

    return leave


def check_checkpoint(config: R3Config, run: RunDirectory, folder: Path) -> None:
    """Check that the run may continue from this checkpoint, with its metrics and history, before anything starts. The trainer checks again.
    R3Error."""
    if config.algorithm.has_critic and not (folder.parent.with_name(checkpoint_record.CRITIC) / folder.name).is_dir():
        raise ConfigError(
            f"the checkpoint {folder} has no critic with it; restore {checkpoint_record.CRITIC} from a copy, or choose another run_dir"
        )
    record = checkpoint_record.check(folder, accept_foreign=config.checkpoint.accept_foreign)
    step = int(folder.name.removeprefix("global_step"))
    if all(line["step"] != step for line in run.read_metrics()):
        raise ConfigError(
            f"{run.metrics} has no line of step {step}, of which there is a checkpoint; restore it from a copy, or choose another "
            "run_dir"
        )
    if config.keeps_history and not config.checkpoint.accept_lost_history:
        history_witness.check_checkpoint(
            run.history, run.checkpoints, step=step, record=record.history if record else None
        )


class Plan(NamedTuple):
    """What `train` would do."""

    platform: str
    arguments: list[str]  # OpenRLHF's
    notes: list[str]  # what a person should know in addition
    page: FirstPage | None  # None where model or problems are not here


def plan(config: R3Config) -> Plan:
    """What `train` would do.

    Every check of `train` that needs neither the hub nor a model that is yet to be built. Writes nothing that stays.
    """
    every_process.set_environment()
    # A plan may be made on a machine without GPUs for one that has them.
    platform = "cuda" if config.cluster.device == Device.CUDA else platform_of(config)
    run, model = RunDirectory(config.run_dir), locate_model(config.model.path)
    is_here = (Path(model) / "config.json").is_file()  # no name on the hub, and built already
    if is_here:
        check_context(config, model, platform=platform)
    arguments = checked_arguments(config, run, model, platform=platform)
    if not is_here:
        if (shape := known_shape(config.model.path)) is not None:
            check_split(config, heads=shape.heads, kv_heads=shape.kv_heads)
        note = "Not checked: the prompts' length and the model's context, as the model is not here."
        return Plan(platform, arguments, [note], None)
    parts = [part for data in (config.data, held_out_data(config)) if data is not None for part in data.parts.values()]
    if any(is_on_the_hub(part.path) for part in parts):
        return Plan(platform, arguments, ["Not checked: the problems, as they are on the hub."], None)
    with tempfile.TemporaryDirectory(prefix="r3-plan-") as folder:
        scratch = RunDirectory(folder)
        scratch.data.parent.mkdir()
        if run.has_steps:  # it continues with the problems that it was started with
            for file in filter(Path.is_file, (run.data, run.held_out)):
                shutil.copy(file, scratch.data.parent)
        try:
            data, page = prepare_data(config, model, scratch)
        except DataError as error:
            raise DataError(str(error).replace(str(scratch.path), str(run.path))) from error
    warnings = history_warnings(config, num_problems=data.num_problems)
    return Plan(platform, arguments, [f"Warning: {sentence}" for sentence in warnings], page)


def checked_arguments(config: R3Config, run: RunDirectory, model: str, *, platform: str) -> list[str]:
    """OpenRLHF's command line, after every check that reads and writes nothing of the run: the same for a plan and for
    a start. Raises R3Error."""
    if config.is_agentic:
        check_environment(config)
    else:
        check_source(config.data)
        check_held_out_source(config)
    run.check(config)
    folder = checkpoint_record.newest(run.checkpoints) if config.checkpoint.resume else None
    if resume := folder is not None:
        check_checkpoint(config, run, folder)
    universal = resume and other_ranks.must_convert(config, run)
    arguments = openrlhf_arguments(config, run, model_dir=model, platform=platform, resume=resume, universal=universal)
    check_arguments(arguments)
    return arguments


def check_context(config: R3Config, model: str, *, platform: str) -> None:
    """ConfigError: data.max_len is more than the positions of the model, or its layers do not do what the settings ask of
    them. model: a directory, or a name on the hub."""
    from transformers import AutoConfig

    check_own_code(config.model, model)
    if config.critic.path is not None:
        check_own_code(config.model, config.critic.path, setting=f"critic.path {config.critic.path}")
    found = AutoConfig.from_pretrained(model, trust_remote_code=config.model.trust_remote_code)
    longest = getattr(found, "max_position_embeddings", None)
    if longest is not None and config.data.max_len > longest:
        raise ConfigError(
            f"data.max_len is {config.data.max_len}, but model.path {config.model.path} has {longest} positions; "
            f"use data.max_len={longest} or less"
        )
    heads = getattr(found, "num_attention_heads", None)
    if heads is not None:
        check_split(config, heads=heads, kv_heads=getattr(found, "num_key_value_heads", None) or heads)
    # runs/models/actor.py:192: what tells upstream a model with experts; of another one the first update finds no loss to add
    if "output_router_logits" not in found.to_dict():
        for name in ("actor.aux_loss_coef", "ds.experts_implementation"):
            if value := config.flag(name):
                raise ConfigError(
                    f"openrlhf.{name} is {value}, but model.path {config.model.path} has no experts; leave it out"
                )
    check_layers(config, found, platform=platform)


def check_layers(config: R3Config, model_config: Any, *, platform: str) -> None:
    """ConfigError: a kind of model with which the installed OpenRLHF, transformers and vLLM would compute something else, silently.
    model_config: its configuration, as transformers loads it."""
    text = model_config.get_text_config()
    if platform == "cuda" and getattr(text, "num_experts_per_tok", None):
        raise ConfigError(
            f"model.path {config.model.path} has experts, whose weights vLLM 0.29 may lay out anew when it loads them: those of a "
            "later sync would be read wrongly (https://github.com/vllm-project/vllm/issues/42821); use a model without experts"
        )
    # stack/chunked_actor.py, runs/models/actor.py:246: rows are told apart by their positions alone
    reason = "has positions of three dimensions" if hasattr(model_config, "vision_config") else None
    for kind in getattr(text, "layer_types", None) or ():
        if kind == "linear_attention" or not kind.endswith("_attention"):
            reason = f"has layers ({kind}) that carry a state from one token to the next"
    if config.train.packing and reason is not None:
        raise ConfigError(
            f"train.packing is true, but model.path {config.model.path} {reason}, and a packed row would see the one before it; use "
            "train.packing=false train.dynamic_batch=false"
        )


def gpu_warnings(config: R3Config, *, platform: str) -> list[str]:
    """Sentences about memory of this machine's GPUs that other programs have. ConfigError: an engine could not start, or weights
    could not reach it. Where Ray runs already, nothing is known of its nodes' GPUs (policy_actor.py asks for the latter there)."""
    if platform != "cuda":
        return []
    if not config.is_async and (why := expandable_segments()) is not None:
        raise ConfigError(why)
    if ray_address():
        return []
    # of more GPUs than the run needs Ray takes the first ones
    gpus = gpus_of_this_machine()[: config.cluster.num_ranks]
    taken = taken_memory(gpus, share=config.cluster.vllm_gpu_memory_utilization)
    if any(refuses for _, refuses in taken):
        raise ConfigError("; ".join(sentence for sentence, refuses in taken if refuses))
    return [sentence for sentence, _ in taken]


def memory_warning(config: R3Config, model: str, *, platform: str) -> str | None:
    """What `r3 plan` says of the GPU that is here: a sentence, or None where the run fits or nothing is known.

    ConfigError where it cannot fit. The driver may be on a machine without a GPU; nothing is checked there.
    """
    import torch

    if platform != "cuda" or not torch.cuda.is_available():
        return None
    seen = torch.cuda.get_device_properties(0)
    gpu = replace(GPUS[DEFAULT], name=seen.name, memory_bytes=seen.total_memory)
    try:
        shape = shape_of(model)
    except ConfigError as error:
        return f"memory was not checked: {error}"
    if (setting := not_planned(config)) is not None:
        return f"memory was not checked: the plan does not know what {setting} takes"
    return start_check(config, shape, gpu)


def prepare_data(config: R3Config, model: str, run: RunDirectory) -> tuple[PreparedData, FirstPage]:
    """Write the training file of this run, and its held-out problems if it has any; and what a person should see of them.
    R3Error: they are of no use."""
    if config.is_agentic:
        data = prepare_tasks(config, run)
        return data, page_of_tasks(config, model, data)
    tokenizer = load_tokenizer(model, trusted=config.model.trust_remote_code)
    data = prepare(config, tokenizer, run.data)
    if config.held_out.path is not None:
        prepare_held_out(config, tokenizer, run.data, run.held_out)
    return data, page_of_run(config, tokenizer, model, data)


def with_template_date(config: R3Config, run: RunDirectory) -> R3Config:
    """The configuration with the day that chat templates write: as it says, else that of the run's first start, whose training
    file stays as it is. A run that continues after midnight asks with the prompts that it began with."""
    if config.data.template_date is not None:
        return config
    began = date.fromtimestamp(run.data.stat().st_mtime) if run.data.is_file() else date.today()
    return replace(config, data=replace(config.data, template_date=began.isoformat()))


def has_short_batches(config: R3Config, data: PreparedData) -> bool:
    """True if an epoch may end with fewer groups than a batch has."""
    varies = config.filters_groups or config.exploration.rrl.ratio > 0  # states take the places of some problems
    return varies or data.num_problems % config.rollout.batch_size > 0


def _run_upstream(
    config: R3Config,
    arguments: list[str],
    platform: str,
    console: Console,
    *,
    short_batches: bool,
) -> None:
    console.announce(Phase.LIBRARIES)
    if not ray_address():
        os.environ.update(of_this_machine())
        os.environ.update(hidden_gpus(config, platform))
    if platform == "cpu":
        cpu_platform.install()
    _replace_names(config, short_batches=short_batches)
    gc.enable()
    options = ray_options(config, platform)
    console.announce(Phase.RAY)
    with running_ray(options) as ray:
        argv = sys.argv
        try:
            for sentence in check_devices(ray.nodes(), config, platform):
                console.say(f"Warning: {sentence}")
            console.announce(Phase.ENGINE)  # first of all upstream makes the engines; the trainer waits for them
            sys.argv = [MODULE, *arguments]
            runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        except Exception as error:
            if not isinstance(error, R3Error) and (lost := lost_actor(ray)) is not None:
                raise lost from error
            raise
        finally:
            sys.argv = argv
            with contextlib.suppress(OSError):  # a full disk; what ended the run is the true sentence
                console.announce(Phase.STOPPING)


@contextlib.contextmanager
def running_ray(options: dict) -> Iterator[ModuleType]:
    """`ray.init(**options)` for the time of the block. A Ray of this run's own has its files in a directory that no one else can
    enter, and every call needs a token (`of_this_machine` is in the environment). R3Error: the token counts for nothing."""
    import ray
    from ray._private.ray_constants import DEFAULT_DASHBOARD_AGENT_LISTEN_PORT

    with contextlib.ExitStack() as block:
        if options.get("address") == "local":
            if ray._raylet.get_authentication_mode() != ray._raylet.AuthenticationMode.TOKEN:
                raise R3Error("Ray was imported before the run could ask for a token; start it with `r3 train`")
            sweep(ray_temporary())
            # those of the engine's process, which end with Ray's worker before Python's resource tracker can remove them
            block.callback(shared_memory.sweep, names=shared_memory.SEMAPHORES)
            options = options | {"_temp_dir": str(block.enter_context(private_directory(ray_temporary())))}
        heard = {number: signal.getsignal(number) for number in SIGNALS}

        def hear(_handler: object = None) -> None:
            """Again as before: Ray's handlers, one of them in C++, would end the run in the middle of a step."""
            for number, handler in heard.items():
                signal.signal(number, handler)

        with (
            deaf_children(),
            patient_raylet(common_port=DEFAULT_DASHBOARD_AGENT_LISTEN_PORT),
            replaced(ray._private.utils, set_sigterm_handler=hear),
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
            shut_down(ray, patience_s=patience_s)


def shut_down(ray: ModuleType, *, patience_s: float = LEAVING_S) -> None:
    """`ray.shutdown()`, which waits for no one, and the end of the raylet's workers and of what they have started: by
    themselves for `patience_s` seconds."""
    raylets = [child for child in psutil.Process().children() if child.name() == "raylet"]
    family = [process for raylet in raylets for process in (raylet, *raylet.children(recursive=True))]
    ray.shutdown()
    _, alive = psutil.wait_procs(family, timeout=patience_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=LEAVING_S)


def hidden_gpus(config: R3Config, platform: str) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES for Ray where it hides all GPUs: Ray counts its words, and on CPUs a rank takes the place of one
    (ray/_private/resource_and_label_spec.py: "Attempting to start raylet with 1 GPU"). No device has the number -1."""
    if platform != "cpu" or "CUDA_VISIBLE_DEVICES" not in os.environ:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(["-1"] * config.cluster.num_ranks)}


def ray_options(config: R3Config, platform: str) -> dict:
    """Arguments of ray.init: a cluster that is there (RAY_ADDRESS), else one for this run."""
    environment = {**every_process.ENVIRONMENT, **environment_of(config, platform)}
    environment |= {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    # as cli/train_ppo_ray.py:29, which finds Ray running and does not set it. What came through Ray is read-only then
    environment["RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"] = os.environ.get("RAY_ENABLE_ZERO_COPY_TORCH_TENSORS", "1")
    environment |= safe_pickles.ENVIRONMENT
    hook = cpu_platform if platform == "cpu" else every_process
    runtime: dict = {"env_vars": environment, "worker_process_setup_hook": f"{hook.__name__}.install"}
    address = ray_address()
    options: dict = {"runtime_env": runtime}
    if address:
        options["address"] = address
    elif config.cluster.num_nodes > 1:
        raise ConfigError(
            f"cluster.num_nodes is {config.cluster.num_nodes}, but no Ray cluster is given; `r3 submit slurm` starts one on "
            "the nodes of a job, or set RAY_ADDRESS to one that is there"
        )
    elif bytes_of(temporary := ray_temporary()) > MAX_BYTES:
        raise ConfigError(
            f"the directory for temporary files, {temporary}, has a path of {bytes_of(temporary)} bytes, and Ray's sockets in it "
            f"leave room for {MAX_BYTES}; {REMEDY}"
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
            threads = str(max(1, len(os.sched_getaffinity(0)) // ranks))  # not cpu_count: a job may have fewer cores
        environment |= cpu_platform.ENVIRONMENT | environment
        environment |= {"OMP_NUM_THREADS": threads, "VLLM_LOGGING_LEVEL": "WARNING"}
        # vllm/platforms/cpu.py:271 puts the engine's worker into one more process, so that OMP can be set for it. It is
        # set above, so that process, which would import everything once more, is not needed
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if not address:  # GPUs are bookkeeping here: upstream asks for one per rank
            options |= {"num_gpus": ranks, "num_cpus": ranks + 4, "object_store_memory": 500 * 2**20}
    else:
        if "OMP_NUM_THREADS" not in environment:
            environment[THREADS] = str(config.policy_gpus_per_node)
        environment["NCCL_DEBUG"] = os.environ.get("NCCL_DEBUG", "WARN")  # as cli/train_ppo_ray.py:26
    return options


def check_devices(nodes: list[dict], config: R3Config, platform: str) -> list[str]:
    """What a person should know of the GPUs of Ray's nodes (`ray.nodes()`).

    Raises ConfigError where the run would take the CPU platform on a cluster of GPUs. Ray names the kind of a GPU that it finds
    itself ("accelerator_type:H100"); "GPU" alone may be bookkeeping.
    """
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    kinds = sorted(
        {key.partition(":")[2] for found in resources for key in found if key.startswith("accelerator_type:")}
    )
    if platform == "cpu" and kinds:
        raise ConfigError(
            f"no CUDA device is visible on this machine, but Ray's nodes have {', '.join(kinds)}, and cluster.device is "
            f"{config.cluster.device}; use cluster.device=cuda"
        )
    gpus = sum(found.get("GPU", 0) for found in resources)
    if platform == "cuda" and gpus < config.cluster.num_ranks:
        return [
            f"the run needs {config.cluster.num_ranks} GPUs and Ray has {gpus:g} now; it waits until the others join"
        ]
    return []


def _replace_names(config: R3Config, *, short_batches: bool) -> None:
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ray import ppo_actor, ppo_critic, vllm_engine

    from r3_openrlhf.stack import policy_actor, rollout_engine, trainer

    ppo_trainer.PPOTrainer = trainer.PPOTrainer
    if config.is_async:
        from openrlhf.trainer import ppo_trainer_async

        from r3_openrlhf.stack import async_trainer

        ppo_trainer_async.PPOTrainerAsync = async_trainer.PPOTrainerAsync
    if config.algorithm.has_critic:
        from r3_openrlhf.stack import critic_actor

        ppo_critic.CriticModelActor = critic_actor.CriticModelActor
    vllm_engine.RolloutRayActor = rollout_engine.RolloutRayActor
    # stock algorithms keep the stock update, except where it loses gradients (policy_update.R3ActorTrainer), and where
    # later passes have a learning rate of their own, which upstream does not know
    ours = config.algorithm.own_advantages or config.train.dynamic_batch or short_batches
    ppo_actor.PolicyModelActor = policy_actor.PolicyModelActor if ours else policy_actor.StockPolicyModelActor
