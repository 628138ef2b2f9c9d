"""Runs trainings of examples/trl_loop.py where TRL is installed, and writes down what reached the loss.

    python trl_probe.py DIRECTORY                            # -> DIRECTORY/seen.pt
    torchrun --nproc_per_node 2 trl_probe.py DIRECTORY       # afterwards -> DIRECTORY/rank0.pt, rank1.pt

A model with learning rate 0 stays what it is, so that its log-probs and entropies can be computed afterwards.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from examples.trl_loop import WORDS, R3Trainer, tokenizer
from r3_openrlhf import (
    R3,
    AdvantageSettings,
    ChatPrompts,
    HistoryStore,
    R3Settings,
    RankingSettings,
    ReflectionSettings,
    ReplaySettings,
    Rollout,
    Verdict,
)
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.settings import ExplorationSettings, StateReplaySettings
from r3_openrlhf.method.types import Context

GROUP, LIMIT = 4, 3
DIRECTORY = Path(sys.argv[1])
NO_END = {"suppress_tokens": [WORDS.index("<pad>"), WORDS.index("<eos>")]}  # every completion is truncated


def stored(uid, ids, logprobs, *, verdict=Verdict.CORRECT, prompt=None):
    return Rollout(
        uid=uid, context=Context.PLAIN, prompt_ids=np.array(tokenizer()(prompt or uid)["input_ids"], dtype=np.int32),
        response_ids=np.array(ids, dtype=np.int32), response_logprobs=np.array(logprobs, dtype=np.float32), verdict=verdict,
        reward=float(verdict is Verdict.CORRECT), truncated=False, finish_reason="stop", policy_step=0, epoch=1,
    )  # fmt: skip


def scripted(rewards):
    """The reward of the n-th completion of a problem, whatever it says."""

    def reward(completions, uid, **_):
        seen, found = Counter(), []
        for one in uid:
            found.append(rewards[one][seen[one] % GROUP])
            seen[one] += 1
        return found

    return reward


def settings(*, replay=False, ranking=False, **sections):
    return R3Settings(
        replay=sections.pop("replay_settings", ReplaySettings(enabled=replay, mode="replace", k=1)),
        ranking=RankingSettings(enabled=ranking),
        reflection=sections.pop("reflection", ReflectionSettings(enabled=False)),
        **sections,
    )


class WithVllm(R3Trainer):
    """As if vLLM had sampled: each token with log-prob -0.1, so that most completions are cut from the loss."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.use_vllm = True

    def _generate_single_turn(self, *args, **kwargs):
        self.use_vllm = False
        ids, _ = super()._generate_single_turn(*args, **kwargs)
        self.use_vllm = True
        return ids, [[-0.1] * len(one) for one in ids]


def train(base, rewards, *, history=(), r3=None, uids=None, resume=None, render=None, column="uid", **options):
    """One training; everything that its steps got, and the log-probs of the vocabulary at each completion token."""
    log = []

    class Recording(base):
        def _compute_loss(self, model, inputs):
            log.append({key: value.clone() for key, value in inputs.items()} | {"step": self.state.global_step})
            log[-1]["loss"] = super()._compute_loss(model, inputs)
            return log[-1]["loss"]

    uids = uids or list(rewards)
    defaults = dict(max_steps=1, learning_rate=0.0, num_generations=GROUP, max_completion_length=LIMIT)
    defaults |= dict(per_device_train_batch_size=GROUP * len(uids), report_to="none", use_cpu=True, bf16=False)
    defaults |= dict(save_strategy="no", disable_tqdm=True, shuffle_dataset=False, output_dir=str(DIRECTORY / "run"))
    special = {}
    if issubclass(base, R3Trainer):
        store = HistoryStore.open(":memory:") if not isinstance(history, HistoryStore) else history
        if history and store is not history:
            store.commit_step(0, 1, history)
        special = dict(r3=R3(r3, history=store, seed=0), render=render)
    torch.manual_seed(0)
    trainer = Recording(
        model=str(DIRECTORY / "model"), processing_class=tokenizer(), args=GRPOConfig(**defaults | options),
        train_dataset=Dataset.from_list([{column: uid, "prompt": uid} for uid in uids]),
        reward_funcs=rewards if callable(rewards) else scripted(rewards), **special,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    trainer.model.eval()
    for inputs in log:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        width = inputs["completion_ids"].size(1)
        with torch.no_grad():
            logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
        inputs["distribution"], inputs["loss"] = logits.log_softmax(-1), inputs["loss"].detach()
    return log


RECALLED = [1, 2, 3, 4, 5, 13]  # longer than a fresh one may be
LOGPROBS = [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6]
HISTORY = [stored("1+1=", RECALLED, LOGPROBS)]
ALL_WRONG = [0.0] * GROUP


def refusal(r3=None, **options):
    try:
        train(R3Trainer, {"1+1=": ALL_WRONG}, r3=r3 or settings(replay=True), **options)
    except ConfigError as error:
        return str(error)


def resumed():
    """Two steps with checkpoints, then from the first one again: the steps of the history, and rows of step 2."""
    with HistoryStore.open(":memory:") as store:
        options = dict(uids=["1+1="], max_steps=2, save_strategy="steps", save_steps=1, history=store)
        options |= dict(r3=settings(replay=True), output_dir=str(DIRECTORY / "resumed"))
        train(R3Trainer, {"1+1=": ALL_WRONG}, **options)
        before = store.last_step
        again = train(R3Trainer, {"1+1=": ALL_WRONG}, resume=str(DIRECTORY / "resumed" / "checkpoint-1"), **options)
        return dict(before=before, after=store.last_step, steps=[inputs["step"] for inputs in again])


def reflected():
    """Two epochs; in the second 1+1 is hard, and its reflection group takes the turn of the other problem."""
    with HistoryStore.open(":memory:") as store:
        render = ChatPrompts(tokenizer(), max_prompt_tokens=2000, message=lambda row: row.prompt, render=str)
        options = dict(history=store, r3=settings(reflection=ReflectionSettings()), render=render, max_steps=2)
        log = train(R3Trainer, {"1+1=": ALL_WRONG, "2+2=": [1.0] * GROUP}, **options)
        recalled = store.recall("1+1=", Verdict.WRONG, k=9, step=2, max_policy_lag=9, contexts=[Context.REFLECTION])
        return dict(log=log, recalled=[one.rollout.response_ids.tolist() for one in recalled])


def by_content(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]


FOUR = {"1+1=": ALL_WRONG, "2+2=": [1.0, 0.0, 0.0, 0.0], "3+3=": [None, 1.0, 0.0, 0.0], "4+4=": [None] * GROUP}


def on_one_rank():
    torch.manual_seed(1)
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = Qwen2Config(vocab_size=len(WORDS), num_key_value_heads=2, initializer_range=0.5, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(DIRECTORY / "model")
    plain = dict(uids=[f"{a}+1=" for a in range(4)], max_steps=4, learning_rate=0.01, per_device_train_batch_size=8)
    off = settings(advantage=AdvantageSettings(std_eps=1e-4))
    add = ReplaySettings(k=1)
    stored_success = dict(history=HISTORY, r3=settings(replay=True))
    both = dict(history=HISTORY, r3=settings(replay=True, ranking=True), generation_kwargs=NO_END)
    parts = dict(per_device_train_batch_size=GROUP, gradient_accumulation_steps=4)
    return dict(
        replay=train(R3Trainer, FOUR, **stored_success),
        split=train(R3Trainer, FOUR, **stored_success, **parts),
        reused=train(R3Trainer, FOUR, **stored_success, num_iterations=2, max_steps=2),
        both=train(R3Trainer, {"1+1=": ALL_WRONG}, **both, seed=1, max_completion_length=6),
        vllm_rows=train(WithVllm, FOUR, **stored_success),
        vllm_tokens=train(WithVllm, FOUR, **stored_success, vllm_importance_sampling_mode="token_truncate"),
        off=train(R3Trainer, by_content, r3=off, **plain),
        stock=train(GRPOTrainer, by_content, **plain),
        failure=train(
            R3Trainer,
            {"1+1=": [1.0] * GROUP},
            history=[stored("1+1=", [1, 2, 13], [-20.0] * 3, verdict=Verdict.WRONG)],
            r3=settings(replay=True),
        ),
        resumed=resumed(),
        reflected=reflected(),
        refused=dict(
            add=refusal(settings(replay_settings=add)),
            many=refusal(settings(replay_settings=ReplaySettings(mode="replace", k=GROUP))),
            drawn=refusal(settings(exploration=ExplorationSettings(rrl=StateReplaySettings(ratio=0.5)))),
            unnamed=refusal(column="name"),
            rehearsed=refusal(settings(replay_settings=ReplaySettings(mode="replace", k=1, rehearse={"share": 0.5}))),
            bounded=refusal(delta=2.0),
            masked=refusal(mask_truncated_completions=True),
            updates=refusal(per_device_train_batch_size=GROUP, gradient_accumulation_steps=2, steps_per_generation=1),
        ),
    )


def on_two_ranks():
    """Two problems each; what this one's loss got, and of which problems it has rollouts afterwards."""
    with HistoryStore.open(":memory:") as store:
        store.commit_step(0, 1, HISTORY)
        log = train(R3Trainer, FOUR, history=store, r3=settings(replay=True), per_device_train_batch_size=GROUP * 2)
        return dict(log=log, known=[uid for uid in FOUR if store.counts(uid)])


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.save(on_two_ranks(), DIRECTORY / f"rank{os.environ['RANK']}.pt")
    else:
        torch.save(on_one_rank(), DIRECTORY / "seen.pt")
