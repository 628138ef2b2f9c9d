"""GPUs, by their data sheets (gpus.toml)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import nearest

GiB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """The numbers of a GPU that a plan needs; bytes, and per second."""

    name: str
    memory_bytes: int
    flops: float  # bf16, dense, per second
    bandwidth: float  # of its memory, bytes per second


_SHEETS = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))
GPUS = {name: Gpu(name, int(one["gib"] * GiB), one["flops"], one["bandwidth"]) for name, one in _SHEETS.items()}
DEFAULT = "h100-80gb"


def gpu_named(name: str) -> Gpu:
    """Return the GPU of this name. Raises ConfigError for one that is not in GPUS."""
    if name not in GPUS:
        raise ConfigError(f"gpu is {quoted(name)}, which the plan does not know; {nearest(name, list(GPUS))}")
    return GPUS[name]
