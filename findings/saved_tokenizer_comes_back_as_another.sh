#!/bin/bash
# One would guess: a tokenizer saved with save_pretrained and loaded from that folder gives the same tokens; tokenizer.json
#   holds all of its rules.
# Seen: transformers 5.17.0 (and 5.15.0, which OpenRLHF 0.11.2 pins) builds the class that config.json or
#   tokenizer_config.json names and takes only vocabulary and merges from tokenizer.json. Beside a qwen2 model other pieces
#   come out ("1234" falls apart). A byte-level tokenizer labelled LlamaTokenizerFast, the label of the Llama models
#   distilled from R1, loses every space and line break: decode(encode(x)) is x without them. No warning in either case.
# Where: transformers/models/auto/tokenization_auto.py (which class), models/llama/tokenization_llama.py and
#   models/qwen2/tokenization_qwen2.py (`__init__` writes its own pre-tokenizer).
# Why it matters: an engine that reads tokenizer.json itself and a trainer that uses AutoTokenizer see different tokens for
#   one prompt; rewards fall, log-probs do not match, and the folder looks right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_HOME="$folder/hub" HF_HUB_OFFLINE=1
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq transformers==5.17.0 tokenizers==0.23.3

cat >"$folder/seen.py" <<'PY'
import json
import sys
from pathlib import Path

import tokenizers
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

transformers.logging.set_verbosity_error()
print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__)
TEXT = "x = 1234\n\n  y = 5"

rules = Tokenizer(models.BPE())
rules.decoder = decoders.ByteLevel()
rules.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(r"\d+|\s+|\w+|[^\d\s\w]+"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
)
trainer = trainers.BpeTrainer(
    vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<s>", "</s>", "<unk>"]
)
rules.train_from_iterator([TEXT] * 10, trainer)
saved = transformers.PreTrainedTokenizerFast(tokenizer_object=rules, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
expected = saved.encode(TEXT, add_special_tokens=False)
assert saved.decode(expected) == TEXT


def loaded(model_type, label):
    place = Path(sys.argv[1]) / f"{model_type}-{label}"
    saved.save_pretrained(place)
    (place / "config.json").write_text(json.dumps({"model_type": model_type}))
    settings = json.loads((place / "tokenizer_config.json").read_text())
    if label is not None:
        settings["tokenizer_class"] = label
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    again = transformers.AutoTokenizer.from_pretrained(place)
    ids = again.encode(TEXT, add_special_tokens=False)
    print(f"model {model_type:8} label {label!s:19} -> {type(again).__name__:17} same: {ids == expected!s:5} {again.decode(ids)!r}")
    return ids, again.decode(ids)


print("saved:", saved.convert_ids_to_tokens(expected))
assert loaded("mistral", None) == (expected, TEXT)
assert loaded("llama", None) == (expected, TEXT)
ids, text = loaded("qwen2", None)
assert ids != expected and text == TEXT
ids, text = loaded("llama", "LlamaTokenizerFast")
assert text == "x=1234y=5"
PY
"$folder/venv/bin/python" "$folder/seen.py" "$folder/first"
"$folder/venv/bin/pip" install -qq transformers==5.15.0 tokenizers==0.22.2
"$folder/venv/bin/python" "$folder/seen.py" "$folder/second"
