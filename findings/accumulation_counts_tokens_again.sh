#!/bin/bash
# One would guess: four rows in one batch, or one by one with gradient_accumulation_steps=4, are the same step; the trainer
#   divides by the number of trained tokens, and trl's GKD indeed gives the same gradient for both.
# Seen: trl 1.16.0 with transformers 5.17.0: GOLD's loss and gradient are a half with two accumulation steps, a quarter with
#   four. The reported loss shrinks along, so the run seems to do better.
# Where: trl/experimental/gold/gold_trainer.py: its sampler hands out the whole generation batch once per accumulation step,
#   and transformers/trainer.py (`get_batch_samples`) adds up the labels of all these copies: 48 tokens instead of 12.
# Why it matters: memory decides how many accumulation steps a machine needs, so two machines train with different
#   gradients and loss curves that cannot be compared; max_grad_norm and any loss added to it lose their meaning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_HOME="$folder/hub" HF_HUB_OFFLINE=1
python3.11 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install -qq)
"${pip[@]}" torch==2.13.0+cpu 2>/dev/null || "${pip[@]}" torch==2.13.0
"${pip[@]}" trl==1.16.0 transformers==5.17.0 tokenizers==0.23.3 accelerate==1.15.0 datasets==5.2.0

cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'PY' || { cat "$folder/log" >&2; exit 1; }
import datasets
import tokenizers
import torch
import transformers
import trl
from tokenizers import decoders, models, pre_tokenizers, trainers
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.gold import GOLDConfig, GOLDTrainer

print("trl", trl.__version__, "transformers", transformers.__version__)
rules = tokenizers.Tokenizer(models.BPE())
rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
rules.decoder = decoders.ByteLevel()
special = ["<pad>", "<bos>", "<end>"]
rules.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="<pad>", eos_token="<end>")
tokenizer.chat_template = (
    "{% for turn in messages %}[{{ turn.role }}]{{ turn.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
sums = [
    {"messages": [{"role": "user", "content": f"{a}+2="}, {"role": "assistant", "content": str(a + 2)}]} for a in range(4)
]


def tiny_model(seed):
    torch.manual_seed(seed)
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, initializer_range=0.2,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )


def one_step(trainer_class, config_class, rows, accumulation):
    trainer = trainer_class(
        tiny_model(0),
        teacher_model=tiny_model(1),
        args=config_class(
            output_dir="out", lmbda=0.0, per_device_train_batch_size=rows, gradient_accumulation_steps=accumulation,
            max_steps=1, optim="sgd", learning_rate=1e-6, max_grad_norm=1e9, logging_steps=1, report_to="none",
            save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_list(sums),
        processing_class=tokenizer,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    step = next(entry for entry in trainer.state.log_history if "grad_norm" in entry)
    loss, norm = float(step["loss"]), float(step["grad_norm"])
    print(f"{trainer_class.__name__:11} {rows} rows x {accumulation} steps: loss {loss:.5f}, gradient norm {norm:.5f}")
    return loss, norm


SPLITS = ((4, 1), (2, 2), (1, 4))
gkd = [one_step(GKDTrainer, GKDConfig, *split) for split in SPLITS]
gold = [one_step(GOLDTrainer, GOLDConfig, *split) for split in SPLITS]
for part in (0, 1):
    for (rows, accumulation), right, shrunk in zip(SPLITS, gkd, gold):
        assert abs(right[part] / gkd[0][part] - 1) < 1e-3
        assert abs(shrunk[part] * accumulation / gold[0][part] - 1) < 1e-3
PY
