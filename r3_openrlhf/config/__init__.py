"""Every knob of a run: name, default, unit, check. Defaults are only here; a file per section.

YAML files in configs/ only pick values. `[P]` after a default: the paper's; others are ours.
"""

from r3_openrlhf.config.agents import AgentsConfig
from r3_openrlhf.config.evaluations import BenchmarkConfig, HeldOutConfig
from r3_openrlhf.config.model_and_data import DataConfig, ModelConfig
from r3_openrlhf.config.rewards import CodeConfig, RewardConfig
from r3_openrlhf.config.run import R3Config
from r3_openrlhf.config.running import CheckpointConfig, ClusterConfig, LoggingConfig, StopConfig
from r3_openrlhf.config.sampling_and_training import RolloutConfig, TrainConfig
from r3_openrlhf.config.words import ENVIRONMENT, MISSING

__all__ = [
    "ENVIRONMENT",
    "MISSING",
    "AgentsConfig",
    "BenchmarkConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "CodeConfig",
    "DataConfig",
    "HeldOutConfig",
    "LoggingConfig",
    "ModelConfig",
    "R3Config",
    "RewardConfig",
    "RolloutConfig",
    "StopConfig",
    "TrainConfig",
]
