"""Verified solutions that a run of a world begins with, one of each problem that has any.

    data.reasoning_gym.solved=0.25      share of the training problems with a solution
    data.reasoning_gym.style=own        own: drawn as the first policy draws its right answers; unlikely: the right answer that it
                                        gives least often; foreign: after words that it never writes
    data.reasoning_gym.warm_up=1e-3     rate of EPOCHS epochs of supervised training on them before step 1; 0: none

A run that keeps a history stores them as `history.start` does: replay.imported says how they are used. A solution is the boxed answer
and the end token; with `reward.function` the answer, with or without a space before it, and what the first policy says after it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from r3_openrlhf.method.core.rewards import outcome_reward
from r3_openrlhf.method.errors import ConfigError, R3Error, quoted
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.method.types import Context, Rollout, Verdict
from r3_openrlhf.problems.training_file import Label
from research.facts import FILLER
from research.sampling import sample
from research.update import TrainedRow, accumulate_gradient, make_optimizer, step

if TYPE_CHECKING:
    from research.loop import Lab

EPOCHS, BATCH_SIZE = 10, 32  # of supervised training
TRIES = 16  # of a response that begins with a right answer
FOREIGN = f"{FILLER} {FILLER} "  # all that fits rollout.max_new_tokens

# log-probs of a problem's right answers under the first policy, float [answers] -> the index of one
STYLES: dict[str, Callable[[np.ndarray, np.random.Generator], int]] = {
    "own": lambda logprobs, rng: int(
        rng.choice(len(logprobs), p=np.exp(logprobs) / np.exp(logprobs).sum())
    ),
    "unlikely": lambda logprobs, rng: int(logprobs.argmin()),
    "foreign": lambda logprobs, rng: int(logprobs.argmax()),
}


def begin(lab: Lab, labels: Sequence[Label], history: HistoryStore | None) -> dict[str, float]:
    """Train on the solutions, then store them. Returns their number, their log-prob a token under the policy before that, and
    the tokens of supervised training, as metrics; {} where data.reasoning_gym.solved is 0.

    ConfigError: a style that does not exist, solutions that nothing uses, or a weight that the lab's update lacks."""
    config, settings = lab.config, lab.config.data.reasoning_gym
    share, warm_up = float(settings.get("solved", 0.0)), float(settings.get("warm_up", 0.0))
    if not share:
        return {}
    if not warm_up and history is None:
        raise ConfigError(
            f"data.reasoning_gym.solved is {share}, but algo={config.algo} keeps no history, so nothing uses the solutions; use "
            "algo=r3, or data.reasoning_gym.warm_up=1e-3"
        )
    if config.replay.imported.weight not in ("clip", "ratio1"):
        raise ConfigError(
            f"replay.imported.weight is {config.replay.imported.weight}; the lab's update has clip and ratio1 alone"
        )
    rollouts = solutions(lab, labels, share=share, style=settings.get("style", "own"))
    logprobs = [float(one.response_logprobs.mean()) for one in rollouts]
    metrics = {
        "successes/count": float(len(rollouts)),
        "successes/logprob": float(np.mean(logprobs)),
        "sft_tokens": 0.0,
    }
    if warm_up:
        metrics["sft_tokens"] = float(train(lab, rollouts, learning_rate=warm_up))
        rollouts = measured(lab, rollouts)
    if history is not None:
        limit = config.replay.imported.min_logprob
        kept = [
            one for one in rollouts if limit is None or one.response_logprobs.mean() >= limit
        ]
        metrics["successes/set_aside"] = float(len(rollouts) - len(kept))
        history.commit_step(0, 1, kept)
    return metrics


def solutions(lab: Lab, labels: Sequence[Label], *, share: float, style: str) -> list[Rollout]:
    """One right answer of each of round(share * problems) problems, drawn by the run's seed, with the policy's log-probs."""
    if style not in STYLES:
        raise ConfigError(
            f"data.reasoning_gym.style is {quoted(style)}, which does not exist; {nearest(style, STYLES)}"
        )
    if style == "foreign" and lab.config.reward.function is not None:
        raise ConfigError(
            "data.reasoning_gym.style is foreign, which needs boxed answers; use own or unlikely with reward.function"
        )
    seed = lab.config.train.seed
    drawn = random.Random(f"{seed}/solved").sample(
        sorted(labels, key=lambda label: label.uid), round(share * len(labels))
    )
    rng, chosen = np.random.default_rng(seed), []
    generator = torch.Generator().manual_seed(seed)
    for label in drawn:
        answers = measured(
            lab, [_rollout(lab, label, ids, style) for ids in _answers(lab, label)]
        )
        sums = np.array([one.response_logprobs.sum(dtype=np.float64) for one in answers])
        answer = answers[STYLES[style](sums, rng)]
        chosen.append(
            _goes_on(lab, label, answer, generator) if lab.config.reward.function else answer
        )
    if style == "foreign":
        texts = [
            FOREIGN + lab.tokenizer.decode(one.response_ids, skip_special_tokens=True)
            for one in chosen
        ]
        chosen = measured(
            lab,
            [
                _rollout(lab, label, _with_end(lab, text), style)
                for label, text in zip(drawn, texts, strict=True)
            ],
        )
    return chosen


def _with_end(lab: Lab, text: str) -> list[int]:
    return [
        *lab.tokenizer(text, add_special_tokens=False)["input_ids"],
        lab.tokenizer.eos_token_id,
    ]


def _answers(lab: Lab, label: Label) -> list[list[int]]:
    if lab.config.reward.function is None:
        return [_with_end(lab, rf"\boxed{{{answer}}}") for answer in label.references]
    return [
        _with_end(lab, space + answer)[:-1]
        for answer in label.references
        for space in ("", " ")
    ]


def _goes_on(lab: Lab, label: Label, answer: Rollout, generator: torch.Generator) -> Rollout:
    """The answer as the beginning of a response that the policy ends: the first of TRIES that is right."""
    config, said = lab.config, answer.response_ids
    tries = [(said, True)]
    if room := config.rollout.max_new_tokens - len(said):
        drawn = sample(
            lab.model,
            [np.concatenate([answer.prompt_ids, said])],
            n=TRIES,
            max_new_tokens=room,
            temperature=config.rollout.temperature,
            eos=lab.tokenizer.eos_token_id,
            generator=generator,
        )
        tries = [(np.concatenate([said, one.response_ids]), one.truncated) for one in drawn]
    for ids, truncated in tries:
        text = lab.tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        if lab.is_right(label, text, num_tokens=len(ids), truncated=truncated):
            return measured(
                lab, [_rollout(lab, label, ids, answer.origin, truncated=truncated)]
            )[0]
    raise R3Error(
        f"{label.problem!r} has no solution that begins with {label.references[0]!r} and is right within rollout.max_new_tokens="
        f"{config.rollout.max_new_tokens}; allow more tokens"
    )


def _rollout(
    lab: Lab,
    label: Label,
    ids: Sequence[int] | np.ndarray,
    style: str,
    *,
    truncated: bool = False,
) -> Rollout:
    return Rollout(
        uid=label.uid,
        context=Context.IMPORTED,
        prompt_ids=lab.encode(lab.plain_prompt(label)),
        response_ids=np.array(ids, np.int32),
        response_logprobs=np.zeros(0, np.float32),
        verdict=Verdict.CORRECT,
        reward=outcome_reward(
            1.0, len(ids), max_tokens=lab.config.reward.length_reward_max_tokens
        ),
        truncated=truncated,
        finish_reason="length" if truncated else "stop",
        policy_step=0,
        epoch=1,
        text=lab.tokenizer.decode(list(ids), skip_special_tokens=True),
        origin=style,
    )


def _gradient(lab: Lab, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
    """Add the gradient of the mean cross-entropy of these responses; returns their log-probs, float32 [tokens] each."""
    config = lab.config
    rows = [
        TrainedRow(prompt_ids=one.prompt_ids, response_ids=one.response_ids, advantage=1.0)
        for one in rollouts
    ]
    gradient = accumulate_gradient(
        lab.model,
        rows,
        temperature=config.rollout.temperature,
        micro_batch_size=config.train.micro_batch_size,
    )
    return [logprobs for logprobs in gradient.logprobs if logprobs is not None]


def measured(lab: Lab, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The same rollouts with their log-probs under the policy now."""
    logprobs = _gradient(lab, rollouts)
    lab.model.zero_grad(set_to_none=True)
    return [
        replace(one, response_logprobs=logprobs_T)
        for one, logprobs_T in zip(rollouts, logprobs, strict=True)
    ]


def train(lab: Lab, rollouts: Sequence[Rollout], *, learning_rate: float) -> int:
    """Supervised training: EPOCHS epochs in batches of BATCH_SIZE with an optimizer of its own. Returns the tokens trained on."""
    optimizer, order = make_optimizer(lab.model, learning_rate=learning_rate), list(rollouts)
    rng = random.Random(f"{lab.config.train.seed}/warm_up")
    for _ in range(EPOCHS):
        rng.shuffle(order)
        for start in range(0, len(order), BATCH_SIZE):
            _gradient(lab, order[start : start + BATCH_SIZE])
            step(lab.model, optimizer, max_grad_norm=1.0)
    return EPOCHS * sum(one.num_tokens for one in order)
