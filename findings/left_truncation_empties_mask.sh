#!/bin/bash
# One would guess: a conversation too long for the model, shortened at its left, keeps its last turns, and
#   return_assistant_tokens_mask marks the assistant's tokens among what is left.
# Seen: transformers 5.17.0 returns a mask of zeros as soon as the first assistant turn begins in the removed part, although
#   the last answer is there in full. Shortened at the right, or not at all, the mask is right.
# Where: transformers/tokenization_utils_base.py, `apply_chat_template`: the loop over the assistant's spans ends at the
#   first one whose start has no token; it expects that to be the end of the text.
# Why it matters: shortening at the left is what keeps the final answer, and TRL loads its tokenizers that way. A warm
#   start or a distillation on long solutions then trains nothing on its longest rows, and no error says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_HOME="$folder/hub" HF_HUB_OFFLINE=1
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq transformers==5.17.0 tokenizers==0.23.3 jinja2==3.1.6

"$folder/venv/bin/python" - <<'PY'
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

transformers.logging.set_verbosity_error()
print("transformers", transformers.__version__)
bytes_only = Tokenizer(models.BPE())
bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bytes_only.decoder = decoders.ByteLevel()
bytes_only.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bytes_only)
tokenizer.chat_template = (
    "{% for turn in messages %}[{{ turn.role }}]"
    "{% if turn.role == 'assistant' %}{% generation %}{{ turn.content }}{% endgeneration %}"
    "{% else %}{{ turn.content }}{% endif %}{% endfor %}"
)
conversation = [
    {"role": "user", "content": "What is 1 + 1?"},
    {"role": "assistant", "content": "It is 2."},
    {"role": "user", "content": "And 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
]


def trained_on(side, tokens):
    tokenizer.truncation_side = side
    row = tokenizer.apply_chat_template(
        conversation, return_dict=True, return_assistant_tokens_mask=True, truncation=True, max_length=tokens
    )
    marked = [token for token, mark in zip(row["input_ids"], row["assistant_masks"]) if mark]
    text, kept = tokenizer.decode(marked), tokenizer.decode(row["input_ids"])
    print(f"{tokens:3} tokens, cut at the {side:5}: kept {kept!r}\n{'':30} marked {text!r}")
    return kept, text


assert trained_on("left", 200)[1] == "It is 2.It is 4."
assert trained_on("right", 45)[1] == "It is 2."
kept, marked = trained_on("left", 40)
assert kept.endswith("[assistant]It is 4.") and marked == ""
PY
