"""One sum over all nodes before anything expensive starts, in a process on each node:

    python -m r3_openrlhf.operations.cluster.all_reduce HOST:PORT RANK WORLD TIMEOUT_S

NCCL between the first GPUs where there are GPUs, gloo elsewhere: what training itself will use. A
firewall, a wrong network interface or a broken cable shows here within the deadline and not as a
hang in the first step."""

from __future__ import annotations

import signal
import sys
import time
from datetime import timedelta

NUM_VALUES = 1 << 20  # 4 MB: more than one packet, done at once


def all_reduce(*, address: str, rank: int, world: int, timeout_s: float) -> float:
    """Seconds for the sum, with the connection. RuntimeError: no connection, a wrong sum, or
    not within `timeout_s`.

    address: HOST:PORT of rank 0."""
    import torch
    import torch.distributed as dist

    began = time.monotonic()
    device, backend = ("cuda:0", "nccl") if torch.cuda.is_available() else ("cpu", "gloo")
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, init_method=f"tcp://{address}", rank=rank, world_size=world, timeout=timeout)
    try:
        values = torch.full((NUM_VALUES,), float(rank + 1), device=device)
        dist.all_reduce(values)
        expected = world * (world + 1) / 2
        if not bool((values == expected).all()):
            raise RuntimeError(f"the sum over {world} nodes is {values[0].item()}, not {expected}")
        return time.monotonic() - began
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Print the seconds of the sum. Exit code 1 with a sentence if it fails; SIGALRM: too long."""
    import torch  # noqa: F401  # before the clock starts: a shared torch imports slowly

    address, rank, world, timeout_s = sys.argv[1:]
    signal.alarm(int(timeout_s) + 5)  # an NCCL that hangs knows no other limit
    try:
        seconds = all_reduce(address=address, rank=int(rank), world=int(world), timeout_s=float(timeout_s))
    except RuntimeError as error:  # torch.distributed's own errors are RuntimeErrors
        sys.stdout.write(f"all-reduce: {str(error).splitlines()[0]}\n")
        sys.exit(1)
    sys.stdout.write(f"{seconds:.1f}\n")


if __name__ == "__main__":
    main()
