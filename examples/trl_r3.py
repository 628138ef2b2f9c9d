"""R³ in TRL: SmolLM2 learns to calculate, on one GPU.

    pip install 'r3_openrlhf[trl]'
    python examples/trl_r3.py --steps 200
    python examples/trl_r3.py --steps 400 --resume       # from the newest checkpoint, with its history

Ten lines are the trainer; the rest are problems and a reward."""

import argparse
import random
import re

from datasets import Dataset
from trl import GRPOConfig

from r3_openrlhf import R3
from r3_openrlhf.trl import R3Trainer


def problems(count: int) -> Dataset:
    draw, rows = random.Random(0), []
    for number in range(count):
        a, b, c = (draw.randint(2, 99) for _ in range(3))
        text = f"What is {a} + {b} * {c}? End with the number in \\boxed{{}}."
        rows.append(
            {
                "uid": str(number),
                "prompt": [{"role": "user", "content": text}],
                "answer": str(a + b * c),
            }
        )
    return Dataset.from_list(rows)


def correct(completions, answer, **_) -> list[float]:
    boxes = [
        re.findall(r"\\boxed\{(-?\d+)\}", completion[0]["content"])
        for completion in completions
    ]
    return [float(box[-1:] == [right]) for box, right in zip(boxes, answer, strict=True)]


def train(model: str, *, steps: int, resume: bool = False, **options) -> R3Trainer:
    args = dict(
        output_dir="runs/trl_r3",
        max_steps=steps,
        save_steps=50,
        logging_steps=1,
        report_to="none",
    )
    args |= dict(
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=256,
        learning_rate=1e-6,
    )
    trainer = R3Trainer(
        model=model,
        reward_funcs=correct,
        args=GRPOConfig(**args | options),
        train_dataset=problems(512),
        r3=R3({"replay": {"k": 2}}, seed=0),  # the other settings keep their defaults
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-360M-Instruct")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    if given.steps < 1:  # TRL would train three epochs
        parser.error(f"--steps is {given.steps}; use 1 or more")
    train(given.model, steps=given.steps, resume=given.resume)
