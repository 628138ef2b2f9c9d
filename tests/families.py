"""Stand-ins for public model families: the special tokens and the shape of their chat templates, with a vocabulary of bytes.

A directory as a hub has it (no weights but a file of none): config.json, tokenizer.json, tokenizer_config.json,
generation_config.json. The templates are shortened; what they put around a turn is as published.
"""

import json
from dataclasses import dataclass
from pathlib import Path


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
    name: Family(**fields | {"tokens": tuple(fields["tokens"]), "ends": tuple(fields["ends"])})
    for name, fields in json.loads(
        Path(__file__).with_name("families.json").read_text(encoding="utf-8")
    ).items()
}


def write_model(
    directory: Path,
    family: Family,
    *,
    tokenizer_class: str = "PreTrainedTokenizerFast",
    rows: int = 320,
) -> Path:
    """The directory of a stand-in. rows: embeddings that config.json names."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = ["<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(family.tokens))
    if family.adds_bos:
        bos = (family.bos, tokenizer.token_to_id(family.bos))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[bos]
        )
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
