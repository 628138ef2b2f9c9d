"""Let vLLM on a CPU do what it does on GPUs alone, in every process of a run, the engine's own included.

Python imports this module at its start from a folder of PYTHONPATH; Ray's hook for its workers does not reach the engine.
"""

import sys

from wrapt import register_post_import_hook


def use_gpus_of_ray(module):
    """vllm/v1/executor/ray_utils.py:581 refuses an engine of two ranks without them. They are bookkeeping here."""
    module.CpuPlatform.ray_device_key = "GPU"
    module.CpuPlatform.ray_noset_device_env_vars = [
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    ]


def do_without_images(module):
    """vllm/model_executor/models/qwen3_vl.py:34-41 imports these for text alone; they need torchvision, which needs CUDA."""
    for name in (
        "Qwen2VLImageProcessor",
        "Qwen3VLProcessor",
        "Qwen3VLVideoProcessor",
        "smart_resize",
    ):
        setattr(module, name, object)
    sys.modules.setdefault("transformers.models.qwen2_vl.image_processing_qwen2_vl", module)


register_post_import_hook(use_gpus_of_ray, "vllm.platforms.cpu")
register_post_import_hook(do_without_images, "transformers.models.qwen2_vl")
register_post_import_hook(do_without_images, "transformers.models.qwen3_vl")
