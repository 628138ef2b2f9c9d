"""Find out whether a model brings its own Python code, without executing it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from r3_openrlhf.config import ModelConfig
from r3_openrlhf.method.errors import ConfigError

# What Transformers and vLLM read `auto_map` from; of a directory every JSON file is looked at
HUB_FILES = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
_MAYBE = re.compile(rb"auto_map|\\u00")  # JSON can spell the word in escapes


def check_own_code(config: ModelConfig, model: str, *, setting: str | None = None) -> None:
    """ConfigError: `model` (a directory, or a name on the hub) brings code, and no one said that it may run. setting: the key and
    the value that name it; None: model.path.

    OpenRLHF runs such code wherever it finds it (models/actor.py:151, utils/utils.py:70, trainer/ray/vllm_engine.py:274), so
    that a model with code is refused also where Transformers has a class of its own for it.
    """
    if config.trust_remote_code:
        return
    for name, content in _files(model):
        if _MAYBE.search(content) and _maps_code(content):
            raise ConfigError(
                f"{setting or f'model.path {config.path}'} brings code of its own (auto_map in {name}), which a run would execute; read that "
                "code and set model.trust_remote_code=true, or take auto_map out where Transformers knows the model"
            )


def _files(model: str) -> Iterator[tuple[str, bytes]]:
    if Path(model).is_dir():
        for file in sorted(Path(model).glob("*.json")):
            if file.is_file():
                yield file.name, file.read_bytes()
        return
    from transformers.utils import cached_file

    for name in HUB_FILES:
        try:
            found = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
        except OSError as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"model.path {model} cannot be loaded: {reason}") from error
        if found is not None:
            yield name, Path(found).read_bytes()


def _maps_code(content: bytes) -> bool:
    try:
        pending = [json.loads(content)]
    except (ValueError, RecursionError):
        return True  # it cannot be read, and so not be cleared
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            named = value.get("auto_map")
            if named and not isinstance(named, int | float):  # a number is a word's place in a vocabulary
                return True
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return False
