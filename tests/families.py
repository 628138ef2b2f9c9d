"""Stand-ins for public model families: the special tokens and the shape of their chat templates, with a vocabulary of bytes.

A directory as a hub has it (no weights but a file of none): config.json, tokenizer.json, tokenizer_config.json,
generation_config.json. The templates are shortened; what they put around a turn is as published.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_IM = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n%s{% endif %}"
)
_R1 = (
    "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>"
    "{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
_R1_TOKENS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
_LLAMA = (
    "<|begin_of_text|>{% set date = strftime_now('%d %b %Y') %}<|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ date }}"
    "<|eot_id|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
_GEMMA = (
    "<bos>{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_QWEN3 = "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"


def _im(behind: str = "") -> str:
    return _IM.replace("%s", behind)


@dataclass(frozen=True)
class Family:
    kind: str  # model_type
    eos: str
    tokens: tuple[str, ...]
    template: str | None
    bos: str | None = None
    adds_bos: bool = False
    ends: tuple[str, ...] = ()  # of generation_config.json; () writes none


FAMILIES = {
    "Qwen2.5-Instruct": Family(
        "qwen2", "<|im_end|>", ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), _im(), ends=("<|im_end|>", "<|endoftext|>")
    ),
    "Qwen2.5 (base, with its template)": Family(
        "qwen2", "<|endoftext|>", ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), _im(), ends=("<|endoftext|>",)
    ),
    "Qwen3": Family("qwen3", "<|im_end|>", ("<|im_start|>", "<|im_end|>"), _im(_QWEN3), ends=("<|im_end|>",)),
    "Qwen3-Thinking": Family("qwen3", "<|im_end|>", ("<|im_start|>", "<|im_end|>"), _im("<think>\n"), ends=("<|im_end|>",)),
    "QwQ": Family("qwen2", "<|im_end|>", ("<|im_start|>", "<|im_end|>"), _im("<think>\n"), ends=("<|im_end|>",)),
    "DeepSeek-R1-Distill-Qwen": Family("qwen2", _R1_TOKENS[1], _R1_TOKENS, _R1, _R1_TOKENS[0], True, (_R1_TOKENS[1],)),
    "DeepSeek-R1-Distill-Llama": Family("llama", _R1_TOKENS[1], _R1_TOKENS, _R1, _R1_TOKENS[0], True, (_R1_TOKENS[1],)),
    "Llama-3.x-Instruct": Family(
        "llama",
        "<|eot_id|>",
        ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        _LLAMA,
        "<|begin_of_text|>",
        True,
        ("<|eot_id|>",),
    ),
    "Llama-3.x (base)": Family("llama", "<|end_of_text|>", ("<|begin_of_text|>", "<|end_of_text|>"), None, "<|begin_of_text|>", True),
    "Mistral-Instruct": Family("mistral", "</s>", ("<s>", "</s>"), _MISTRAL, "<s>", True),
    "Mistral (base)": Family("mistral", "</s>", ("<s>", "</s>"), None, "<s>", True),
    "Gemma-it": Family(
        "gemma2", "<eos>", ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), _GEMMA, "<bos>", True, ("<eos>", "<end_of_turn>")
    ),
    "Gemma (base)": Family("gemma2", "<eos>", ("<bos>", "<eos>"), None, "<bos>", True),
    "SmolLM2-Instruct": Family("llama", "<|im_end|>", ("<|im_start|>", "<|im_end|>"), _im(), "<|im_start|>"),
    "SmolLM3": Family(
        "smollm3", "<|im_end|>", ("<|im_start|>", "<|im_end|>"),
        "<|im_start|>system\nToday Date: {{ strftime_now('%d %B %Y') }}<|im_end|>\n" + _im(_QWEN3), ends=("<|im_end|>",),
    ),
    "Phi-3.5": Family(
        "phi3", "<|endoftext|>", ("<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"), _PHI, ends=("<|endoftext|>", "<|end|>")
    ),
}  # fmt: skip


def write_model(
    directory: Path, family: Family, *, tokenizer_class: str = "PreTrainedTokenizerFast", rows: int = 320
) -> Path:
    """The directory of a stand-in. rows: embeddings that config.json names."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = ["<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(family.tokens))
    if family.adds_bos:
        bos = (family.bos, tokenizer.token_to_id(family.bos))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{family.bos} $A", special_tokens=[bos])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    ids = [tokenizer.token_to_id(token) for token in family.ends]
    files = {
        "config.json": {
            "model_type": family.kind,
            "vocab_size": rows,
            "eos_token_id": tokenizer.token_to_id(family.eos),
        },
        "tokenizer_config.json": {
            "tokenizer_class": tokenizer_class,
            "eos_token": family.eos,
            **({"bos_token": family.bos} if family.bos else {}),
            **({"chat_template": family.template} if family.template else {}),
        },
        **({"generation_config.json": {"eos_token_id": ids}} if ids else {}),
    }
    for name, values in files.items():
        (directory / name).write_text(json.dumps(values, ensure_ascii=False))
    (directory / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    return directory


def load_tokenizer(directory: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
