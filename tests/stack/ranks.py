"""Data-parallel ranks without Ray: forks of multiprocessing's own server, which has imported the stack."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 1200
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.stack.rank_worker", "tests.stack.going_on_ranks"])


def on_ranks(target: Callable, ranks: int, *arguments, folder: Path) -> None:
    """Run `target(*arguments, rank)` on this many ranks; the end of the first rank's output if one
    of them fails. folder: for the output, rank0.log and so on."""
    from torch.distributed import TCPStore

    # Ours from the kernel's choice on: a port that is free when asked for may be another's when rank 0 listens on it.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        _context.Process(
            target=_rank,
            args=(target, arguments, rank, ranks, store.port, folder / f"rank{rank}.log"),
        )
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(LIMIT_S)
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * ranks, (folder / "rank0.log").read_text()[-3000:]


def _rank(
    target: Callable, arguments: tuple, rank: int, ranks: int, port: int, log: Path
) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 is a client of it, too
    }
    import torch

    torch.set_num_threads(1)
    target(*arguments, rank)
