"""GPUs, by their data sheets (gpus.toml)."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

GiB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """The numbers of a GPU that a plan needs; bytes, and per second."""

    name: str
    memory_bytes: int
    flops: float  # bf16, dense, per second
    bandwidth: float  # of its memory, bytes per second
    link: float  # to the other GPUs of its node, bytes per second and direction
    network: float  # to other nodes, bytes per second and direction. Assumed: no sheet has it


_SHEETS = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))
GPUS = {
    name: Gpu(
        name, int(one["gib"] * GiB), one["flops"], one["bandwidth"], one["link"], one["network"]
    )
    for name, one in _SHEETS.items()
}
DEFAULT = "h100-80gb"
