"""Decide for every flag of the installed OpenRLHF that is given as `openrlhf.FLAG=VALUE`.

    python tools/openrlhf_flags.py        prints docs/openrlhf-flags.md

A flag is set from our configuration, passed through to OpenRLHF, whose parser and checks judge its
value, or refused with a reason: it would be ignored, or break the run later. A test compares this
table with the installed parser."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.algorithms import ALGORITHMS
from r3_openrlhf.method.errors import ConfigError

_GRADERS = "rewards come from graders (reward.*), not from a reward model"
_OWN_DATA = "R³ writes the final prompts itself; use the keys of data"
_OWN_EVALUATION = "R³ evaluates held-out problems itself; use the keys of held_out"
_TEXT_ONLY = "R³ trains on text only"
# utils/deepspeed/deepspeed.py:342-358 says both in warnings
_MUON = "DeepSpeed clips Muon's update instead of the gradient, so actor.max_norm would shrink each update to almost nothing"
_ADAPTIVE_KL = "checkpoints do not have an adaptive coefficient, so a resumed run would start again with the first one"

# Conditional or with another flag: openrlhf_arguments sets them, too.
# Flags that have a default of ours and no key: openrlhf.FLAG=VALUE takes its place.
MAY_BE_SET = frozenset({
    "vllm.enforce_eager", "vllm.enable_prefix_caching", "vllm.sync_backend",
    "actor.lr_scheduler", "actor.lr_warmup_ratio", "algo.kl.use_loss", "algo.kl.estimator",
    "actor.dual_clip", "critic.adam.lr", "critic.lr_scheduler", "critic.lr_warmup_ratio",
    "critic.model_name_or_path",
})  # fmt: skip
ALSO_SET = ("actor.eps_clip", "logger.wandb.key", "logger.wandb.project")

REFUSED: dict[str, str] = {
    "train.colocate_actor_ref": "all models share the same GPUs already",
    "train.colocate_critic_reward": "all models share the same GPUs already",
    "train.partial_rollout_enable": "the weights of a response's first token would be unknown; use only train.async_enable",
    "rollout.vllm_generate_batch_size": "a step samples what it trains; use rollout.batch_size",
    "reward.num_nodes": _GRADERS,
    "reward.num_gpus_per_node": _GRADERS,
    "reward.model_name_or_path": _GRADERS,
    "reward.remote_url": "use reward.urls",
    "reward.offload": _GRADERS,
    "reward.normalize_enable": _GRADERS,
    "ds.value_head_prefix": _GRADERS,
    "eval.split": _OWN_EVALUATION,
    "eval.temperature": _OWN_EVALUATION,
    "eval.n_samples_per_prompt": _OWN_EVALUATION,
    "ckpt.best_metric_key": "it looks at OpenRLHF's own evaluation, which is off; evaluations.jsonl says which step was best",
    "ckpt.disable_ds": "a run without DeepSpeed checkpoints cannot be resumed; to save only the final model, use checkpoint.save_steps=-1",
    "local_rank": "it belongs to a launcher that R³ does not use",
    "ds.load_in_4bit": "the weight sync would send quantised weights, which vLLM does not expect",
    "data.prompt_probs": _OWN_DATA,
    "data.prompt_split": _OWN_DATA,
    "data.max_samples": "it would cut the data without R³ knowing; use data.max_samples of the configuration",
    "data.input_template": _OWN_DATA,
    "data.apply_chat_template": "the template would be applied twice; use data.chat_template",
    "data.image_key": _TEXT_ONLY,
    "data.max_images_per_prompt": _TEXT_ONLY,
    "actor.freeze_visual_encoder": _TEXT_ONLY,
    "use_ms": "the model is looked up before OpenRLHF starts; give model.path a directory",
    "algo.kl.target": _ADAPTIVE_KL,
    "algo.kl.horizon": _ADAPTIVE_KL,
    "actor.muon.lr": _MUON,
    "actor.muon.momentum": _MUON,
    "actor.muon.ns_steps": _MUON,
    "actor.muon.nesterov": _MUON,
    "actor.muon.no_nesterov": _MUON,
    "critic.muon.lr": _MUON,
    "critic.muon.momentum": _MUON,
    "critic.muon.ns_steps": _MUON,
    "critic.muon.nesterov": _MUON,
    "critic.muon.no_nesterov": _MUON,
    "vllm.sync_with_ray": "weights go by CUDA IPC if engines share the policy's GPUs, otherwise as vllm.sync_backend says",
}
REFUSED_WITH_R3: dict[str, str] = {
    "reward.stop_properly_penalty_coef": "eq. 3 takes the graders' rewards; ranking.* and reward.length_reward_max_tokens say what length costs",
    "algo.advantage.no_std_norm": "advantages come from eq. 3; use the keys of advantage",
    "algo.dynamic_filtering_range": "nothing is filtered",
}
PASSED = (
    "actor.entropy_coef",
    "algo.advantage.gamma",
    "algo.advantage.lambd",
    "algo.advantage.is_correction_level",
    "algo.advantage.is_correction_mode",
    "algo.advantage.is_correction_gating",
    "algo.advantage.is_correction_threshold",
    "reward.clip_range",
    "algo.kl.unbiased_gradient",
    "logger.logging_steps",
    "logger.wandb.org",
    "logger.wandb.group",
    "ckpt.max_mem",
    "ds.deepcompile",
    "ds.param_dtype",
    "ds.zpg",
    "ds.experts_implementation",
    "ds.use_liger_kernel",
    "ds.grad_accum_dtype",
    "ds.overlap_comm",
    "ds.tensor_parallel_size",
    "ds.ring_attn_size",
    "ds.ring_attn_head_stride",
    "actor.gradient_checkpointing_reentrant",
    "actor.policy_loss_type",
    "actor.aux_loss_coef",
    "actor.optim",
    "actor.adam.betas",
    "actor.adam.eps",
    "actor.adam.weight_decay",
    "actor.min_lr_ratio",
    "actor.max_norm",
    "critic.freezing_steps",
    "critic.max_norm",
    "critic.value_clip",
    "critic.optim",
    "critic.adam.betas",
    "critic.adam.eps",
    "critic.adam.weight_decay",
    "critic.min_lr_ratio",
    "critic.save_value_network",
    "data.disable_fast_tokenizer",
    "data.dataloader_num_workers",
    "ref.offload",
    "train.enable_ema",
    "train.ema_beta",
    "train.async_enable",
    "train.async_queue_size",
    "ds.lora.rank",
    "ds.lora.alpha",
    "ds.lora.target_modules",
    "ds.lora.dropout",
)
# Refused for some of their values: (the values that pass, why not the others)
VALUES: dict[str, tuple[tuple[str, ...], str]] = {
    "ds.param_dtype": (
        ("bf16",),
        "the engines compute in bfloat16 (trainer/ray/vllm_engine.py:245) and refuse other weights",
    ),
    "actor.optim": (("adam",), _MUON),
    "critic.optim": (("adam",), _MUON),
    "ds.grad_accum_dtype": (
        ("fp32", "float32", "bf16", "bfloat16"),
        "gradients of bfloat16 weights are summed in fp32 or bf16",
    ),
}
REMARKS = {
    "train.enable_ema": "refused without train.dynamic_batch",
    "train.async_enable": "the engines then have half of the GPUs",
    "ds.lora.rank": "engines and saved models get merged weights",
    "actor.policy_loss_type": "gspo: refused with train.loss_aggregation=token-mean",
    "actor.aux_loss_coef": "refused for a model without experts",
    "ds.experts_implementation": "refused for a model without experts",
}


class Need(NamedTuple):
    """A setting without which a flag does nothing."""

    what: str  # as a user would set it
    is_met: Callable[[R3Config, dict[str, Any]], bool]  # of the configuration and all further flags


def _corrects(config: R3Config, given: dict[str, Any]) -> bool:
    """models/loss.py:239: with gspo the level alone counts."""
    is_on = given.get("algo.advantage.is_correction_level", "off") != "off"
    return is_on and config.flag("actor.policy_loss_type") != "gspo"


_CORRECTION = Need("openrlhf.algo.advantage.is_correction_level, and the policy loss ppo", _corrects)
_CRITIC = Need("algo=ppo", lambda config, given: config.algorithm.has_critic)
_ADAPTER = Need("openrlhf.ds.lora.rank", lambda config, given: (given.get("ds.lora.rank") or 0) > 0)
_WANDB = Need("logging.wandb_project", lambda config, given: config.logging.wandb_project is not None)
NEEDS: dict[str, Need] = {
    "algo.advantage.is_correction_level": Need(
        "train.loss=ppo",
        lambda config, given: config.loss.of_openrlhf or given["algo.advantage.is_correction_level"] == "off",
    ),
    "algo.advantage.is_correction_mode": _CORRECTION,
    "algo.advantage.is_correction_gating": _CORRECTION,
    "algo.advantage.is_correction_threshold": _CORRECTION,
    "algo.advantage.no_std_norm": Need(  # trainer/ppo_utils/experience_maker.py:324-331
        "algo=ppo, reinforce_pp or reinforce_pp_baseline",
        lambda config, given: config.algorithm.estimator in ("gae", "reinforce", "reinforce_baseline"),
    ),
    "algo.dynamic_filtering_range": Need("algo=dapo", lambda config, given: config.filters_groups),
    "algo.kl.unbiased_gradient": Need(
        "train.kl_coef above 0, and openrlhf.algo.kl.use_loss not false",
        lambda config, given: config.train.kl_coef > 0 and given.get("algo.kl.use_loss", True),
    ),
    "actor.gradient_checkpointing_reentrant": Need(
        "model.gradient_checkpointing", lambda config, given: config.model.gradient_checkpointing
    ),
    "actor.min_lr_ratio": Need(
        "openrlhf.actor.lr_scheduler=cosine_with_min_lr",
        lambda config, given: str(given.get("actor.lr_scheduler")).endswith("with_min_lr"),
    ),
    **dict.fromkeys(
        (
            "algo.advantage.gamma",
            "algo.advantage.lambd",
            "critic.adam.betas",
            "critic.adam.eps",
            "critic.adam.lr",
            "critic.adam.weight_decay",
            "critic.freezing_steps",
            "critic.lr_scheduler",
            "critic.lr_warmup_ratio",
            "critic.max_norm",
            "critic.model_name_or_path",
            "critic.optim",
            "critic.save_value_network",
            "critic.value_clip",
        ),
        _CRITIC,
    ),
    "critic.min_lr_ratio": Need(
        "openrlhf.critic.lr_scheduler=cosine_with_min_lr, and algo=ppo",
        lambda config, given: (
            config.algorithm.has_critic and str(given.get("critic.lr_scheduler")).endswith("with_min_lr")
        ),
    ),
    "ds.lora.alpha": _ADAPTER,
    "ds.lora.target_modules": _ADAPTER,
    "ds.lora.dropout": _ADAPTER,
    "ds.ring_attn_head_stride": Need(
        "openrlhf.ds.ring_attn_size above 1", lambda config, given: (given.get("ds.ring_attn_size") or 1) > 1
    ),
    "ds.zpg": Need("train.zero_stage=3", lambda config, given: config.train.zero_stage == 3),
    "logger.wandb.group": _WANDB,
    "logger.wandb.org": _WANDB,
    "ref.offload": Need("train.kl_coef above 0", lambda config, given: config.train.kl_coef > 0),
    "train.async_queue_size": Need("openrlhf.train.async_enable", lambda config, given: config.is_async),
    "train.ema_beta": Need("openrlhf.train.enable_ema", lambda config, given: bool(given.get("train.enable_ema"))),
}
_PACKAGES = {"ds.ring_attn_size": ("ring_flash_attn", "ring-flash-attn"), "ds.use_liger_kernel": ("liger_kernel",) * 2}


def check_flag(name: str, value: Any, config: R3Config) -> None:
    """Raise ConfigError for a flag that would be ignored or break the run; an off flag is none."""
    if value is None or value is False:
        return
    reason = refusal(name, algo=config.algo)
    passing, why = VALUES.get(name, ((value,), ""))
    if value not in passing:
        reason = f"{why}; use {' or '.join(passing)}"
    if name == "train.enable_ema" and not config.train.dynamic_batch:
        reason = "without train.dynamic_batch OpenRLHF averages after arbitrary micro-batches, and saves that average"
    if name == "ds.lora.target_modules" and "all-linear" in (value if isinstance(value, list) else [value]):
        reason = "that is what PEFT takes when it is left out, and it does not know the word in a list; leave it out"
    if reason:
        raise ConfigError(f"openrlhf.{name} is {value}, but {reason}")
    module, package = _PACKAGES.get(name, (None, None))
    if module and not _is_one(value) and importlib.util.find_spec(module) is None:
        raise ConfigError(f"openrlhf.{name} is {value}, but it needs the package {package}, which is not installed")


def check_together(given: dict[str, Any], config: R3Config, *, platform: str) -> None:
    """Raises ConfigError for flags that do nothing, or break the run, together with each other and
    the configuration.

    given: flag -> value, each of which `check_flag` has let pass."""
    for name, need in NEEDS.items():
        value = given.get(name)
        if value is not None and value is not False and not _is_one(value) and not need.is_met(config, given):
            raise ConfigError(f"openrlhf.{name} is {value}, but it does nothing without {need.what}")
    _check_adapter(given)
    _check_correction(given)
    _check_states(given, config, platform=platform)
    size = given.get("train.async_queue_size")
    if size is not None and not size >= 1:
        raise ConfigError(f"openrlhf.train.async_queue_size is {size}; use 1 or more")
    if (given.get("ds.tensor_parallel_size") or 1) > 1 and config.train.logits_chunk_tokens is not None:
        raise ConfigError(
            f"openrlhf.ds.tensor_parallel_size is {given['ds.tensor_parallel_size']} and train.logits_chunk_tokens is "
            f"{config.train.logits_chunk_tokens}, but chunks are made of a whole last layer; use one of the two"
        )


def _check_adapter(given: dict[str, Any]) -> None:
    if not (given.get("ds.lora.rank") or 0) > 0:
        return
    if given.get("train.enable_ema"):
        raise ConfigError(
            "openrlhf.train.enable_ema is on with openrlhf.ds.lora.rank, but OpenRLHF's averaged copy has no adapter; use one of the two"
        )
    if (given.get("ds.tensor_parallel_size") or 1) > 1:
        raise ConfigError(
            f"openrlhf.ds.tensor_parallel_size is {given['ds.tensor_parallel_size']} with openrlhf.ds.lora.rank, but an adapter is "
            "merged into whole weights; use ds.tensor_parallel_size=1"
        )


def _check_correction(given: dict[str, Any]) -> None:
    """Refuse what models/loss.py:153-188 would ignore, or refuse once the model is loaded."""
    correction = "openrlhf.algo.advantage.is_correction"
    level, mode, gating, threshold = (
        given.get(f"algo.advantage.is_correction_{name}") for name in ("level", "mode", "gating", "threshold")
    )
    is_divergence = gating not in (None, "ratio")
    if mode == "clip" and (level == "seq" or is_divergence):
        raise ConfigError(
            f"{correction}_mode is clip, which bounds the ratio of a token; use {correction}_level=token and no other gating"
        )
    bounds = threshold if isinstance(threshold, list) else [threshold]
    if is_divergence and not (threshold is not None and len(bounds) == 1):
        raise ConfigError(
            f"{correction}_gating is {gating}, which has only an upper bound; give {correction}_threshold one number"
        )


def _check_states(given: dict[str, Any], config: R3Config, *, platform: str) -> None:
    """Refuse what DeepSpeed's optimizers of ZeRO 0 and 1 cannot do
    (deepspeed/runtime/engine.py:2064-2107), found out by upstream when the model is loaded."""
    stage, sums = config.train.zero_stage, given.get("ds.grad_accum_dtype")
    in_fp32 = sums in ("fp32", "float32")
    if stage == 0 and in_fp32:
        raise ConfigError(
            f"openrlhf.ds.grad_accum_dtype is {sums}, but with train.zero_stage=0 DeepSpeed sums in the model's type; use "
            "train.zero_stage=1 or more"
        )
    stays = not config.train.adam_offload and (stage == 0 or (stage == 1 and in_fp32))
    if platform == "cuda" and config.cluster.enable_sleep and stays:
        raise ConfigError(
            f"cluster.enable_sleep is true, but DeepSpeed cannot move the states of train.zero_stage={stage}"
            + (f" with openrlhf.ds.grad_accum_dtype={sums}" if stage else "")
            + " to the host; use train.zero_stage=2, or cluster.enable_sleep=false"
        )


def _is_one(value: Any) -> bool:
    """ds.zpg=1, ds.ring_attn_size=1: off."""
    return value == 1 and value is not True


def refusal(name: str, *, algo: str) -> str | None:
    """Why a flag cannot be given; None if it can."""
    return REFUSED.get(name) or (REFUSED_WITH_R3.get(name) if ALGORITHMS[algo].own_advantages else None)


def fate(name: str, own: frozenset[str]) -> tuple[str, str]:
    """(how a flag is treated, why or from where). `own`: openrlhf_arguments'. KeyError: unknown."""
    if name in MAY_BE_SET:
        return "passed through", "instead of our default"
    if name in own or name in ALSO_SET:
        return "set by R³", "from the configuration"
    if reason := refusal(name, algo="grpo"):
        return "refused", reason
    if name in REFUSED_WITH_R3:
        needed = f". With another algo: refused without {NEEDS[name].what}" if name in NEEDS else ""
        return "refused with algo=r3", REFUSED_WITH_R3[name] + needed
    if name in VALUES:
        passing, why = VALUES[name]
        return f"only {' or '.join(passing)}", why
    if name in NEEDS:
        return "passed through", f"refused without {NEEDS[name].what}"
    if name in REMARKS:
        return "passed through", REMARKS[name]
    if name in _PACKAGES:
        return "passed through", f"needs the package {_PACKAGES[name][1]}"
    if name in PASSED:
        return "passed through", "checked by OpenRLHF"
    raise KeyError(name)


def table(flags: list[str], own: frozenset[str]) -> str:
    """docs/openrlhf-flags.md."""
    rows = [f"| `--{name}` | {what} | {why} |" for name in sorted(flags) for what, why in [fate(name, own)]]
    head = (
        "# OpenRLHF's flags\n\nHow R³ treats each flag of OpenRLHF 0.11.2 that is given as `openrlhf.FLAG=VALUE`. `python tools/openrlhf_flags.py`\n"
        "prints this page; a test compares it with the installed parser.\n\n"
        "| Flag | Treatment | Why |\n|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"
