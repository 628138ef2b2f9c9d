"""Importing OpenRLHF needs flash-attn's helpers; where there is no CUDA the CPU platform provides them."""

import importlib.util

if importlib.util.find_spec("openrlhf") is not None:
    from r3_openrlhf.openrlhf_adapter import cpu_platform

    cpu_platform.install()
