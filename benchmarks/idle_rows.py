"""Measure what rows without a gradient cost: the real policy update and log-prob pass on one drawn batch, all rows
passing through the model and without idle ones, in turn.

    python benchmarks/idle_rows.py                    # half of the groups collapsed, and none
    python benchmarks/idle_rows.py --rounds 9 --groups 32 --tokens 512

A collapsed group has advantage 0 on each of its rows (train.skip_zero_advantage). The model has random weights;
the trainer, its DeepSpeed engine and the layout of rows are the stack's, on one rank. Targets with half of the groups
collapsed: the update takes at most .55 of all rows', the pass at most .6; with none collapsed at most 1.02.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # runs from a checkout that is not installed

from r3_openrlhf.machine.cpu import cpu_platform  # noqa: E402

cpu_platform.install()

import torch  # noqa: E402
from openrlhf.models import Actor  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.utils import get_strategy  # noqa: E402

from r3_openrlhf.config import R3Config  # noqa: E402
from r3_openrlhf.method.core.losses import PPO, LossSettings  # noqa: E402
from r3_openrlhf.stack.experience_maker import R3ExperienceMaker  # noqa: E402
from r3_openrlhf.stack.policy_actor import logprobs_and_entropy  # noqa: E402
from r3_openrlhf.stack.policy_update import R3ActorTrainer  # noqa: E402
from r3_openrlhf.stack.read_rows import drawn, passing  # noqa: E402
from r3_openrlhf.stack.upstream_parser import check_arguments  # noqa: E402

VOCABULARY = 1024
PROMPT_TOKENS = 32
MICRO_BATCH = 8
SHARES = (0.5, 0.0)  # of the groups that are collapsed


def save_model(path: Path) -> None:
    """Write a Qwen2 of one million parameters with random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)


def trainer_of(model: Path, rows: int) -> R3ActorTrainer:
    """Make the stack's trainer of the policy on one rank, with learning rate 0."""
    flags = {
        "actor.model_name_or_path": model,
        "data.prompt_dataset": "unused",
        "reward.remote_url": "unused",
        "actor.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "algo.advantage.estimator": "group_norm",
        "rollout.batch_size": rows // 8,
        "rollout.n_samples_per_prompt": 8,
        "rollout.micro_batch_size": MICRO_BATCH,
        "train.batch_size": rows,
        "train.micro_batch_size": MICRO_BATCH,
        "ds.zero_stage": 2,
        "actor.adam.lr": 0.0,
    }
    arguments = [part for key, value in flags.items() for part in (f"--{key}", str(value))]
    strategy = get_strategy(check_arguments([*arguments, "--train.colocate_all"]))
    strategy.setup_distributed()
    actor = Actor(
        str(model), attn_implementation="sdpa", ds_config=strategy.get_ds_train_config()
    )
    section = strategy.args.actor
    optimizer = {
        "optim": "adam",
        "muon": vars(section.muon),
        "adam": vars(section.adam),
        "lr_scheduler": "constant",
        "lr_warmup_ratio": 0.0,
        "max_norm": 0.0,
        "scheduler_steps": 1000,
    }
    actor, optimizer, scheduler = strategy.prepare((actor, optimizer))
    trainer = R3ActorTrainer(
        strategy,
        actor,
        ema_model=None,
        actor_optim=optimizer,
        actor_scheduler=scheduler,
        micro_train_batch_size=MICRO_BATCH,
        vllm_engines=None,
        dataloader_pin_memory=False,
    )
    trainer.use_loss(PPO, LossSettings())
    return trainer


def experience_of(tokens: int, draw: random.Random) -> Experience:
    """Draw one row: a prompt of PROMPT_TOKENS and a response of `tokens`."""
    length = PROMPT_TOKENS + tokens
    mask = torch.zeros(1, length - 1, dtype=torch.long)
    mask[0, PROMPT_TOKENS - 1 :] = 1
    ids = [draw.randint(1, VOCABULARY - 1) for _ in range(length)]
    return Experience(
        sequences=torch.tensor([ids]),
        attention_mask=torch.ones(1, length, dtype=torch.long),
        action_mask=mask,
        rollout_log_probs=torch.zeros(1, length - 1),
        prompts=[""],
        labels=[""],
        images=[None],
        mm_train_inputs=[None],
        rewards=torch.zeros(1),
        scores=torch.zeros(1),
        response_length=torch.tensor([tokens]),
        truncated=torch.tensor([False]),
        total_length=torch.tensor([float(length)]),
        info={"reward": torch.zeros(1)},
    )


def maker_of(args: argparse.Namespace) -> R3ExperienceMaker:
    """Make the layout of rows in micro-batches, without the groups of remote models behind it."""
    maker = R3ExperienceMaker.__new__(R3ExperienceMaker)
    maker.config = R3Config(run_dir="unused")
    maker.initial_model_group = maker.critic_model_group = None
    maker.args, maker.kl_ctl = args, SimpleNamespace(value=0.0)
    maker.tokenizer = SimpleNamespace(pad_token_id=0)
    return maker


def seconds_of_pass(trainer: R3ActorTrainer, batches: list[Experience]) -> float:
    """Run the policy on these micro-batches and set their log-probs. Returns processor seconds."""
    started = time.process_time()
    for batch in batches:
        with torch.no_grad():
            logprobs, _, _ = logprobs_and_entropy(
                trainer.actor, batch.sequences, batch.action_mask, batch.attention_mask
            )
        batch.action_log_probs, batch.kl = logprobs, torch.zeros_like(logprobs)
    return time.process_time() - started


def seconds_of_update(
    trainer: R3ActorTrainer, batches: list[Experience], *, skips: bool
) -> float:
    """Make one update on these micro-batches. Returns processor seconds."""
    trainer.skips_idle = skips
    for batch in batches:
        trainer.replay_buffer.append(batch)
    started = time.process_time()
    trainer.ppo_train(0.0)
    seconds = time.process_time() - started
    trainer.replay_buffer.clear()
    return seconds


def measure(
    trainer: R3ActorTrainer, *, groups: int, tokens: int, share: float, rounds: int
) -> dict:
    """Time both sides `rounds` times on the same batch. Returns the medians, processor seconds, and ratios."""
    draw = random.Random(f"{groups}/{tokens}/{share}")
    lengths = [draw.randint(tokens // 2, tokens) for _ in range(8 * groups)]
    idle = {row for row in range(8 * groups) if row // 8 < round(share * groups)}
    advantages = [0.0 if row in idle else draw.choice([-1.0, 1.0]) for row in range(8 * groups)]
    maker = maker_of(trainer.args)
    rows = [
        SimpleNamespace(advantage=value, reward=value, token_advantages=None)
        for value in advantages
    ]
    seconds: dict[str, list[float]] = {
        f"{what}, {side}": [] for what in ("pass", "update") for side in ("all", "fewer")
    }
    totals = [PROMPT_TOKENS + length for length in lengths]
    unread = idle - drawn(idle, seed=0, step=0) if idle else set()
    for number in range(rounds + 1):
        for side in ("all", "fewer") if number % 2 else ("fewer", "all"):
            samples = [experience_of(length, draw) for length in lengths]
            places = list(range(len(samples)))
            if side == "fewer" and unread:
                places = passing(unread, totals, ranks=1)
            part = maker.split_rollout_samples([samples[place] for place in places])
            of_pass = seconds_of_pass(trainer, part)
            batches = maker.split_rollout_samples(samples)
            seconds_of_pass(trainer, batches)
            maker._set_advantages(batches, rows)
            of_update = seconds_of_update(trainer, batches, skips=side == "fewer")
            if number:  # the first round warms up
                seconds[f"pass, {side}"].append(of_pass)
                seconds[f"update, {side}"].append(of_update)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return medians | {
        "pass, ratio": medians["pass, fewer"] / medians["pass, all"],
        "update, ratio": medians["update, fewer"] / medians["update, all"],
    }


def main() -> None:
    """Print a line for each share of collapsed groups."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--groups", type=int, default=16, help="of eight responses")
    parser.add_argument("--tokens", type=int, default=192, help="of the longest response")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="also write every number as JSON")
    arguments = parser.parse_args()
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        trainer = trainer_of(Path(folder), 8 * arguments.groups)
        found = {}
        for share in SHARES:
            found[share] = measure(
                trainer,
                groups=arguments.groups,
                tokens=arguments.tokens,
                share=share,
                rounds=arguments.rounds,
            )
            line = ", ".join(f"{name} {value:.3f}" for name, value in found[share].items())
            print(f"{share:.0%} of the groups collapsed: {line}", flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps({str(key): one for key, one in found.items()}))


if __name__ == "__main__":
    main()
