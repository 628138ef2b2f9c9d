"""What the processes of a run import, each a whole tree. The fork server does it for all of them."""

from __future__ import annotations

import importlib

from r3_openrlhf.cpu_stack import cpu_platform

cpu_platform.install()
importlib.import_module("cpuinfo").get_cpu_info()
for _name in (
    "r3_openrlhf.openrlhf_adapter.policy_actor",
    "r3_openrlhf.openrlhf_adapter.rollout_engine",
    "r3_openrlhf.openrlhf_adapter.trainer",
    "r3_openrlhf.cpu_stack.vllm_worker",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
):
    importlib.import_module(_name)
