"""The model card of a run: what was trained on what, how, and what was measured; README.md of the model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import flatten, settings_of
from r3_openrlhf.method.errors import without_secrets
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.report import summary

# settings that a reader asks for first, in this order
SHOWN = [
    "algo",
    "train.learning_rate",
    "train.batch_size",
    "train.loss",
    "train.kl_coef",
    "rollout.batch_size",
    "rollout.n_samples_per_prompt",
    "rollout.temperature",
    "rollout.max_new_tokens",
    "data.max_prompt_tokens",
    "train.seed",
]


def model_card(run: RunDirectory) -> str:
    """Write the card of a run with at least one step. R3Error: the run has none."""
    config, numbers = run.load_config(), summary(run)
    parts = [
        f"---\n{_front_matter(config)}---",
        f"# {run.path.name}",
        _about(config, numbers),
        _measured(numbers),
        _settings(config),
        "Trained with [r3_openrlhf](https://arxiv.org/abs/2601.19620) over OpenRLHF.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(config: R3Config) -> str:
    """Return the card's metadata as YAML; JSON strings are YAML's."""
    lines = ["library_name: transformers", "pipeline_tag: text-generation"]
    if _of_hub(config.model.path):
        lines.append(f"base_model: {json.dumps(config.model.path)}")
    paths = [source.path for source in config.data.parts.values()]
    datasets = [path for path in paths if path is not None and _of_hub(path)]
    if datasets:
        lines.append(f"datasets: {json.dumps(datasets)}")
    tags = ["reinforcement-learning", "rlvr", "openrlhf", config.algorithm_name]
    lines.append(f"tags: {json.dumps(tags)}")
    return "\n".join(lines) + "\n"


def _of_hub(path: str) -> bool:
    """Tell whether a path is a name of the hub: ORGANISATION/NAME that is no file here."""
    is_name = path.count("/") == 1 and not path.startswith((".", "/", "~")) and ":" not in path
    return is_name and not Path(path).exists()


def _about(config: R3Config, numbers: dict[str, Any]) -> str:
    arm = config.arm or config.algorithm_name
    sentence = f"{config.model.path} after {numbers['steps']} steps of reinforcement learning with verifiable rewards (`{arm}`)."
    if not numbers["finished"]:
        sentence += " The run has not reached its end."
    return sentence


def _measured(numbers: dict[str, Any]) -> str:
    first, last = numbers.get("first_evaluation"), numbers.get("last_evaluation")
    if first is None or last is None:
        return "No held-out problems were asked."
    rows = ["| held-out problems | step | pass@1 |", "|---|---|---|"]
    for name, line in (("before", first), ("after", last)):
        rows.append(f"| {name} | {line['step']} | {line['pass_at_1']:.3f} |")
    note = "One seed: compare several before you call a difference a gain."
    return "\n".join([*rows, "", note])


def _settings(config: R3Config) -> str:
    known = flatten(settings_of(config))
    lines = [f"{key}: {json.dumps(known[key])}" for key in SHOWN if key in known]
    return without_secrets("```yaml\n" + "\n".join(lines) + "\n```")
