"""Runs `openrlhf.cli.train_ppo_ray` as its own main module, with R³'s classes instead of some of
its own.

Upstream's parser, checks and `train()` stay in charge. `train()` and `create_vllm_engines` look
these names up when they need them, so replacing them before the module runs is enough:

    openrlhf.trainer.ppo_trainer.PPOTrainer           (in train(), cli/train_ppo_ray.py:148;
                                                       async_enable: PPOTrainerAsync, :146)
    openrlhf.trainer.ray.ppo_actor.PolicyModelActor   (imported by cli/train_ppo_ray.py:14)
    openrlhf.trainer.ray.ppo_critic.CriticModelActor  (:15; algo=ppo)
    openrlhf.trainer.ray.vllm_engine.RolloutRayActor  (create_vllm_engines, vllm_engine.py:294)
    the rollout executor                              (--train.agent_func_path)"""

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
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import psutil

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.algorithms import MAKERS
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.config.words import Device
from r3_openrlhf.machine import allotted, every_process, flash_attention
from r3_openrlhf.machine.cpu import cpu_platform
from r3_openrlhf.machine.gpus import gpus_of_this_machine
from r3_openrlhf.machine.ray_start import of_this_machine
from r3_openrlhf.method.errors import ConfigError, DataError, R3Error, quoted
from r3_openrlhf.method.open_table import is_import_path, load_object
from r3_openrlhf.problems.files import hub_fault
from r3_openrlhf.problems.held_out import held_out_data
from r3_openrlhf.runs import checkpoint_record, lock
from r3_openrlhf.runs.directory import RunDirectory, write_whole
from r3_openrlhf.runs.first_page import FirstPage, add_to_page, algorithm_lines, num_steps
from r3_openrlhf.runs.kept_files import keep_functions
from r3_openrlhf.runs.lock import held
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.runs.models.locate import (
    is_built,
    keep_commit,
    locate_model,
    resolve_model,
    without_weights,
)
from r3_openrlhf.runs.models.routers import expert_bytes_of
from r3_openrlhf.runs.planning.history_forecast import history_warnings
from r3_openrlhf.runs.planning.shapes import published
from r3_openrlhf.runs.planning.verdict import check_split
from r3_openrlhf.runs.stop_request import GOES_ON, RunInterrupted, StopRequest
from r3_openrlhf.stack import other_ranks
from r3_openrlhf.stack.arguments import (
    given_flags,
    openrlhf_arguments,
    platform_of,
    ray_address,
)
from r3_openrlhf.stack.console import Console
from r3_openrlhf.stack.failures import lost_actor, memory_kills, r3_error
from r3_openrlhf.stack.imported import check_start
from r3_openrlhf.stack.phases import Phase, under_way
from r3_openrlhf.stack.ray_cluster import (
    check_devices,
    hidden_gpus,
    limited_placement,
    object_store_warning,
    ray_options,
    running_ray,
)
from r3_openrlhf.stack.start_checks import (
    check_checkpoint,
    check_context,
    check_places,
    gpu_warnings,
    host_memory_warning,
    memory_warning,
)
from r3_openrlhf.stack.trackers import check_tracker
from r3_openrlhf.stack.upstream_parser import check_arguments
from r3_openrlhf.stack.work import work_of

MODULE = "openrlhf.cli.train_ppo_ray"


def train(config: R3Config, *, verbose: bool = False, quiet: bool = False) -> RunDirectory:
    """Prepare the data, start Ray if none is given, train, and end every process.

    What the stack prints goes to train.log in the run directory; `verbose` shows it too, `quiet`
    shows nothing at all. Raises R3Error.
    """
    every_process.set_environment()
    with Console(verbose=verbose, quiet=quiet) as console, contextlib.ExitStack() as block:
        block.callback(gc.enable)
        gc.disable()  # until all is imported: it saves a fifth, imports make no garbage
        console.announce(Phase.CHECKING)
        run, killed_before = RunDirectory(config.run_dir), memory_kills()
        block.push(listen(run, console))
        platform = platform_of(config)
        warnings = check_places(run, platform=platform)
        if is_built(config.model.path) and not Path(locate_model(config.model.path)).is_dir():
            console.announce(
                Phase.UNPACKING if config.model.path == "smollm2" else Phase.TRAINING_MODEL
            )
        model = resolve_model(config.model.path, revision=config.model.revision)
        given = config  # which the run keeps: without packing it is the same run
        config, changed = check_context(config, model)
        warnings += changed
        warnings += gpu_warnings(config, platform=platform)
        if (
            config.model.attn_implementation == "flash_attention_2"
            and flash_attention.is_missing()
        ):
            warnings.append(flash_attention.SLOWER)
        for check in (memory_warning, host_memory_warning):
            warnings += filter(None, [check(config, model, platform=platform)])
        arguments = checked_arguments(config, run, model, platform=platform)
        with held(run):
            run.error.unlink(missing_ok=True)
            run.create(given)
            for sentence in keep_functions(run.path, config.reward.all_functions):
                console.say(f"Warning: {sentence}")
            StopRequest(run.stop_request).ask("")
            console.attach(run, first_phase=Phase.DATA)
            config = with_template_date(config, run)
            data, page = work_of(config).prepare(config, model, run)
            warnings += history_warnings(
                config,
                num_problems=data.num_problems,
                expert_bytes=expert_bytes_of(config, model),
            )
            page = with_machine(page, config, warnings, platform=platform)
            if config.keeps_history and (config.history.start or config.rollout.collect.share):
                tokenizer = load_tokenizer(
                    model, trusted=config.model.trust_remote_code, data=config.data
                )
                page = replace(page, imported=check_start(config, run, tokenizer))
            write_whole(run.first_page, json.dumps(page.as_dict(), ensure_ascii=False) + "\n")
            for line in page.lines():
                console.say(line)
            page.check()
            keep_commit(run.model_commit, model)
            console.expect(
                num_steps(config, data), max_tokens=config.train.max_generated_tokens
            )
            checkpoint_record.settle(run.checkpoints)
            if other_ranks.must_convert(config, run):
                console.announce(Phase.CONVERTING)
                other_ranks.convert(run)
            try:
                _run_upstream(config, arguments, platform, console)
            except Exception as error:
                found = r3_error(error, run, killed_before=killed_before)
                if not isinstance(found, RunInterrupted):
                    with contextlib.suppress(OSError):  # a full disk
                        traceback.print_exc()  # into train.log
                raise found from error
    return run


def listen(run: RunDirectory, console: Console) -> Callable[..., None]:
    """Let signals ask the run to end, until the result is called as `__exit__`: it raises their
    error in place of Ray's KeyboardInterrupt (ray/_raylet.pyx, `check_status`). In a job the agent
    passes on Slurm's signals, and Slurm ends late jobs: a second signal says nothing there."""

    def kill(sentence: str) -> None:
        # in a thread of its own: who holds the display's lock may be what does not end
        saying = threading.Thread(
            target=console.say, args=(f"{sentence}{GOES_ON}",), daemon=True
        )
        saying.start()
        saying.join(timeout=10.0)  # longer than a busy machine keeps it waiting
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


class Plan(NamedTuple):
    """A run of `train` that is not started."""

    platform: str
    arguments: list[str]  # OpenRLHF's
    notes: list[str]  # what a person should know in addition
    page: FirstPage | None  # None where the problems are not here


def plan(config: R3Config) -> Plan:
    """Make the plan of a run.

    Does every check of `train` that needs no weights. Of the hub, or of its cache, it takes the tokenizer and the
    problems; what is neither there nor here is a note. Writes nothing else that stays."""
    every_process.set_environment()
    # A plan may be made on a machine without GPUs for one that has them.
    platform = "cuda" if config.cluster.device == Device.CUDA else platform_of(config)
    run, located = RunDirectory(config.run_dir), locate_model(config.model.path)
    warnings, notes = check_places(run, platform=platform), list[str]()
    model, why = located if Path(located).is_dir() else None, "is not built yet"
    if located == config.model.path:  # a name on the hub
        try:
            model = without_weights(located, config.model.revision)
        except ConfigError as error:
            why = f"is not here ({error})"
    if model is not None:
        config, changed = check_context(config, model)
        warnings += changed
    elif (shape := published().get(config.model.path)) is not None:
        check_split(config, heads=shape.heads, kv_heads=shape.kv_heads)
    arguments = checked_arguments(config, run, located, platform=platform)
    if model is None:
        what = "the chat template, the prompts' length and the model's context"
        notes.append(
            f"Not checked: {what}, as the model {why}; prompts are shown without template."
        )
    fault = hub_fault(config.data.parts.values())
    if fault is not None:
        return Plan(
            platform,
            arguments,
            [
                *(f"Warning: {sentence}" for sentence in warnings),
                *notes,
                f"Not checked: the problems, which are on the hub: {fault}",
            ],
            None,
        )
    held_out, whole = held_out_data(config), config
    fault = hub_fault(held_out.parts.values()) if held_out is not None else None
    if fault is not None:  # the page of the problems that are here is worth reading
        notes.append(f"Not checked: the held-out problems, which are on the hub: {fault}")
        config = replace(config, held_out=replace(config.held_out, path=None))
    with tempfile.TemporaryDirectory(prefix="r3-plan-") as folder:
        scratch = RunDirectory(folder)
        scratch.data.parent.mkdir()
        if run.has_steps:  # it continues with the problems that it was started with
            for file in filter(Path.is_file, (run.data, run.held_out)):
                shutil.copy(file, scratch.data.parent)
        try:
            data, page = work_of(config).prepare(config, model, scratch)
            if config is not whole:
                page = replace(page, algorithm=algorithm_lines(whole))
        except DataError as error:
            raise DataError(str(error).replace(str(scratch.path), str(run.path))) from error
    warnings += history_warnings(
        config,
        num_problems=data.num_problems,
        expert_bytes=0 if model is None else expert_bytes_of(config, model),
    )
    page = with_machine(page, config, warnings, platform=platform)
    return Plan(platform, arguments, notes, page)


def with_machine(
    page: FirstPage, config: R3Config, warnings: list[str], *, platform: str
) -> FirstPage:
    """Return the page with the warnings of a start, and with what this machine or its job gives.

    A plan for GPUs that is made on a machine without any says nothing of that machine."""
    found = list(page.found)
    if platform == "cpu" or gpus_of_this_machine():
        found += [*allotted.cpu_notes(), *allotted.memory_notes()]
    if platform == "cpu":
        found.append(
            "engine: no prefix cache on CPUs, so each response computes its prompt again"
        )
    elif not ray_address():
        found += allotted.gpu_notes(config.cluster.num_ranks)
    findings = [*page.findings, *(Finding(sentence) for sentence in warnings)]
    return replace(page, found=found, findings=findings)


def checked_arguments(
    config: R3Config, run: RunDirectory, model: str, *, platform: str
) -> list[str]:
    """OpenRLHF's command line, after every check that reads and writes nothing of the run: the same
    for a plan and for a start. Raises R3Error."""
    work_of(config).check(config)
    check_maker(config)
    check_tracker(config)
    run.check(config)
    folder = checkpoint_record.newest(run.checkpoints)
    if resume := folder is not None:
        check_checkpoint(config, run, folder)
    universal = resume and other_ranks.must_convert(config, run)
    arguments = openrlhf_arguments(
        config, run, model_dir=model, platform=platform, resume=resume, universal=universal
    )
    check_arguments(arguments, off=given_flags(config))
    return arguments


def check_maker(config: R3Config) -> None:
    """Import the experience maker of a user's algorithm, as the trainer will. ConfigError: it is none."""
    path = config.algorithm.experience_maker
    if not is_import_path(config.algo) or path.startswith("r3_openrlhf."):
        return
    cpu_platform.install()  # without CUDA it could not import the stack
    from r3_openrlhf.stack.experience_maker import StockExperienceMaker

    key = f"algo is {quoted(config.algo)}, and its experience_maker"
    maker = load_object(key, path)
    if not (isinstance(maker, type) and issubclass(maker, StockExperienceMaker)):
        raise ConfigError(
            f"{key} is {quoted(path)}, which is no subclass of {MAKERS}:StockExperienceMaker"
        )


def with_template_date(config: R3Config, run: RunDirectory) -> R3Config:
    """Set the day of chat templates: as configured, else that of the first start, whose training
    file stays. A run that continues after midnight asks with the prompts that it began with."""
    if config.data.template_date is not None:
        return config
    began = date.fromtimestamp(run.data.stat().st_mtime) if run.data.is_file() else date.today()
    return replace(config, data=replace(config.data, template_date=began.isoformat()))


def _run_upstream(
    config: R3Config, arguments: list[str], platform: str, console: Console
) -> None:
    console.announce(Phase.LIBRARIES)
    if not ray_address():
        os.environ.update(of_this_machine())
        os.environ.update(hidden_gpus(config, platform))
    os.environ[every_process.MODEL_CODE] = str(int(config.model.trust_remote_code))
    (cpu_platform if platform == "cpu" else every_process).install()
    _replace_names(config)
    gc.enable()
    options = ray_options(config, platform)
    console.announce(Phase.RAY)
    with running_ray(options) as ray, patch.multiple(sys, argv=[MODULE, *arguments]):
        try:
            own = not ray_address()
            for sentence in check_devices(ray.nodes(), config, platform, own=own):
                console.say(f"Warning: {sentence}")
            on_disk = object_store_warning() if own else None
            if on_disk is not None:
                add_to_page(RunDirectory(config.run_dir), "found", [on_disk])
                console.say(f"Warning: {on_disk}")
            console.announce(Phase.ENGINE)  # upstream makes the engines first
            with limited_placement(ray, config):
                runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        except Exception as error:
            if not isinstance(error, R3Error) and (lost := lost_actor(ray)) is not None:
                raise lost from error
            raise
        finally:
            with contextlib.suppress(OSError):  # a full disk; what ended the run counts
                console.announce(Phase.STOPPING)


def _replace_names(config: R3Config) -> None:
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
    ppo_actor.PolicyModelActor = policy_actor.PolicyModelActor
