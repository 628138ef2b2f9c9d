"""A platform and a sampler for verl 0.9.1 without a GPU, for two steps of a tiny model (tests/ports/test_verl_steps.py).

verl has a registry for each of them, and none of its own entries runs on a CPU: its platforms are CUDA, ROCm and Ascend
(verl/plugin/platform), and its samplers are servers of vLLM, SGLang and TensorRT-LLM (verl/workers/rollout/replica.py).
Trainer, workers, FSDP, losses, agent loop, rewards and TransferQueue are verl's."""
