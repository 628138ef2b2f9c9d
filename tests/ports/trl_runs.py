"""Trainings with R3Trainer on a tiny model, and what reached TRL's loss in each.

    python -m tests.ports.trl_runs DIRECTORY      # the training of two ranks, under torchrun -> DIRECTORY/rank0.pt, rank1.pt

With learning rate 0 the model stays what it is, so that its log-probs and entropies can be computed afterwards.
"""

import os
import random
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig

from r3_openrlhf import R3, Context, HistoryStore, Rollout, Verdict
from r3_openrlhf.trl import R3Trainer

GROUP, LIMIT = 4, 3
WORDS = [*"0123456789+=", "<pad>", "<eos>"]
PAD, END = 12, 13
OFF = {
    "replay": {"enabled": False},
    "ranking": {"enabled": False},
    "reflection": {"enabled": False},
}


def tokenizer():
    """One token per character; a template that adds nothing."""
    words = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>")
    )
    words.pre_tokenizer, words.decoder = (
        pre_tokenizers.Split(Regex("."), "isolated"),
        decoders.Fuse(),
    )
    made = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    made.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return made


def save_model(directory):
    torch.manual_seed(1)
    sizes = dict(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    config = Qwen2Config(
        vocab_size=len(WORDS), initializer_range=0.5, max_position_embeddings=2048, **sizes
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return str(directory)


def stored(uid, ids, logprobs, *, verdict=Verdict.CORRECT, prompt=None, context=Context.PLAIN):
    return Rollout(
        uid=uid,
        context=context,
        prompt_ids=np.array(tokenizer()(prompt or uid)["input_ids"], dtype=np.int32),
        response_ids=np.array(ids, dtype=np.int32),
        response_logprobs=np.array(logprobs, dtype=np.float32),
        verdict=verdict,
        reward=float(verdict is Verdict.CORRECT),
        truncated=False,
        finish_reason="stop",
        policy_step=0,
        epoch=1,
    )


def scripted(rewards):
    """The reward of the n-th response to a problem, whatever it says."""

    def accuracy(completions, uid, **_):
        seen, values = Counter(), []
        for one in uid:
            values.append(rewards[one][seen[one] % GROUP])
            seen[one] += 1
        return values

    return accuracy


def settings(**sections):
    """Only these mechanisms."""
    return (
        OFF
        | {
            name: {"enabled": True} | section
            for name, section in sections.items()
            if name != "advantage"
        }
        | {name: section for name, section in sections.items() if name == "advantage"}
    )


def recorded(prompts, trainer):
    """A rollout_func: the responses of a (prompt, number in its group, step) are always the same."""
    first, rows = trainer.accelerator.process_index * len(prompts), []
    for i, prompt in enumerate(prompts):
        draw = random.Random(f"{prompt}/{(first + i) % GROUP}/{trainer.state.global_step}")
        rows.append(
            [draw.randrange(10) for _ in range(draw.choice((1, 2, LIMIT, LIMIT, LIMIT)))]
        )
        if len(rows[-1]) < LIMIT:
            rows[-1].append(END)
    ids = [tokenizer()(prompt)["input_ids"] for prompt in prompts]
    return dict(
        prompt_ids=ids, completion_ids=rows, logprobs=[[-0.1] * len(row) for row in rows]
    )


def by_content(completion_ids, **_):
    """Few are right: those whose tokens add up to a multiple of four."""
    return [float(sum(ids) % 4 == 0) for ids in completion_ids]


def fading(completion_ids, trainer_state, **_):
    """From the sixth step on nothing is right."""
    return [right * (trainer_state.global_step < 5) for right in by_content(completion_ids)]


def train(
    directory,
    rewards,
    base=R3Trainer,
    *,
    r3=None,
    history=(),
    uids=None,
    resume=None,
    column="uid",
    **options,
):
    """One training. Returns the trainer, and of each call of the loss its inputs with the vocabulary's
    log-probs at each response token."""
    log, uids = [], uids or list(rewards)

    class Recording(base):
        def _compute_loss(self, model, inputs):
            log.append(
                {key: value.clone() for key, value in inputs.items()}
                | {"step": self.state.global_step}
            )
            log[-1]["loss"] = super()._compute_loss(model, inputs)
            return log[-1]["loss"]

    own = {
        name: options.pop(name)
        for name in ("rollout_func", "peft_config", "train_dataset", "callbacks")
        if name in options
    }
    if issubclass(base, R3Trainer):
        own |= {name: options.pop(name) for name in ("correct_by", "render") if name in options}
        store = history
        if isinstance(history, tuple | list):
            store = HistoryStore.open(":memory:")
            if history:
                store.commit_step(0, 1, history)
        own["r3"] = R3(r3 or settings(), history=store)
    defaults = dict(
        max_steps=1,
        learning_rate=0.0,
        num_generations=GROUP,
        max_completion_length=LIMIT,
        logging_steps=1,
    )
    defaults |= dict(
        per_device_train_batch_size=GROUP * len(uids),
        report_to="none",
        use_cpu=True,
        bf16=False,
    )
    defaults |= dict(
        save_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        output_dir=str(directory / "run"),
    )
    own.setdefault(
        "train_dataset", Dataset.from_list([{column: uid, "prompt": uid} for uid in uids])
    )
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Recording(
            model=str(directory / "model"),
            processing_class=tokenizer(),
            args=GRPOConfig(**defaults | options),
            reward_funcs=rewards
            if callable(rewards) or isinstance(rewards, list)
            else scripted(rewards),
            **own,
        )
        trainer.remove_callback(PrinterCallback)
        try:
            trainer.train(resume_from_checkpoint=resume)
        except KeyboardInterrupt:
            return trainer, log
    trainer.model.eval()
    for inputs in log:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        width = inputs["completion_ids"].size(1)
        with torch.no_grad():
            logits = trainer.model(input_ids=ids, attention_mask=mask).logits[
                :, -width - 1 : -1
            ]
        inputs["distribution"], inputs["loss"] = logits.log_softmax(-1), inputs["loss"].detach()
    return trainer, log


def rows_of(log):
    """Every row of these losses: prompt, ids, advantage, old log-probs, and the vocabulary's log-probs at each token."""
    rows = []
    for inputs in log:
        for i in range(len(inputs["advantages"])):
            mask = inputs["completion_mask"][i].bool()
            assert mask.tolist() == sorted(mask.tolist(), reverse=True)  # padded on the right
            ids = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()]
            row = {
                "prompt": "".join(WORDS[token] for token in ids),
                "ids": inputs["completion_ids"][i][mask].tolist(),
            }
            advantage = inputs["advantages"][i]
            row |= {
                "advantage": advantage[mask].tolist() if advantage.dim() else advantage.item(),
                "distribution": inputs["distribution"][i][mask],
            }
            for name in ("old", "ref"):
                values = inputs.get(f"{name}_per_token_logps")
                row[name] = None if values is None else values[i][mask].tolist()
            rows.append(row)
    return rows


FEW = [f"{a}+{b}=" for a in range(4) for b in range(2)]
THROUGHOUT = settings(replay={"k": 1, "rehearse": {"share": 0.25}}, ranking={}, reflection={})
THROUGHOUT |= {"distill": {"coef": 0.5, "template": "{solution}+{problem}"}}


def on_ranks(directory, **options):
    """Nine steps of all mechanisms on recorded rollouts: the weights after them, metrics, and rows."""
    common = dict(
        rollout_func=recorded, max_steps=9, uids=FEW, learning_rate=0.01, r3=THROUGHOUT
    )
    trainer, log = train(directory, by_content, **common | options)
    weights = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    metrics = [
        {name: line[name] for name in line if name.startswith("r3/")}
        for line in trainer.state.log_history[:-1]
    ]
    return dict(
        weights=weights,
        metrics=metrics,
        rows=[(row["prompt"], row["ids"]) for row in rows_of(log)],
    )


if __name__ == "__main__":
    where = Path(sys.argv[1])
    # two problems a step and rank: half of a group's rows are with the other rank
    result = on_ranks(where, per_device_train_batch_size=6)
    torch.save(result, where / f"rank{os.environ['RANK']}.pt")
