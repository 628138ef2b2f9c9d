"""Importing OpenRLHF needs flash-attn's helpers; where there is no CUDA the CPU platform provides them."""

import importlib.util

import pytest

if importlib.util.find_spec("openrlhf") is not None:
    from r3_openrlhf.openrlhf_adapter import cpu_platform

    cpu_platform.install()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Directory of a model of a few thousand parameters, far from uniform, for tests.openrlhf_adapter.mixed_rows."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from tests.openrlhf_adapter.mixed_rows import VOCAB

    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return str(path)
