"""A run directory as a training loop leaves it, in a second: everything is the project's own but the policy, which knows
by heart how often it is right. Replay, reflection prompts, ranking, advantages, history and files are the real ones.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.batch_metrics import trained_tokens
from r3_openrlhf.method.core.reflection import reflection_message
from r3_openrlhf.method.core.rewards import outcome_reward
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context, EntropyStatistics, HardBy, Rollout, Verdict
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.rewards.answers.reading.scanner import boxed_answer
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.rollout_records import TokenPieces, records_of
from r3_openrlhf.stack.step_metrics import entropy_metrics

PROBLEMS = (
    (
        r"Find the sum of all positive integers $n \le {k}$ that are divisible by $3$.",
        lambda k: 3 * (k // 3) * (k // 3 + 1) // 2,
    ),
    (r"Compute $\sum_{{i=1}}^{{{k}}} i^2$.", lambda k: k * (k + 1) * (2 * k + 1) // 6),
    (
        r"A right triangle has legs $3\cdot {k}$ and $4\cdot {k}$. How long is its hypotenuse?",
        lambda k: 5 * k,
    ),
    (
        r"How many diagonals does a convex polygon with ${k}$ sides have?",
        lambda k: k * (k - 3) // 2,
    ),
    (r"What is the remainder when $2^{{{k}}}$ is divided by $7$?", lambda k: 2**k % 7),
    (r"Find the number of ways to choose $2$ people out of ${k}$.", lambda k: k * (k - 1) // 2),
)
STARTS, LINES = json.loads(Path(__file__).with_name("sentences.json").read_text()).values()
MAX_TOKENS = 220


def labels(count: int) -> list[Label]:
    found = []
    for number in range(count):
        text, answer = PROBLEMS[number % len(PROBLEMS)]
        k = 7 + 3 * (number // len(PROBLEMS)) + number % 5
        found.append(
            Label(
                uid=f"{number * 2654435761 % 2**32:08x}{number:08x}",
                problem=text.format(k=k),
                references=[str(answer(k))],
                task="math",
            )
        )
    return found


def make_tokenizer(directory: Path):
    """Byte-level BPE of the texts of this story, as large models have it; written as tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    draw = random.Random(5)
    texts = [
        respond(label, right=bool(i % 2), cut=False, draw=draw)
        for i, label in enumerate(labels(60))
    ]
    texts += [label.problem for label in labels(60)]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|user|>", "<|assistant|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizer


def respond(label: Label, *, right: bool, cut: bool, draw: random.Random) -> str:
    text = draw.choice(STARTS)
    for _ in range(draw.randint(12, 20) if cut else draw.randint(1, 7)):
        a, b = draw.randint(2, 40), draw.randint(2, 40)
        text += draw.choice(LINES).format(a=a, b=b, c=a + b)
    if cut:
        return text
    answer = int(label.references[0]) + (0 if right else draw.choice((-2, -1, 1, 3, 10)))
    return text + rf"So the final answer is $\boxed{{{answer}}}$."


class Story:
    """`step()` writes one more step of the run, as a trainer does."""

    def __init__(
        self,
        directory: Path,
        *,
        num_problems: int = 36,
        seed: int = 1,
        settings: tuple[str, ...] = (),
    ) -> None:
        self.config = load_config(
            "cpu_smoke",
            [
                f"run_dir={directory}",
                "model.path=smollm2",
                "rollout.batch_size=10",
                f"train.seed={seed}",
                "ranking.scope=truncated",
                f"rollout.max_new_tokens={MAX_TOKENS}",
                "data.max_len=2048",
                "replay.max_policy_lag=60",
                *settings,
            ],
        )
        self.run = RunDirectory(directory)
        self.run.create(self.config)
        self.draw = random.Random(seed)
        self.labels = labels(num_problems)
        self.tokenizer = make_tokenizer(self.run.final_model)
        self.skill = {
            label.uid: self.draw.choice((-7.0, -2.5, -0.5, 0.3, 1.0, 4.0))
            for label in self.labels
        }
        self.run.data.parent.mkdir(parents=True, exist_ok=True)
        with self.run.data.open("w", encoding="utf-8") as file:
            for label in self.labels:
                row = {
                    "input": self.prompt(label.problem),
                    "label": label.to_json(),
                    "datasource": "story",
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.history = HistoryStore.open(self.run.history, seed=seed)
        self.done, self.tokens, self.clock = 0, 0, 1_790_000_000.0
        self.evaluate()

    def prompt(self, text: str) -> str:
        return f"<|user|>{text}<|end|><|assistant|>"

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *_: object) -> None:
        self.history.close()

    def sample(
        self, label: Label, context: Context, prompt: str, number: int
    ) -> tuple[Rollout, EntropyStatistics]:
        draw = self.draw
        bonus = 1.2 if context is Context.REFLECTION else 0.0
        chance = 1 / (1 + math.exp(-(self.skill[label.uid] + bonus + 0.1 * self.done)))
        right = draw.random() < chance
        cut = not right and draw.random() < 0.45
        text = respond(label, right=right, cut=cut, draw=draw)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        cut = cut or len(ids) > MAX_TOKENS
        ids = ids[:MAX_TOKENS] if cut else [*ids, 2]
        right = right and not cut
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        noise = np.random.default_rng(draw.getrandbits(32))
        entropies = np.clip(noise.gamma(0.5, 0.7, len(ids)), 0.0, 5.0).astype(np.float32)
        logprobs = -np.abs(entropies * noise.exponential(1.0, len(ids))).astype(np.float32)
        top = np.sort(entropies)[-max(1, int(0.2 * len(ids))) :]
        ungraded = draw.random() < 0.006
        rollout = Rollout(
            uid=label.uid,
            context=context,
            prompt_ids=np.array(
                self.tokenizer.encode(prompt, add_special_tokens=False).ids, dtype=np.int32
            ),
            response_ids=np.array(ids, dtype=np.int32),
            response_logprobs=logprobs,
            verdict=Verdict.UNGRADED
            if ungraded
            else Verdict.CORRECT
            if right
            else Verdict.WRONG,
            reward=None
            if ungraded
            else outcome_reward(float(right), len(ids), max_tokens=MAX_TOKENS),
            truncated=cut,
            finish_reason="length" if cut else "stop",
            policy_step=self.done,
            epoch=1 + 10 * self.done // len(self.labels),
            text=text,
            reason="timeout"
            if ungraded
            else "correct"
            if right
            else "no_answer"
            if cut
            else "wrong",
            answer=None if cut or ungraded else boxed_answer(text),
        )
        peak, tokens = float(top.mean()), entropies.astype(np.float16)
        statistics = EntropyStatistics(
            peak=peak, global_=float(entropies.mean()), source="exact", tokens=tokens
        )
        return rollout, statistics

    def asked(self) -> Iterator[tuple[Label, Context, str]]:
        batch = [self.labels[(10 * self.done + i) % len(self.labels)] for i in range(10)]
        for label in batch:
            yield label, Context.PLAIN, self.prompt(label.problem)
        if 10 * self.done < len(self.labels):
            return
        means = self.history.means(HardBy.SUCCESS_RATE)
        for label in batch:
            if means.get(label.uid, 9) >= self.config.reflection.threshold:
                continue
            error = self.history.recall(
                label.uid, Verdict.WRONG, k=1, step=self.done, max_policy_lag=60
            )
            if error:
                attempt = self.tokenizer.decode(
                    error[0].rollout.response_ids.tolist(), skip_special_tokens=True
                )
                yield (
                    label,
                    Context.REFLECTION,
                    self.prompt(reflection_message(label.problem, attempt)),
                )

    def step(self) -> None:
        config, sampled, groups, prompts = self.config, [], [], []
        for label, context, prompt in self.asked():
            for _ in range(8):
                sampled.append(self.sample(label, context, prompt, len(sampled)))
                groups.append((label.uid, context))
                prompts.append(prompt)
        rollouts = [one[0] for one in sampled]
        r3 = R3(config, history=self.history)
        entropies = [one[1] for one in sampled]
        batch = r3.mix(rollouts, step=self.done, groups=groups, entropy=entropies)
        for row in batch.rows:
            if row.recalled:
                row.rollout.text = self.tokenizer.decode(
                    row.rollout.response_ids.tolist(), skip_special_tokens=True
                )
        metrics = r3.metrics(batch, step=self.done) | entropy_metrics(rollouts)
        metrics["trained_tokens"] = trained_tokens(batch, passes=config.train.inner_epochs)
        self.done += 1
        before, self.tokens = self.tokens, self.tokens + sum(one.num_tokens for one in rollouts)
        noise = np.random.default_rng(self.done)
        of_all = config.logging.token_values == "all"
        kept = [
            row
            for row in batch.rows
            if row.recalled or (of_all and not row.rollout.prefix_tokens)
        ]
        policy_logprobs = {
            row.index: np.minimum(
                0, row.rollout.response_logprobs + noise.normal(0, 0.15, row.rollout.num_tokens)
            )
            for row in kept
        }
        rows = records_of(
            batch,
            step=self.done,
            prompts=prompts,
            policy_logprobs=policy_logprobs,
            token_values=config.logging.token_values,
            entropies={
                row.index: entropies[row.fresh_source] for row in batch.rows if row.ranked
            },
            token_chars=TokenPieces(
                lambda ids: self.tokenizer.decode(ids, skip_special_tokens=True)
            ),
        )
        self.run.write_rollouts(self.done, rows)
        self.history.commit_step(self.done, rollouts[0].epoch, rollouts)
        hard = metrics["r3/reflection/groups"]
        self.run.append_metrics(
            {
                "step": self.done,
                "epoch": rollouts[0].epoch,
                **metrics,
                "r3/reflection/hard_prompts": hard + 1,
                "generated_tokens": self.tokens - before,
                "generated_tokens_total": self.tokens,
                "loss": 0.02 * self.draw.gauss(0, 1),
                "grad_norm": 0.6 + 0.2 * self.draw.random(),
                "r3/sync/abs_logprob_gap": 0.012 + 0.004 * self.draw.random(),
                "timing/generation": 11 + self.draw.random(),
                "timing/make_experience": 4 + self.draw.random(),
                "timing/ppo_train": 14 + 2 * self.draw.random(),
                "timing/broadcast": 1.1,
                "timing/step_total": 32.0,
                "r3/time/added_s": 0.3,
                "r3/time/history_s": 0.1,
                "r3/replay/ratio_mean": 1 + 0.1 * self.draw.random(),
                "r3/replay/ratio_max": 2 + self.draw.random(),
                "r3/replay/clip_fraction": 0.1 * self.draw.random(),
            }
        )
        self.announce()
        if self.done % 4 == 0:
            self.evaluate()

    def announce(self) -> None:
        """The phases of the step, as stack/phases.py writes them; it is resumed after half a day."""
        phases = [
            ("sampling", 11.0),
            ("log-probs and rewards", 4.0),
            ("policy update", 15.0 + self.done % 3),
        ]
        phases += [("weights to the engine", 1.1)]
        starting = [
            ("checking the settings", 2.0),
            ("starting Ray", 9.0),
            ("starting the rollout engine", 21.0),
        ]
        with self.run.events.open("a", encoding="utf-8") as file:
            for phase, seconds in [*(starting if self.done in (1, 16) else []), *phases]:
                self.clock += 43_200.0 if phase == starting[0][0] and self.done > 1 else 0.0
                step = None if (phase, seconds) in starting else self.done
                file.write(
                    json.dumps({"time": self.clock, "phase": phase, "step": step}) + "\n"
                )
                self.clock += seconds

    def evaluate(self) -> None:
        accuracy = 0.35 + 0.3 * (1 - math.exp(-self.done / 15)) + 0.02 * self.draw.random()
        line: dict[str, Any] = {
            "step": self.done,
            "epoch": 1,
            "generated_tokens": self.tokens,
            "name": "held_out",
        }
        self.run.append_evaluation(
            line
            | {
                "num_problems": 40,
                "n_samples": 4,
                "temperature": 1.0,
                "max_new_tokens": MAX_TOKENS,
                "pass_at_1": accuracy,
                "pass_at_n": min(1.0, accuracy + 0.2),
                "response_tokens_mean": 90.0,
                "truncated_rate": 0.1,
                "num_ungraded": 0,
            }
        )
