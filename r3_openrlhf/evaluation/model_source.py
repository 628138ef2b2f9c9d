"""MODEL of `r3 eval` -> a directory or hub name, and its run's configuration, if any."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.kept_files import copy_steps
from r3_openrlhf.runs.models.locate import locate_model

PROMPT_KEYS = ("chat_template", "system_prompt", "prompt_template", "few_shot")
COLUMN_KEYS = ("problem_key", "answer_key", "uid_key")  # named benchmarks have their own
_EDGE_BYTES = 2**20  # of each weight file that go into the fingerprint, at both ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """The model of one evaluation."""

    name: str  # for people
    path: str  # what models.resolve_model takes
    output: Path  # where the evaluation goes when nothing is said
    config: R3Config | None = None  # of the run


def find_model(model: str, *, step: int | None = None) -> ModelSource:
    """Find a run directory (final_model, or `step`'s Hugging Face checkpoint), or a model.path.

    ConfigError: no such model, a run without final_model or that checkpoint, no run for `step`.
    """
    directory = Path(model).expanduser()
    if (directory / "config.yaml").is_file() and not (directory / "config.json").is_file():
        return _of_run(RunDirectory.open(directory), step)
    if step is not None:
        raise ConfigError(
            f"--step is {step}, but {model} is not a run directory; leave --step out"
        )
    locate_model(model)
    name = directory.resolve().name if directory.is_dir() else model
    return ModelSource(
        name=name, path=model, output=Path("runs") / "evaluations" / name.replace("/", "_")
    )


def values_of(config: R3Config, benchmarks: Sequence[str]) -> dict[str, Any]:
    """Sections of a configuration as far as they decide about prompts, grading and the engine.

    Where a benchmark is the reasoning-gym task of its held-out (or else its training) problems,
    their options too."""
    data = {
        key: getattr(config.data, key)
        for key in (*PROMPT_KEYS, *COLUMN_KEYS, "chat_template_kwargs")
    }
    for section in (config.data, config.held_out):
        if section.path in benchmarks:
            data["reasoning_gym"] = section.reasoning_gym
    return {
        "data": data,
        "reward": asdict(config.reward),
        "rollout": {"stop": config.rollout.stop},
    }


def _of_run(run: RunDirectory, step: int | None) -> ModelSource:
    steps = copy_steps(run)
    if step is None:
        directory, name = run.final_model, run.path.name
    else:
        directory, name = (
            run.checkpoints / f"global_step{step}_hf",
            f"{run.path.name}_step{step}",
        )
    if not (directory / "config.json").is_file():
        has = (
            f"its checkpoints are of step {', '.join(map(str, steps))}"
            if steps
            else "it has no checkpoint either"
        )
        what = (
            "no final_model yet"
            if step is None
            else f"no checkpoint of step {step} in Hugging Face format"
        )
        raise ConfigError(
            f"the run {run.path} has {what}; {has}" + (": use --step" if steps else "")
        )
    output = run.path / "evaluations" / (f"step{step}" if step is not None else "final_model")
    return ModelSource(name=name, path=str(directory), output=output, config=run.load_config())


def fingerprint(directory: str) -> str:
    """Identify weights: hash config.json and name, size and both ends of each weight file.

    A hub name is its own fingerprint: which revision the hub would give is not asked."""
    path = Path(directory)
    if not path.is_dir():
        return directory
    digest = hashlib.sha256()
    for file in sorted(
        [path / "config.json", *path.glob("*.safetensors"), *path.glob("*.bin")]
    ):
        size = file.stat().st_size
        digest.update(f"{file.name}/{size}/".encode())
        with file.open("rb") as content:
            digest.update(content.read(_EDGE_BYTES))
            content.seek(max(0, size - _EDGE_BYTES))
            digest.update(content.read(_EDGE_BYTES))
    return f"sha256:{digest.hexdigest()[:16]}"
