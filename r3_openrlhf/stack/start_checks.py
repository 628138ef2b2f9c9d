"""Check checkpoint, model and GPUs before anything is started."""

from dataclasses import replace
from pathlib import Path

from r3_openrlhf.config import R3Config
from r3_openrlhf.machine import memory, places
from r3_openrlhf.machine.gpus import expandable_segments, gpus_of_this_machine, taken_memory
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.history import witness
from r3_openrlhf.runs import checkpoint_record
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.models.checks import check_own_code, packing_fault, without_packing
from r3_openrlhf.runs.models.model_config import read_config
from r3_openrlhf.runs.models.routers import check_routing
from r3_openrlhf.runs.planning.forecast import not_planned
from r3_openrlhf.runs.planning.hardware import DEFAULT, GPUS
from r3_openrlhf.runs.planning.shapes import shape_of
from r3_openrlhf.runs.planning.verdict import check_split, host_check, start_check
from r3_openrlhf.stack.arguments import ray_address


def check_places(run: RunDirectory, *, platform: str) -> list[str]:
    """Sentences about places that are small. ConfigError: one that the run or its own Ray writes to
    cannot be used. Nothing is known of the nodes of a running Ray."""
    fault = places.fault_of_run_directory(run.path) or (
        None if ray_address() else places.fault_of_temporary()
    )
    if fault is not None:
        raise ConfigError(fault)
    if ray_address():
        return []
    state, least, remedy = places.shared_memory(platform)
    return (
        [f"{places.SHARED_MEMORY}: {state}, and the run needs {least}; {remedy}"]
        if remedy
        else []
    )


def check_checkpoint(config: R3Config, run: RunDirectory, folder: Path) -> None:
    """Check that the run may continue from this checkpoint, with its metrics and history, before
    anything starts. R3Error."""
    if (
        config.algorithm.has_critic
        and not (folder.parent.with_name(checkpoint_record.CRITIC) / folder.name).is_dir()
    ):
        raise ConfigError(
            f"the checkpoint {folder} has no critic with it; restore {checkpoint_record.CRITIC} from a copy, or choose another run_dir"
        )
    record = checkpoint_record.check(folder, force=config.checkpoint.force)
    step = int(folder.name.removeprefix("global_step"))
    if step and all(line["step"] != step for line in run.read_metrics()):
        raise ConfigError(
            f"{run.metrics} has no line of step {step}, of which there is a checkpoint; restore it from a copy, or choose another "
            "run_dir"
        )
    if config.keeps_history and not config.checkpoint.force:
        witness.check_checkpoint(run.history, record.history if record else None, step=step)


def check_context(config: R3Config, model: str) -> tuple[R3Config, list[str]]:
    """Return the configuration without packing where the model needs that, and a sentence about it.

    ConfigError: data.max_len is more than the positions of the model, or its layers do not do
    what the settings ask of them. model: a directory, or a name on the hub."""
    check_own_code(config.model, model)
    if (critic := config.flag("critic.model_name_or_path")) is not None:
        check_own_code(
            config.model, critic, setting=f"openrlhf.critic.model_name_or_path {critic}"
        )
    found = read_config(model, trusted=config.model.trust_remote_code)
    longest = getattr(found, "max_position_embeddings", None)
    if longest is not None and config.data.max_len > longest:
        raise ConfigError(
            f"data.max_len is {config.data.max_len}, but model.path {config.model.path} has {longest} positions; "
            f"use data.max_len={longest} or less"
        )
    if longest is not None and config.distill.enabled and config.longest_taught_row > longest:
        raise ConfigError(
            f"distill.coef is {config.distill.coef}: a teacher's prompt with a response may have "
            f"{config.longest_taught_row} tokens, but model.path {config.model.path} has {longest} positions; use a "
            "smaller distill.max_success_tokens or distill.max_prompt_tokens"
        )
    heads = getattr(found, "num_attention_heads", None)
    if heads is not None:
        check_split(
            config, heads=heads, kv_heads=getattr(found, "num_key_value_heads", None) or heads
        )
    # models/actor.py:192: marks a model with experts; the update fails at others' missing loss
    if "output_router_logits" not in found.to_dict():
        for name in ("actor.aux_loss_coef", "ds.experts_implementation"):
            if value := config.flag(name):
                raise ConfigError(
                    f"openrlhf.{name} is {value}, but model.path {config.model.path} has no experts; leave it out"
                )
    check_routing(config, found)
    return without_packing(config, packing_fault(found))


def gpu_warnings(config: R3Config, *, platform: str) -> list[str]:
    """Sentences about GPU memory that other programs have. ConfigError: an engine could not start,
    or get weights. Of a running Ray's nodes nothing is known (policy_actor.py asks for these)."""
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
    """Compare the plan with the GPU here: a sentence, or None where it fits or is unknown.

    ConfigError where it cannot fit. A driver's machine without a GPU is not checked."""
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


def host_memory_warning(config: R3Config, model: str, *, platform: str) -> str | None:
    """Compare the plan's host memory with that of this machine or job: a sentence, or None where it fits
    or is unknown (memory_warning says why)."""
    if platform != "cuda" or not_planned(config) is not None or not gpus_of_this_machine():
        return None
    try:
        shape = shape_of(model)
    except ConfigError:
        return None
    return host_check(config, shape, GPUS[DEFAULT], memory.total_memory())
