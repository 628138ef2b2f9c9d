"""Settings of every process of a run, with GPUs or without. `install` is called in every Ray
worker, through Ray's worker_process_setup_hook."""

from __future__ import annotations

import os

from r3_openrlhf.machine.after_import import patch_after_import
from r3_openrlhf.machine.ports import free_port

ENVIRONMENT = {
    # torch's own is /tmp/torchinductor_USER (torch/_inductor/runtime/cache_dir_utils.py), which
    # another user may make first, and what it finds there it unpickles and runs
    "TORCHINDUCTOR_CACHE_DIR": os.path.expanduser("~/.cache/torchinductor"),
    # nothing is reported to anybody
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
_installed = False


def set_environment() -> None:
    """In this process, unless the user has set it. torch makes its directory at first use."""
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})


def install() -> None:
    """Harmless twice."""
    global _installed
    if not _installed:
        _installed = True
        patch_after_import({"openrlhf.trainer.ray.launcher": _patch_free_port})


def _patch_free_port(module) -> None:
    """trainer/ray/launcher.py:45 asks the kernel for an ephemeral port and closes it; another
    process can get it before it is used. Ports below the ephemeral range are never handed out."""
    module.BaseDistributedActor._get_free_port = staticmethod(free_port)
