"""R³ (replay, reflection, ranking; arXiv 2601.19620) for OpenRLHF 0.11.2 and any other loop.

The names below are the public interface; each is loaded at first use: `import r3_openrlhf` costs
nothing. The class `R3` decides for a step; examples/own_loop.py has it in a plain torch loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r3_openrlhf import method
    from r3_openrlhf.comparison.frames import Run, compare
    from r3_openrlhf.config import R3Config
    from r3_openrlhf.evaluation.frame import evaluate
    from r3_openrlhf.method.core.advantages import group_advantages
    from r3_openrlhf.method.core.batch_metrics import batch_metrics
    from r3_openrlhf.method.core.entropy import entropy_statistics
    from r3_openrlhf.method.core.mixed_batch import MixedBatch
    from r3_openrlhf.method.core.ranking import ranking_rewards
    from r3_openrlhf.method.core.rewards import outcome_reward
    from r3_openrlhf.method.history.store import HistoryStore
    from r3_openrlhf.method.prompts import ChatPrompts
    from r3_openrlhf.method.r3 import R3
    from r3_openrlhf.method.settings import (
        AdvantageSettings,
        ExplorationSettings,
        HistorySettings,
        R3Settings,
        RankingSettings,
        ReflectionSettings,
        ReplaySettings,
    )
    from r3_openrlhf.method.types import Context, EntropyStatistics, Rollout, Verdict
    from r3_openrlhf.rewards.answers.grading import grade
    from r3_openrlhf.rewards.answers.references import read_reference

__version__ = "0.2.0"
__all__ = [
    "R3",
    "AdvantageSettings",
    "ChatPrompts",
    "Context",
    "EntropyStatistics",
    "ExplorationSettings",
    "HistorySettings",
    "HistoryStore",
    "MixedBatch",
    "R3Config",
    "R3Settings",
    "RankingSettings",
    "ReflectionSettings",
    "ReplaySettings",
    "Rollout",
    "Run",
    "Verdict",
    "batch_metrics",
    "compare",
    "entropy_statistics",
    "evaluate",
    "grade",
    "group_advantages",
    "method",
    "outcome_reward",
    "ranking_rewards",
    "read_reference",
]

_HOME = {
    "R3": "method.r3",
    "AdvantageSettings": "method.settings",
    "ChatPrompts": "method.prompts",
    "ExplorationSettings": "method.settings",
    "HistorySettings": "method.settings",
    "R3Settings": "method.settings",
    "RankingSettings": "method.settings",
    "ReflectionSettings": "method.settings",
    "ReplaySettings": "method.settings",
    "Context": "method.types",
    "EntropyStatistics": "method.types",
    "HistoryStore": "method.history.store",
    "MixedBatch": "method.core.mixed_batch",
    "R3Config": "config",
    "Rollout": "method.types",
    "Run": "comparison.frames",
    "Verdict": "method.types",
    "batch_metrics": "method.core.batch_metrics",
    "compare": "comparison.frames",
    "entropy_statistics": "method.core.entropy",
    "evaluate": "evaluation.frame",
    "grade": "rewards.answers.grading",
    "group_advantages": "method.core.advantages",
    "outcome_reward": "method.core.rewards",
    "ranking_rewards": "method.core.ranking",
    "read_reference": "rewards.answers.references",
}
# What needs more than the smallest installation, and torch.
_EXTRAS = {"Run": "notebook", "compare": "notebook", "evaluate": "eval,notebook"}


def __getattr__(name: str) -> Any:
    if name == "method":
        return importlib.import_module("r3_openrlhf.method")
    if name not in _HOME:
        raise AttributeError(f"module 'r3_openrlhf' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module(f"r3_openrlhf.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(name, "torch" if error.name == "torch" else None)
        if extra is None:
            raise
        raise ImportError(f"r3_openrlhf.{name} needs {error.name}: pip install 'r3_openrlhf[{extra}]'") from error
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
