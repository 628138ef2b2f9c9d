"""On one node: let the processes of a run meet in files that only their user can open.

torch and vLLM have a process listen on every interface instead, for anybody: who connects lists,
reads and writes all keys, and vLLM unpickles values. Several nodes: docs/cluster.md."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from wrapt import register_post_import_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import FileStore

FOLDER = "R3_STORES"  # a variable: a folder of mode 700 on the only node of the run


class _Rendezvous(Protocol):
    """The function that is replaced in torch/distributed/rendezvous.py."""

    _create_c10d_store: Callable[..., object]


class _VllmUtils(Protocol):
    """The function that is replaced in vllm/distributed/utils.py."""

    create_tcp_store: Callable[..., object]


def install() -> None:
    """Let every group of this process meet as above. Once a process."""
    register_post_import_hook(_patch_torch, "torch.distributed.rendezvous")
    register_post_import_hook(_patch_vllm, "vllm.distributed.utils")
    register_post_import_hook(_patch_ray_executor, "vllm.v1.executor.ray_executor_v2")


def on_one_node(folder: Path) -> dict[str, str]:
    """Return the environment of a run whose processes share this node; `folder` has mode 700."""
    addresses = {
        name: os.environ.get(name, "lo")
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    }
    return {FOLDER: str(folder), **addresses}


def _store(host: str, port: int, world_size: int, timeout: object) -> FileStore | None:
    """Return the store of the group that would meet at HOST:PORT; None on several nodes."""
    if not (folder := os.environ.get(FOLDER)):
        return None
    from torch.distributed import FileStore

    store = FileStore(f"{folder}/store-{host}-{port}", world_size)
    store.set_timeout(timeout)
    return store


def _patch_torch(module: _Rendezvous) -> None:
    """torch/distributed/rendezvous.py:188, of tcp:// and env://: rank 0 starts a TCPStore."""
    upstream = module._create_c10d_store

    @functools.wraps(upstream)
    def create(hostname, port, rank, world_size, timeout, *more):
        store = _store(hostname, port, world_size, timeout)
        return (
            upstream(hostname, port, rank, world_size, timeout, *more)
            if store is None
            else store
        )

    module._create_c10d_store = create


def _patch_vllm(module: _VllmUtils) -> None:
    """vllm/distributed/utils.py:499: StatelessProcessGroup unpickles what this store says."""
    upstream = module.create_tcp_store

    @functools.wraps(upstream)
    def create(host, port, listen_socket=None, **options):
        store = _store(host, port, options["world_size"], options["timeout"])
        if store is None:
            return upstream(host, port, listen_socket, **options)
        if listen_socket is not None:
            listen_socket.close()
        return store

    module.create_tcp_store = create


def _patch_ray_executor(module: ModuleType) -> None:
    """vllm/v1/executor/ray_executor_v2.py:127: an engine of several GPUs has a TCPStore, too."""
    worker = module.RayWorkerProc
    upstream = worker.create_dist_init_method

    @functools.wraps(upstream)
    def create_dist_init_method(self) -> str:
        folder = os.environ.get(FOLDER)
        return f"file://{folder}/engine-{os.getpid()}" if folder else upstream(self)

    worker.create_dist_init_method = create_dist_init_method
