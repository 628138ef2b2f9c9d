"""What becomes of every flag of the installed OpenRLHF when it is given as `openrlhf.FLAG=VALUE`.

    python tools/openrlhf_flags.py        prints docs/openrlhf-flags.md

A flag is set from our configuration, passed through to OpenRLHF, whose parser and checks judge its value, or refused with
a reason: it would be ignored, or break the run later. A test compares this table with the installed parser.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.errors import ConfigError

_NO_CRITIC = "no algorithm here has a critic"
_GRADERS = "rewards come from graders (reward.*), not from a reward model"
_OWN_DATA = "R³ writes the final prompts itself; use the keys of data"
_OWN_EVALUATION = "R³ asks held-out problems itself; use the keys of held_out"
_TEXT_ONLY = "R³ trains on text alone"

# Conditional or beside another flag: openrlhf_arguments sets them, too.
ALSO_SET = ("actor.eps_clip", "logger.wandb.key", "logger.wandb.project")

REFUSED: dict[str, str] = {
    "train.colocate_actor_ref": "everything shares the same GPUs already",
    "train.colocate_critic_reward": _NO_CRITIC,
    "train.partial_rollout_enable": "the weights of a response's first token would be unknown; use train.async_enable alone",
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
    "ckpt.disable_ds": "a run without DeepSpeed checkpoints cannot go on; for the final model alone use checkpoint.save_steps=-1",
    "local_rank": "it belongs to a launcher that is not used here",
    "ds.load_in_4bit": "the weight sync would send quantised weights, which vLLM does not expect",
    "data.prompt_probs": _OWN_DATA,
    "data.prompt_split": _OWN_DATA,
    "data.max_samples": "it would cut the data behind R³'s back; use data.max_samples of the configuration",
    "data.input_template": _OWN_DATA,
    "data.apply_chat_template": "the template would be applied twice; use data.chat_template",
    "data.image_key": _TEXT_ONLY,
    "data.max_images_per_prompt": _TEXT_ONLY,
    "actor.freeze_visual_encoder": _TEXT_ONLY,
    "algo.advantage.lambd": "only generalised advantage estimation has it, and that needs a critic",
    "algo.advantage.gamma": "it is 1 in every algorithm here",
    "use_ms": "the model is looked up before OpenRLHF starts; give model.path a directory",
}
REFUSED_WITH_R3: dict[str, str] = {
    "reward.stop_properly_penalty_coef": "eq. 3 takes the graders' rewards; ranking.* and reward.length_reward say what length costs",
    "algo.advantage.no_std_norm": "advantages come from eq. 3; use the keys of advantage",
    "algo.dynamic_filtering_range": "nothing is filtered",
}
PASSED = (
    "vllm.sync_with_ray",
    "algo.advantage.is_correction_level",
    "algo.advantage.is_correction_mode",
    "algo.advantage.is_correction_gating",
    "algo.advantage.is_correction_threshold",
    "reward.clip_range",
    "algo.kl.target",
    "algo.kl.horizon",
    "algo.kl.unbiased_gradient",
    "logger.logging_steps",
    "logger.wandb.org",
    "logger.wandb.group",
    "ckpt.max_mem",
    "ds.use_universal_ckpt",
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
    "actor.muon.lr",
    "actor.muon.momentum",
    "actor.muon.ns_steps",
    "actor.muon.nesterov",
    "actor.muon.no_nesterov",
    "actor.adam.betas",
    "actor.adam.eps",
    "actor.adam.weight_decay",
    "actor.min_lr_ratio",
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
_ADAPTER = ("ds.lora.alpha", "ds.lora.target_modules", "ds.lora.dropout")
_PACKAGES = {"ds.ring_attn_size": ("ring_flash_attn", "ring-flash-attn"), "ds.use_liger_kernel": ("liger_kernel",) * 2}


def check_flag(name: str, value: Any, config: R3Config) -> None:
    """Raises ConfigError, with the reason, for a flag that would be ignored or break the run. A flag that is off is none."""
    if value is None or value is False:
        return
    reason = refusal(name, algo=config.algo)
    if name == "train.enable_ema" and not config.train.dynamic_batch:
        reason = "without train.dynamic_batch OpenRLHF averages after arbitrary micro-batches, and saves that average"
    if name == "ds.lora.target_modules" and "all-linear" in (value if isinstance(value, list) else [value]):
        reason = "that is what PEFT takes when it is left out, and it does not know the word in a list; leave it out"
    if reason:
        raise ConfigError(f"openrlhf.{name} is {value}, but {reason}")
    module, package = _PACKAGES.get(name, (None, None))
    is_off = value == 1 and value is not True  # ds.ring_attn_size=1
    if module and not is_off and importlib.util.find_spec(module) is None:
        raise ConfigError(f"openrlhf.{name} is {value}, but it needs the package {package}, which is not installed")


def check_together(given: dict[str, Any]) -> None:
    """Raises ConfigError for flags that do nothing, or break the run, beside each other. given: flag -> value."""
    has_adapter = (given.get("ds.lora.rank") or 0) > 0
    for name in _ADAPTER:
        if given.get(name) is not None and not has_adapter:
            raise ConfigError(
                f"openrlhf.{name} is {given[name]}, but there is no adapter; set openrlhf.ds.lora.rank, too"
            )
    if given.get("train.async_queue_size") is not None and not given.get("train.async_enable"):
        raise ConfigError(
            f"openrlhf.train.async_queue_size is {given['train.async_queue_size']}, but nothing is sampled ahead; set "
            "openrlhf.train.async_enable, too"
        )
    if has_adapter and given.get("train.enable_ema"):
        raise ConfigError(
            "openrlhf.train.enable_ema is on with openrlhf.ds.lora.rank, but OpenRLHF's averaged copy has no adapter; use one of the two"
        )
    if has_adapter and (given.get("ds.tensor_parallel_size") or 1) > 1:
        raise ConfigError(
            f"openrlhf.ds.tensor_parallel_size is {given['ds.tensor_parallel_size']} with openrlhf.ds.lora.rank, but an adapter is "
            "merged into whole weights; use ds.tensor_parallel_size=1"
        )


def refusal(name: str, *, algo: str) -> str | None:
    """Why a flag cannot be given; None: it can."""
    if name.startswith("critic."):
        return _NO_CRITIC
    return REFUSED.get(name) or (REFUSED_WITH_R3.get(name) if algo == "r3" else None)


def fate(name: str, own: frozenset[str]) -> tuple[str, str]:
    """(what becomes of a flag, why or from where). `own`: the flags that openrlhf_arguments sets. KeyError: unknown."""
    if name in own or name in ALSO_SET:
        return "set by R³", "from the configuration"
    if reason := refusal(name, algo="grpo"):
        return "refused", reason
    if name in REFUSED_WITH_R3:
        return "refused with algo=r3", REFUSED_WITH_R3[name]
    if name == "train.enable_ema":
        return "passed through", "refused without train.dynamic_batch"
    if name == "train.async_enable":
        return "passed through", "half of the GPUs are the engines' then"
    if name == "train.async_queue_size":
        return "passed through", "refused without train.async_enable"
    if name == "ds.lora.rank":
        return "passed through", "engines and saved models get merged weights"
    if name in _ADAPTER:
        return "passed through", "refused without ds.lora.rank"
    if name in _PACKAGES:
        return "passed through", f"needs the package {_PACKAGES[name][1]}"
    if name in PASSED:
        return "passed through", "judged by OpenRLHF's parser and checks"
    raise KeyError(name)


def table(flags: list[str], own: frozenset[str]) -> str:
    """docs/openrlhf-flags.md."""
    rows = [f"| `--{name}` | {what} | {why} |" for name in sorted(flags) for what, why in [fate(name, own)]]
    head = (
        "# OpenRLHF's flags\n\nEvery flag of OpenRLHF 0.11.2 and what becomes of it as `openrlhf.FLAG=VALUE`. This page is printed by\n"
        "`python tools/openrlhf_flags.py`; a test compares it with the installed parser.\n\n"
        "| Flag | What becomes of it | Why |\n|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"
