"""Imported by tests that run the whole stack on CPUs: they skip without vLLM, and where torch sees a GPU."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
if pytest.importorskip("torch").cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)
