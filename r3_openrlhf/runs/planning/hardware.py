"""GPUs, by their data sheets. Memory is the total of torch.cuda.mem_get_info, which is less."""

from __future__ import annotations

from dataclasses import dataclass

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


# NVIDIA's data sheets: A100 (312 TFLOP/s, 1.56 and 2.04 TB/s), H100 SXM (989, 3.35), H200 (989,
# 4.8), H800 SXM (as H100, slower NVLink), L40S (362, 0.86), RTX 4090 (165 with fp32 sums, 1.01)
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-40gb", int(39.4 * GiB), 312e12, 1.56e12),
        Gpu("a100-80gb", int(79.1 * GiB), 312e12, 2.04e12),
        Gpu("h100-80gb", int(79.1 * GiB), 989e12, 3.35e12),
        Gpu("h800-80gb", int(79.1 * GiB), 989e12, 3.35e12),
        Gpu("h200-141gb", int(139.7 * GiB), 989e12, 4.8e12),
        Gpu("rtx4090-24gb", int(23.5 * GiB), 165e12, 1.01e12),
        Gpu("l40s-48gb", int(44.4 * GiB), 362e12, 0.86e12),
    )
}
DEFAULT = "h100-80gb"


def gpu_named(name: str) -> Gpu:
    """Raises ConfigError for a name that is not in GPUS."""
    if name not in GPUS:
        raise ConfigError(f"gpu is {quoted(name)}, which the plan does not know; {nearest(name, list(GPUS))}")
    return GPUS[name]
