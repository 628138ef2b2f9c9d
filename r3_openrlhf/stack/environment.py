"""How the run's configuration reaches every process of the job: one environment variable, set through Ray."""

from __future__ import annotations

import functools
import os

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import config_from_json, config_to_json
from r3_openrlhf.method.errors import ConfigError

VARIABLE = "R3_CONFIG"
PLATFORM = "R3_PLATFORM"


def environment_of(config: R3Config, platform: str = "cuda") -> dict[str, str]:
    """The variables that a process of the job needs for `config_from_environment` and `on_cpu`."""
    return {VARIABLE: config_to_json(config), PLATFORM: platform}


def on_cpu() -> bool:
    """Is the job on the CPU platform? The driver knows; a Ray actor without a GPU of its own sees no CUDA device on a
    GPU cluster either."""
    return os.environ.get(PLATFORM) == "cpu"


@functools.lru_cache(maxsize=1)
def config_from_environment() -> R3Config:
    """The configuration of this job, read once a process. ConfigError: the variable is not set."""
    text = os.environ.get(VARIABLE)
    if text is None:
        raise ConfigError(f"the environment variable {VARIABLE} is not set; start the job with `r3 train`")
    return config_from_json(text)
