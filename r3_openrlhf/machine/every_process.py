"""Settings of every process of a run, with GPUs or without. `install` is called in every Ray
worker, through Ray's worker_process_setup_hook."""

import functools
import hashlib
import os
import socket
from collections.abc import Mapping

from wrapt import register_post_import_hook

from r3_openrlhf.machine import flash_attention, stores
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
# environment variable of a run: "0" where no code of its model may run
MODEL_CODE = "R3_MODEL_CODE"


def set_environment(values: Mapping[str, str] = ENVIRONMENT) -> None:
    """Set variables of this process that the user has not set. torch makes its directory at first use."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


@functools.cache  # harmless twice
def install() -> None:
    """Register what changes modules of others, in this process."""
    # nodes that share a home directory would meet each other's kernels half written, on slow locks
    os.environ.setdefault(
        "TRITON_CACHE_DIR", os.path.expanduser(f"~/.triton/cache/{socket.gethostname()}")
    )
    flash_attention.stand_in()
    stores.install()
    register_post_import_hook(_ask_for_the_processor_once, "cpuinfo")
    register_post_import_hook(_patch_free_port, "openrlhf.trainer.ray.launcher")
    register_post_import_hook(_refuse_model_code, "transformers.dynamic_module_utils")
    register_post_import_hook(_separate_compile_caches, "vllm.v1.worker.gpu_worker")


def _ask_for_the_processor_once(module) -> None:
    """DeepSpeed asks three times before a rank has its optimizer (ops/op_builder/builder.py:434 and
    :496, ops/adam/cpu_adam.py:75), and py-cpuinfo starts Python for each answer, which is the same
    as long as the process lives: a second each time."""
    module.get_cpu_info = functools.cache(module.get_cpu_info)


def _patch_free_port(module) -> None:
    """trainer/ray/launcher.py:45 asks the kernel for an ephemeral port and closes it; another
    process can get it before it is used. Ports below the ephemeral range are never handed out."""
    module.BaseDistributedActor._get_free_port = staticmethod(free_port)


def _refuse_model_code(module) -> None:
    """OpenRLHF says trust_remote_code=True for everybody (models/actor.py:151, models/model.py:69 and
    :113, utils/utils.py:45, :59 and :70, trainer/ray/vllm_engine.py:232), and Transformers passes it
    on to the base model that an adapter names (models/auto/auto_factory.py:322). This is what runs
    the code in the end (dynamic_module_utils.py:266)."""
    run = module.get_class_in_module

    def run_if_trusted(class_name, module_path, **more):
        if os.environ.get(MODEL_CODE) == "0":
            raise ValueError(
                f"{module_path} is code of a model, and model.trust_remote_code is false"
            )
        return run(class_name, module_path, **more)

    module.get_class_in_module = run_if_trusted


def _separate_compile_caches(module) -> None:
    """vllm/compilation/backends.py:1068 and decorators.py:546 keep compiled graphs by rank, without the
    device (vllm-project/vllm issue 38962): an engine of several GPUs must load none of other GPUs."""
    init = module.Worker.init_device

    def init_device(self):
        if self.parallel_config.world_size > 1:
            gpus = f"{socket.gethostname()} {os.environ.get('CUDA_VISIBLE_DEVICES')}"  # of all its ranks here
            folder = hashlib.sha256(gpus.encode()).hexdigest()[:12]
            os.environ["VLLM_CACHE_ROOT"] = os.path.join(
                module.envs.VLLM_CACHE_ROOT, "gpus", folder
            )
        init(self)

    module.Worker.init_device = init_device
