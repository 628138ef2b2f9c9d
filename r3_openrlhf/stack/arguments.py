"""Our configuration -> the flags of `python -m openrlhf.cli.train_ppo_ray` (OpenRLHF 0.11.2).

The parser and the checks of the installed OpenRLHF judge the result (upstream_parser.py), so that a
renamed flag fails before anything starts.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.algorithms import DAPO_OVERLONG_FACTOR, DAPO_OVERLONG_SHARE
from r3_openrlhf.config.loading import flatten
from r3_openrlhf.config.words import Device, LossAggregation
from r3_openrlhf.machine import flash_attention
from r3_openrlhf.method.core.correction import Correction, CorrectionMethod
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.flags import (
    ALSO_SET,
    ALWAYS,
    MAY_BE_SET,
    REFUSED,
    SAME,
    check_flag,
    check_together,
    origin,
)
from r3_openrlhf.stack.work import work_of

CRITIC_RATE = 9  # learning rate of a critic's, in those of its policy


def platform_of(config: R3Config) -> str:
    """ "cuda" or "cpu". Raises ConfigError where cluster.device asks for CUDA and there is none.

    The head of a Ray cluster often has no GPU: with an address, cluster.device=cuda is believed
    here, and the nodes are looked at when Ray is there (ray_cluster.check_devices).
    """
    import torch

    if torch.cuda.is_available():
        return "cuda"
    wants_cuda = Device.checked("cluster.device", config.cluster.device) is Device.CUDA
    if wants_cuda and ray_address():
        return "cuda"
    if wants_cuda:
        raise ConfigError(
            "cluster.device is cuda, but no CUDA device is visible here; use experiment=quickstart on a machine without one"
        )
    return "cpu"


def ray_address() -> str | None:
    """Address of a running cluster; None: the run starts its own."""
    return os.environ.get("RAY_ADDRESS")


def openrlhf_arguments(
    config: R3Config,
    run: RunDirectory,
    *,
    model_dir: str | Path,
    platform: str,
    resume: bool = False,
    universal: bool = False,
) -> list[str]:
    """Return the whole command line after `python -m openrlhf.cli.train_ppo_ray`. Pure: no disk, no
    environment.

    platform: "cuda" or "cpu". resume: a checkpoint is there and is to be loaded; universal: one
    that was converted (other_ranks.py). Raises ConfigError when config.openrlhf repeats a flag that
    is set here."""
    flags = _own_flags(
        config, run, model_dir=model_dir, platform=platform, resume=resume, universal=universal
    )
    set_here = {*flags, *ALSO_SET, *_critic_flags(config, "")} - MAY_BE_SET
    given = given_flags(config)
    given.pop("train.agent_func_path", None)  # our executor loads it
    arguments: list[str] = []
    for name, value in flags.items():
        if not (name in MAY_BE_SET and name in given):
            arguments += _flag(name, value)
    for name, value in given.items():
        if name in set_here:
            raise ConfigError(f"openrlhf.{name} is set by R³ itself; {origin(name)}")
        check_flag(name, value, config)
        arguments += _flag(name, value)
    check_together(given, config, platform=platform)
    return arguments


def given_flags(config: R3Config) -> dict[str, Any]:
    """Return the flags of OpenRLHF that a configuration gives (openrlhf.FLAG), with their values."""
    return dict(_flat(config.openrlhf))


def own_flags() -> frozenset[str]:
    """Return the names of all flags that a run sets, with a critic or without."""
    config = R3Config(run_dir="run")
    config.model.path = config.data.path = ""
    flags = _own_flags(
        config,
        RunDirectory("run"),
        model_dir="",
        platform="cuda",
        resume=False,
        universal=False,
    )
    return frozenset({*flags, *_critic_flags(config, "")})


def _own_flags(
    config: R3Config,
    run: RunDirectory,
    *,
    model_dir: str | Path,
    platform: str,
    resume: bool,
    universal: bool,
) -> dict[str, Any]:
    if config.model.attn_implementation == "flash_attention_2" and flash_attention.is_missing():
        unpacked = replace(config.train, packing=False, dynamic_batch=False)
        config = replace(
            config, train=unpacked, model=replace(config.model, attn_implementation="sdpa")
        )
    rollout, train, cluster, values = (
        config.rollout,
        config.train,
        config.cluster,
        flatten(config),
    )
    cpu = platform == "cpu"
    # upstream packs whenever the batch is dynamic
    packing = train.packing or train.dynamic_batch
    algorithm = config.algorithm
    flags = {flag: values[key] for flag, key in SAME.items() if flag not in REFUSED}
    flags |= ALWAYS | {
        # where: everything shares the same GPUs
        "actor.num_gpus_per_node": config.policy_gpus_per_node,
        "ref.num_nodes": cluster.num_nodes,
        "ref.num_gpus_per_node": config.policy_gpus_per_node,
        "vllm.num_engines": config.num_engines,
        "vllm.enforce_eager": cpu,
        "vllm.enable_prefix_caching": not cpu,
        "vllm.sync_backend": "gloo" if cpu else "nccl",
        "vllm.enable_sleep": cluster.enable_sleep and not cpu,
        "ds.enable_sleep": cluster.enable_sleep and not cpu,
        # model
        "actor.model_name_or_path": str(model_dir),
        "ds.attn_implementation": "sdpa"
        if cpu and not packing
        else config.model.attn_implementation,
        "ds.packing_samples": packing,
        "data.prompt_dataset": str(run.data),
        "train.agent_func_path": str(work_of(config).executor),
        "rollout.max_tokens_per_gpu": rollout.max_tokens_per_gpu
        or (train.max_tokens_per_gpu if packing else None),
        "train.batch_size": config.train_batch_size,
        "actor.eps_clip_low_high": [train.eps_clip_low, train.eps_clip_high],
        "actor.loss_agg_mode": LossAggregation.checked(
            "train.loss_aggregation", train.loss_aggregation
        ),
        "algo.advantage.estimator": algorithm.estimator,
        "algo.kl.use_loss": train.kl_coef > 0,
        "algo.kl.estimator": "k3" if train.kl_coef > 0 else None,
        "algo.dynamic_filtering_enable": algorithm.filters_groups,
        **_correction_flags(train.correction.resolved),
        "reward.overlong_buffer_len": int(DAPO_OVERLONG_SHARE * rollout.max_new_tokens)
        if algorithm.overlong_penalty
        else None,
        "reward.overlong_penalty_factor": DAPO_OVERLONG_FACTOR
        if algorithm.overlong_penalty
        else None,
        "eval.dataset": None,  # R3Trainer has its own (config.held_out)
        # what is kept
        "ckpt.path": str(run.checkpoints),
        "ckpt.output_dir": str(run.final_model),
        "ckpt.load_enable": resume,
        "ds.use_universal_ckpt": universal,
        "logger.tensorboard_dir": str(run.tensorboard),
        "logger.wandb.run_name": run.path.name,
    }
    if config.logging.wandb_project:
        flags["logger.wandb.project"] = config.logging.wandb_project
        # Upstream logs to wandb when a key is given, and prefers the one of `wandb login` or
        # WANDB_API_KEY: a real key never belongs on a command line.
        flags["logger.wandb.key"] = "from_the_environment"
    if train.loss == "gspo":
        flags["actor.policy_loss_type"] = "gspo"
    if config.replay.enabled:
        flags["actor.dual_clip"] = config.replay.dual_clip
    if algorithm.has_critic:
        flags |= _critic_flags(config, str(model_dir))
    return {**flags, **algorithm.flags}


def _correction_flags(correction: Correction | None) -> dict[str, Any]:
    """OpenRLHF's words for train.correction, which its `ppo` and its engines read; values None: off."""
    level = mode = measure = band = None
    if correction is not None:
        level = "seq" if correction.method is CorrectionMethod.SEQUENCE else "token"
        mode = "clip" if correction.method is CorrectionMethod.TIS else "mask"
        measure, band = correction.measure, [correction.low, correction.high]
    return {
        "algo.advantage.is_correction_level": level,
        "algo.advantage.is_correction_mode": mode,
        "algo.advantage.is_correction_gating": measure,
        "algo.advantage.is_correction_threshold": band,
    }


def _critic_flags(config: R3Config, model_dir: str) -> dict[str, Any]:
    return {
        # rows are cut by the policy's ranks (trainer/ppo_utils/experience_maker.py:88)
        "critic.num_nodes": config.cluster.num_nodes,
        "critic.num_gpus_per_node": config.policy_gpus_per_node,
        # the policy's text: only then upstream begins with its own head (ray/ppo_critic.py:217)
        "critic.model_name_or_path": model_dir,
        # upstream's defaults are 9e-6 beside the policy's 1e-6; the same ratio for any policy rate
        "critic.adam.lr": float(f"{CRITIC_RATE * config.train.learning_rate:.6g}"),
        "critic.lr_scheduler": "constant_with_warmup",
        "critic.lr_warmup_ratio": 0.0,
    }


def _flag(name: str, value: object) -> list[str]:
    """Spell a flag. True: the bare switch. False or None: nothing. A list: several values."""
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else [value])]


def _flat(flags: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Both spellings work: {"actor.dual_clip": 3} and {"actor": {"dual_clip": 3}}."""
    for name, value in flags.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
