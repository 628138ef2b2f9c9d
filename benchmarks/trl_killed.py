"""R3Trainer in an environment that has only the extra `trl`: a run that is killed after a checkpoint and resumed.

    python -m venv /tmp/trl && /tmp/trl/bin/pip install torch==2.13.0 '.[trl]'
    PATH=/tmp/trl/bin:$PATH python benchmarks/trl_killed.py /tmp/trl_killed

Twelve steps of a tiny model on a CPU, a checkpoint every four. SIGKILL comes in step 10; nothing is right from step 7 on, so
that the steps after the checkpoint recall."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig

from r3_openrlhf import R3
from r3_openrlhf.trl import R3Trainer

WORDS = [*"0123456789+=", "<pad>", "<eos>"]
SIZES = dict(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
)


def tokenizer():
    words = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>")
    )
    words.pre_tokenizer, words.decoder = (
        pre_tokenizers.Split(Regex("."), "isolated"),
        decoders.Fuse(),
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def accuracy(completion_ids, trainer_state, **_):
    return [
        float(sum(ids) % 4 == 0 and trainer_state.global_step < 6) for ids in completion_ids
    ]


class Kill(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **_):
        if state.global_step == 9:
            os.kill(os.getpid(), signal.SIGKILL)


def train(model: str, directory: Path, mode: str) -> None:
    torch.manual_seed(0)
    sizes = dict(
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=3,
        learning_rate=0.01,
    )
    problems = [f"{a}+{b}=" for a in range(4) for b in range(2)]
    trainer = R3Trainer(
        model=model,
        processing_class=tokenizer(),
        reward_funcs=accuracy,
        args=GRPOConfig(
            str(directory),
            max_steps=12,
            save_steps=4,
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            bf16=False,
            **sizes,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": problem, "uid": problem} for problem in problems]
        ),
        r3=R3({"replay": {"k": 2}}, seed=0),
        callbacks=[Kill()] if mode == "kill" else None,
    )
    trainer.train(resume_from_checkpoint=mode == "resume" or None)
    lines = [
        {key: line[key] for key in line if "time" not in key}
        for line in trainer.state.log_history[:-1]
    ]
    (directory / "log.json").write_text(json.dumps(lines))


def main(directory: Path) -> None:
    config = Qwen2Config(
        vocab_size=len(WORDS), initializer_range=0.5, max_position_embeddings=2048, **SIZES
    )
    torch.manual_seed(1)
    Qwen2ForCausalLM(config).save_pretrained(directory / "model")
    codes = [
        subprocess.run(
            [sys.executable, __file__, directory, name, mode], capture_output=True
        ).returncode
        for name, mode in (("whole", "train"), ("killed", "kill"), ("killed", "resume"))
    ]
    whole, killed = (
        json.loads((directory / name / "log.json").read_text()) for name in ("whole", "killed")
    )
    heavy = [name for name in ("ray", "openrlhf", "vllm", "deepspeed") if name in sys.modules]
    print("exit codes", codes, "imported:", heavy or "none of ray, openrlhf, vllm, deepspeed")
    print("recalled in steps 9 to 12:", [line["r3/replay/recalled"] for line in whole[8:]])
    print(
        "log lines that differ:",
        sum(one != other for one, other in zip(whole, killed, strict=True)),
        "of",
        len(whole),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("run", nargs="*", help="name and mode of one run: train, kill, resume")
    given = parser.parse_args()
    if given.run:
        train(f"{given.directory}/model", given.directory / given.run[0], given.run[1])
    else:
        main(given.directory)
