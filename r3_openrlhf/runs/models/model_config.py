"""Reading a model's configuration, and what to install for a model that is newer than Transformers."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.method.errors import ConfigError, quoted

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NEWER = tomllib.loads(
    Path(__file__).parents[1].joinpath("newer_transformers.toml").read_text(encoding="utf-8")
)


def read_config(model: str, *, trusted: bool = False, **options: object) -> PreTrainedConfig:
    """Read the configuration of a directory or of a name on the hub.

    Args:
        trusted: model.trust_remote_code.
        options: of Transformers' AutoConfig.from_pretrained.

    ConfigError: the installed Transformers does not know the type of the model."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model, trust_remote_code=trusted, **options)
    except (ValueError, KeyError) as error:
        refuse_unknown_type(model, cause=error, **options)
        raise


def refuse_unknown_type(model: str, *, cause: Exception, **options: object) -> None:
    """ConfigError: the type of the model is none that the installed Transformers knows.

    What else is wrong with the model is left to the caller, who met `cause`."""
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    try:
        fields, _ = PreTrainedConfig.get_config_dict(model, **options)
    except (OSError, ValueError):
        return
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type in CONFIG_MAPPING:
        return
    raise ConfigError(
        f"the model {model} is of model_type {quoted(model_type)}, which Transformers "
        f"{version('transformers')} does not know; {_remedy(model_type)} (docs/install.md, "
        "Newer models)"
    ) from cause


def _remedy(model_type: str) -> str:
    """Say which release of Transformers knows the type, and how to install it."""
    release = NEWER["release"]
    if model_type in NEWER["model_types"]:
        return (
            f"install Transformers {release}, which does, with vLLM for it: make setup NEWER=1, "
            "or make setup-gpu NEWER=1"
        )
    return (
        f"install a release that does over the pins of make setup NEWER=1, whose {release} "
        "does not know it either"
    )
