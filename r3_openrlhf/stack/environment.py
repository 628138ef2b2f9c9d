"""Pass the configuration to every process of the job: an environment variable, set by Ray."""

import functools
import os

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import config_from_json, config_to_json
from r3_openrlhf.machine.every_process import MODEL_CODE
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.stack.recorded_rollouts import PLAYBACK, RECORD

VARIABLE = "R3_CONFIG"
PLATFORM = "R3_PLATFORM"
# Actors of policy and critic that share a node's cores; unset where the user's OMP_NUM_THREADS counts
THREADS = "R3_ACTORS_PER_NODE"


def environment_of(config: R3Config, platform: str = "cuda") -> dict[str, str]:
    """Return the variables that a process of the job needs for `config_from_environment` and `on_cpu`."""
    recorded = {name: os.environ[name] for name in (RECORD, PLAYBACK) if name in os.environ}
    trusted = str(int(config.model.trust_remote_code))
    return {
        VARIABLE: config_to_json(config),
        PLATFORM: platform,
        MODEL_CODE: trusted,
        **recorded,
    }


def on_cpu() -> bool:
    """Return True if the job is on the CPU platform. The driver decides: a Ray actor without a GPU
    of its own sees no CUDA device on a GPU cluster either."""
    return os.environ.get(PLATFORM) == "cpu"


def use_share_of_cores() -> None:
    """Give an actor that trains on GPUs its share of the node's cores: with one thread, Adam on the host
    (train.adam_offload) takes seconds. DeepSpeed reads the variable at load, torch has read it."""
    actors = os.environ.get(THREADS)
    if actors is not None:
        import torch

        threads = max(1, len(os.sched_getaffinity(0)) // int(actors))
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


@functools.lru_cache(maxsize=1)
def config_from_environment() -> R3Config:
    """Return the configuration of this job, read once a process. ConfigError: the variable is not set."""
    text = os.environ.get(VARIABLE)
    if text is None:
        raise ConfigError(
            f"the environment variable {VARIABLE} is not set; start the job with `r3 train`"
        )
    return config_from_json(text)
