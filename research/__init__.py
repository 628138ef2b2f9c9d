"""Learning experiments on a model of a million parameters, and the evidence behind docs/RESULTS.md. `python -m research --help`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from r3_openrlhf.config import R3Config


def load(experiment: str, settings: list[str]) -> R3Config:
    """`load_config` that also knows the experiments of this directory by name. Raises ConfigError as it does."""
    from r3_openrlhf.config.loading import load_config

    file = Path(__file__).parent / "experiments" / f"{experiment}.yaml"
    return load_config(str(file) if file.is_file() else experiment, settings, for_arms=True)
