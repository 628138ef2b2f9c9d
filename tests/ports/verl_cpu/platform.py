"""A CPU as verl's platform. Ray is told of a GPU that nobody uses, because verl's pools ask for one."""

from contextlib import nullcontext
from functools import partial
from types import ModuleType

import torch
import verl.utils.distributed as distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NO_BYTES = 0


def _device_module() -> ModuleType:
    """torch.cpu with what verl calls beside it: nothing to free, and no memory of a device."""
    module = ModuleType("cpu_device")
    for name in ("current_device", "device_count", "is_available", "set_device", "synchronize"):
        setattr(module, name, getattr(torch.cpu, name))
    module.current_stream, module.stream = torch.cpu.current_stream, torch.cpu.stream
    module.Stream = torch.cpu.Stream
    module.get_rng_state, module.set_rng_state = torch.get_rng_state, torch.set_rng_state
    module.manual_seed = module.manual_seed_all = torch.manual_seed
    module.empty_cache = module.ipc_collect = lambda: None
    for name in ("memory_allocated", "memory_reserved"):
        setattr(module, name, lambda *_: NO_BYTES)
        setattr(module, f"max_{name}", lambda *_: NO_BYTES)
    module.mem_get_info = lambda *_: (NO_BYTES, NO_BYTES)
    module.get_device_name = lambda *_: "cpu"
    return module


@PlatformRegistry.register(platform="cpu")
class Platform(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return nullcontext()

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


# verl asks for "cpu:gloo,cpu:gloo" otherwise, which names a device twice (verl/utils/distributed.py:84).
distributed.initialize_global_process_group_ray = partial(
    distributed.initialize_global_process_group_ray, backend="gloo"
)
