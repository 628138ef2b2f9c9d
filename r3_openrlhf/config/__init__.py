"""Every knob of a run: name, default, unit, check. Defaults are only here; a file per section.

YAML files in configs/ only pick values. `[P]` after a default: the paper's; others are ours.
"""

from r3_openrlhf.config.agents import AgentsConfig as AgentsConfig
from r3_openrlhf.config.evaluations import BenchmarkConfig as BenchmarkConfig
from r3_openrlhf.config.evaluations import HeldOutConfig as HeldOutConfig
from r3_openrlhf.config.model_and_data import DataConfig as DataConfig
from r3_openrlhf.config.model_and_data import ModelConfig as ModelConfig
from r3_openrlhf.config.rewards import CodeConfig as CodeConfig
from r3_openrlhf.config.rewards import RewardConfig as RewardConfig
from r3_openrlhf.config.run import R3Config as R3Config
from r3_openrlhf.config.running import CheckpointConfig as CheckpointConfig
from r3_openrlhf.config.running import ClusterConfig as ClusterConfig
from r3_openrlhf.config.running import LoggingConfig as LoggingConfig
from r3_openrlhf.config.running import StopConfig as StopConfig
from r3_openrlhf.config.sampling_and_training import RolloutConfig as RolloutConfig
from r3_openrlhf.config.sampling_and_training import TrainConfig as TrainConfig
from r3_openrlhf.config.words import ENVIRONMENT as ENVIRONMENT
from r3_openrlhf.config.words import MISSING as MISSING
