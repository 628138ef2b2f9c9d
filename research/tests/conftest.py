"""A model of a few thousand parameters with the lab's tokenizer: untrained, so that it says anything at all."""

import pytest
import torch

from research.sums import VOCAB_SIZE, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer()


@pytest.fixture(scope="session")
def model(tokenizer):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,  # far from uniform
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def model_dir(model, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("lab_model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)
