"""Importing OpenRLHF needs flash-attn's helpers; where there is no CUDA the CPU platform provides them."""

import importlib.util

import pytest

if importlib.util.find_spec("openrlhf") is not None:
    from r3_openrlhf.machine.cpu import cpu_platform

    cpu_platform.install()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    from tests.stack.mixed_rows import save_model

    return save_model(tmp_path_factory.mktemp("model"))
