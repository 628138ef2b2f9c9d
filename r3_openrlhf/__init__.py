"""R³ (replay, reflection, ranking; arXiv 2601.19620) for OpenRLHF 0.11.2 and any other loop.

The names below are the public interface; each is loaded at first use: `import r3_openrlhf` costs
nothing. The class `R3` decides for a step; examples/own_loop.py has it in a plain torch loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # X as X: a public name, for type checkers
    from r3_openrlhf import method as method
    from r3_openrlhf.comparison.frames import Run as Run
    from r3_openrlhf.comparison.frames import compare as compare
    from r3_openrlhf.comparison.training import train as train
    from r3_openrlhf.config import R3Config as R3Config
    from r3_openrlhf.evaluation.frame import evaluate as evaluate
    from r3_openrlhf.method.core.advantages import group_advantages as group_advantages
    from r3_openrlhf.method.core.batch_metrics import batch_metrics as batch_metrics
    from r3_openrlhf.method.core.distill import TeacherScores as TeacherScores
    from r3_openrlhf.method.core.entropy import entropy_statistics as entropy_statistics
    from r3_openrlhf.method.core.mixed_batch import MixedBatch as MixedBatch
    from r3_openrlhf.method.core.ranking import ranking_rewards as ranking_rewards
    from r3_openrlhf.method.core.rewards import outcome_reward as outcome_reward
    from r3_openrlhf.method.errors import ConfigError as ConfigError
    from r3_openrlhf.method.history.store import HistoryStore as HistoryStore
    from r3_openrlhf.method.prompts import ChatPrompts as ChatPrompts
    from r3_openrlhf.method.prompts import RowPrompts as RowPrompts
    from r3_openrlhf.method.prompts import uid_of as uid_of
    from r3_openrlhf.method.r3 import R3 as R3
    from r3_openrlhf.method.settings import AdvantageSettings as AdvantageSettings
    from r3_openrlhf.method.settings import DistillSettings as DistillSettings
    from r3_openrlhf.method.settings import ExplorationSettings as ExplorationSettings
    from r3_openrlhf.method.settings import HistorySettings as HistorySettings
    from r3_openrlhf.method.settings import R3Settings as R3Settings
    from r3_openrlhf.method.settings import RankingSettings as RankingSettings
    from r3_openrlhf.method.settings import ReflectionSettings as ReflectionSettings
    from r3_openrlhf.method.settings import ReplaySettings as ReplaySettings
    from r3_openrlhf.method.types import Context as Context
    from r3_openrlhf.method.types import EntropyStatistics as EntropyStatistics
    from r3_openrlhf.method.types import Rollout as Rollout
    from r3_openrlhf.method.types import Verdict as Verdict
    from r3_openrlhf.rewards.answers.grading import grade as grade
    from r3_openrlhf.rewards.answers.references import read_reference as read_reference

__version__ = "0.2.0"
# module -> its public names
_NAMES = {
    "comparison.frames": ["Run", "compare"],
    "comparison.training": ["train"],
    "config": ["R3Config"],
    "evaluation.frame": ["evaluate"],
    "method.core.advantages": ["group_advantages"],
    "method.core.batch_metrics": ["batch_metrics"],
    "method.core.distill": ["TeacherScores"],
    "method.core.entropy": ["entropy_statistics"],
    "method.core.mixed_batch": ["MixedBatch"],
    "method.core.ranking": ["ranking_rewards"],
    "method.core.rewards": ["outcome_reward"],
    "method.errors": ["ConfigError"],
    "method.history.store": ["HistoryStore"],
    "method.prompts": ["ChatPrompts", "RowPrompts", "uid_of"],
    "method.r3": ["R3"],
    "method.settings": [
        *(
            "AdvantageSettings",
            "DistillSettings",
            "ExplorationSettings",
            "HistorySettings",
            "R3Settings",
        ),
        *("RankingSettings", "ReflectionSettings", "ReplaySettings"),
    ],
    "method.types": ["Context", "EntropyStatistics", "Rollout", "Verdict"],
    "rewards.answers.grading": ["grade"],
    "rewards.answers.references": ["read_reference"],
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["method", *_HOME]
# What needs more than the smallest installation, and torch.
_EXTRAS = {
    "Run": "notebook",
    "compare": "notebook",
    "evaluate": "eval,notebook",
    "train": "notebook",
}


def __getattr__(name: str) -> Any:
    if name == "method":
        return importlib.import_module("r3_openrlhf.method")
    if name not in _HOME:
        raise AttributeError(f"module 'r3_openrlhf' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(
            importlib.import_module(f"r3_openrlhf.{_HOME[name]}"), name
        )
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(name, "torch" if error.name == "torch" else None)
        if extra is None:
            raise
        raise ImportError(
            f"r3_openrlhf.{name} needs {error.name}: pip install 'r3_openrlhf[{extra}]'"
        ) from error
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
