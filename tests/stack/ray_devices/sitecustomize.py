"""For every process of a run: vLLM's CPU platform with Ray's bookkeeping GPUs as its devices.

vllm/v1/executor/ray_utils.py:581 refuses a platform without them, so an engine of two ranks needs CUDA otherwise.
Python imports this module at its start from a folder of PYTHONPATH; it also reaches the engine's own process, which
Ray's hook for its workers does not.
"""

from wrapt import register_post_import_hook


def use_gpus_of_ray(module):
    module.CpuPlatform.ray_device_key = "GPU"
    module.CpuPlatform.ray_noset_device_env_vars = ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]


register_post_import_hook(use_gpus_of_ray, "vllm.platforms.cpu")
