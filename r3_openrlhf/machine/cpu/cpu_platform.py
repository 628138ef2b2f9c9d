"""The changes that let OpenRLHF 0.11.2 and vLLM 0.29 run without a GPU. On only without CUDA.

`install()` runs in the driver and, through Ray's worker_process_setup_hook, in every Ray worker.
Nothing in site-packages is edited: torch.cuda's device queries answer "cpu", and a few upstream
names are replaced right after import. Three replacements guard against failures that are silent
upstream; they are marked SILENT. Each line names its upstream place (paths below openrlhf/ unless
said otherwise).
"""

import functools
from types import SimpleNamespace

from wrapt import register_post_import_hook

from r3_openrlhf.machine import every_process

ENVIRONMENT = every_process.ENVIRONMENT | {
    "DS_ACCELERATOR": "cpu",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it would bind to cores in use
    "TORCHDYNAMO_DISABLE": "1",  # models/utils.py:compute_entropy; not worth it
}
WORKER_EXTENSION = "r3_openrlhf.machine.cpu.vllm_worker.CpuWorkerWrap"
KV_CACHE_BYTES = 256 * 2**20  # of an engine


def is_needed() -> bool:
    """Return True where torch sees no CUDA device."""
    import torch

    return not torch.cuda.is_available()


@functools.cache  # harmless twice
def install() -> None:
    """Let this process run the stack without CUDA; with it, every_process."""
    every_process.install()
    if not is_needed():
        return
    every_process.set_environment(ENVIRONMENT)
    import torch

    cuda = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")  # trainer/ray/ppo_actor.py:148,171,627
    cuda.set_device = lambda *args, **kwargs: None  # utils/deepspeed/deepspeed.py:97
    cuda.synchronize = lambda *args, **kwargs: None  # launcher.py:65 ppo_actor.py:605
    cuda.current_stream = lambda *args, **kwargs: None  # ppo_actor.py:436
    for name, change in PATCHES.items():
        register_post_import_hook(change, name)


def _patch_attention(module) -> None:
    """cli/train_ppo_ray.py:704 sets attn_implementation to flash_attention_2 whenever samples are
    packed; transformers' sdpa reads the same packed position ids and masks between sequences."""
    check = module.PreTrainedModel._check_and_adjust_attn_implementation

    def without_flash_attention(self, attn_implementation, *args, **kwargs):
        sdpa = "flash" in (attn_implementation or "")
        return check(self, "sdpa" if sdpa else attn_implementation, *args, **kwargs)

    module.PreTrainedModel._check_and_adjust_attn_implementation = without_flash_attention


def _patch_zero3_gather(module) -> None:
    """SILENT: deepspeed/runtime/zero/partition_parameters.py:2082 launches a gather per parameter,
    waits for the last. NCCL runs them in order; gloo does not: an earlier one overwrites loaded
    weights, and one load in ten of a model with biases left garbage in a layer."""
    dist = module.dist
    gather = dist.all_gather_into_tensor

    def all_gather_into_tensor(*args, **kwargs):
        handle = gather(*args, **kwargs)
        if handle is not None:
            handle.wait()
        return handle

    dist.all_gather_into_tensor = all_gather_into_tensor


def _patch_deepspeed_strategy(module) -> None:
    """utils/deepspeed/deepspeed.py:106 builds a mesh of "cuda" devices."""
    init_device_mesh = module.init_device_mesh
    module.init_device_mesh = lambda device, *args, **kwargs: init_device_mesh(
        "cpu", *args, **kwargs
    )


def _patch_replay_buffer(module) -> None:
    """trainer/ppo_utils/replay_buffer.py:40 formats the current device into "cuda:{index}".
    Only this module's torch answers otherwise: other threads use torch.cuda at the same time."""
    torch = module.torch
    module.torch = SimpleNamespace(
        **{**vars(torch), "device": lambda name: torch.device("cpu")}
    )


def _patch_weight_sync_group(module) -> None:
    """SILENT: utils/distributed_util.py:14. Without NCCL vLLM's PyNccl disables itself, `broadcast`
    returns at once and the engine loads uninitialised memory."""
    module.stateless_init_process_group = GlooBroadcaster


class GlooBroadcaster:
    """`.broadcast(tensor, src, stream)` as vLLM's PyNcclCommunicator, over stateless gloo."""

    def __init__(self, host: str, port: int, rank: int, world_size: int, device=None) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self.group = stateless_init_torch_distributed_process_group(
            host, port, rank, world_size, backend="gloo"
        )

    def broadcast(self, tensor, src: int = 0, stream=None) -> None:
        """Every rank has rank `src`'s tensor at return; `stream` is for CUDA and left alone."""
        import torch
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        buffer = tensor.detach().contiguous()
        self.group.broadcast([buffer.view(-1).view(torch.uint8)], options).wait()  # any dtype
        if buffer.data_ptr() != tensor.data_ptr():
            tensor.copy_(buffer)


PATCHES = {
    "transformers.modeling_utils": _patch_attention,
    "deepspeed.runtime.zero.partition_parameters": _patch_zero3_gather,
    "openrlhf.utils.deepspeed.deepspeed": _patch_deepspeed_strategy,
    "openrlhf.trainer.ppo_utils.replay_buffer": _patch_replay_buffer,
    "openrlhf.utils.distributed_util": _patch_weight_sync_group,
}
