"""A run directory of any size without a model, through the project's own writers: what `r3 view` shows of a full-size run.

Problems have a pass rate of their own, which grows; lengths are log-normal and cut at the limit; a group whose verdicts are all
equal recalls two stored rollouts of the other verdict, if the problem ever had one; a problem that was never solved is asked
after a reflection prompt from the second epoch on; truncated failures of an all-wrong group are ranked. Group 0 of each step has
the full length: it is solved twice in the first epoch, never after that, and then recalls two of those. history.sqlite holds it in
the newest step and in the step an epoch before, and final_model/ a tokenizer for it. Texts are four characters a token and pieces of
one another: they compress far better than real ones, so sizes of rollouts/ say nothing.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.types import Context, Rollout, Verdict
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.runs.directory import RunDirectory

ROOT = Path(__file__).parents[1]
CHARACTERS = 4  # of a token
CORPUS_CHARACTERS = 65_536  # of which texts are pieces: small, so that they compress
RECALLED = 2
UNKNOWN = "<unknown>"  # a token that there is not


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run. The defaults are a full-size one of this project's experiments: three epochs of DeepScaleR."""

    steps: int = 945
    problems: int = 128  # a step
    samples: int = 16
    epoch_steps: int = 315
    max_tokens: int = 8192
    mean_tokens: int = 3400
    few_problems: int = 0  # in all steps but the newest and those a whole number of epochs before it; 0: as in those
    # of what a response has in a full step, in those others: one in so many
    few_tokens: int = 1

    def is_full(self, step: int) -> bool:
        """Has the step all its problems?"""
        return not self.few_problems or (self.steps - step) % self.epoch_steps == 0

    def is_remembered(self, step: int) -> bool:
        """Is its group 0 in the history?"""
        return step in (self.steps, self.steps - self.epoch_steps)

    @property
    def num_problems(self) -> int:
        """That there are at all."""
        return self.problems * min(self.epoch_steps, self.steps)


@dataclass(slots=True)
class Kept:
    """The last rollout of a problem with one verdict."""

    step: int
    tokens: int
    reward: float
    begin: int
    truncated: bool


class SyntheticRun:
    """`write` makes the next step, as a run would."""

    def __init__(self, directory: Path, size: Size, *, seed: int = 1) -> None:
        self.size, self.run, self.step = size, RunDirectory(directory), 0
        self.rng = np.random.default_rng(seed)
        self.draw = random.Random(seed)
        config = load_config(
            "r3_1p5b_deepscaler_8gpu",
            [f"run_dir={self.run.path}", f"rollout.max_new_tokens={size.max_tokens}"],
        )
        self.run.create(config)
        self.corpus = corpus(self.draw)
        self.numbers = self.rng.integers(1, 10**6, size.num_problems)
        self.easiness = self.rng.beta(0.5, 0.5, size.num_problems)
        self.uids = [
            f"{number:016x}" for number in self.rng.integers(0, 2**60, size.num_problems)
        ]
        self.kept: dict[tuple[int, bool], Kept] = {}
        self.entropies = np.where(
            self.rng.random(4 * size.max_tokens) < 0.7,
            self.rng.exponential(0.02, 4 * size.max_tokens),
            self.rng.gamma(1.2, 0.8, 4 * size.max_tokens),
        ).astype(np.float16)
        self.generated = 0
        self.vocabulary = {UNKNOWN: 0}
        with self.run.data.open("w", encoding="utf-8") as file:
            for problem in range(size.num_problems):
                label = Label(
                    uid=self.uids[problem],
                    problem=self.problem(problem),
                    references=[str(self.numbers[problem])],
                    task="math",
                )
                row = {
                    "input": self.prompt(problem),
                    "label": label.to_json(),
                    "datasource": "synthetic",
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def problem(self, problem: int) -> str:
        begin = (problem * 997) % (CORPUS_CHARACTERS - 400)
        return f"Let $x_{{{problem}}}$ be as follows. {self.corpus[begin : begin + 300]} Find $x_{{{problem}}}$."

    def prompt(self, problem: int, attempt: str = "") -> str:
        middle = (
            f"\n\nAn earlier attempt, which was wrong:\n{attempt}\n\nSay what went wrong, and solve it."
            if attempt
            else ""
        )
        return f"<|user|>{self.problem(problem)}{middle}<|assistant|>"

    def write(self) -> int:
        """Write the next step. Returns its number of rollouts."""
        size, self.step = self.size, self.step + 1
        epoch = (self.step - 1) // size.epoch_steps
        first = (self.step - 1) % size.epoch_steps * size.problems % size.num_problems
        count = size.problems if size.is_full(self.step) else size.few_problems
        problems = [(first + number) % size.num_problems for number in range(count)]
        groups = [(problem, False) for problem in problems]
        if epoch:
            never = [
                problem
                for problem in problems
                if (problem, True) not in self.kept and (problem, False) in self.kept
            ]
            groups += [(problem, True) for problem in never[: size.problems // 8]]
        rows: list[dict] = []
        ungraded: list[dict] = []
        reached: dict[tuple[int, bool], Kept] = {}
        for number, (problem, reflection) in enumerate(groups):
            members = list(self._group(number, problem, reflection, reached))
            rows += [row for row in members if row["group"] is not None]
            ungraded += [row for row in members if row["group"] is None]
        self.kept |= reached
        if size.is_remembered(self.step):
            self._remember(
                [row for row in rows if row["group"] == 0 and row["recalled_from"] is None],
                epoch,
            )
        self.run.write_rollouts(self.step, rows + ungraded)
        self.run.append_metrics(self._metrics(rows + ungraded, epoch, len(groups)))
        if self.step % 20 == 0:
            self.run.append_evaluation(self._evaluation(epoch))
        return len(rows) + len(ungraded)

    def _group(
        self, number: int, problem: int, reflection: bool, reached: dict
    ) -> Iterator[dict]:
        size, rng = self.size, self.rng
        easy = (
            min(0.97, self.easiness[problem] + 0.2 * self.step / size.steps) if number else 0.0
        )
        part = 1 if size.is_full(self.step) else size.few_tokens
        longest = size.max_tokens // part
        lengths = np.exp(
            rng.normal(np.log(size.mean_tokens / part) - 0.18, 0.6, size.samples)
        ).astype(int)
        lengths = np.clip(lengths, 8, longest)
        is_first_epoch = self.step <= size.epoch_steps
        if number == 0:
            lengths[:] = longest
            if is_first_epoch:
                lengths[:2] -= (1, 2)  # what is cut is not right
        truncated = lengths >= longest
        correct = (rng.random(size.samples) < easy) & ~truncated if number else ~truncated
        graded = (rng.random(size.samples) > 0.002) | (number == 0)
        begins = rng.integers(0, CORPUS_CHARACTERS, size.samples)
        rewards = np.where(correct, 2 - lengths / 32768, 0.0)
        ranks = np.zeros(size.samples)
        rankable = np.flatnonzero(truncated & graded)
        ranked = (
            set(rankable.tolist()) if not correct[graded].any() and len(rankable) > 1 else set()
        )
        for order, index in enumerate(rng.permutation(sorted(ranked))):
            ranks[index] = 0.5 * order / (len(ranked) - 1)
        recalled: list[Kept] = []
        if graded.sum() > 1 and (correct[graded].all() or not correct[graded].any()):
            other = not correct[graded][0]
            kept = self.kept.get((problem, bool(other)))
            recalled = [kept] * RECALLED if kept else []
        in_group = graded if graded.sum() > 1 else np.zeros(size.samples, dtype=bool)
        values = [*(rewards + ranks)[in_group], *(stored.reward for stored in recalled)]
        advantages = iter(
            group_advantages([float(value) for value in values], alpha=1.0, lam=1e-9)
            if values
            else []
        )
        attempt = self.corpus[:2000] if reflection else ""
        base = {
            "step": self.step,
            "uid": self.uids[problem],
            "context": "reflection" if reflection else "plain",
            "prompt": self.prompt(problem, attempt),
            "recalled_from": None,
        }
        for i in range(size.samples):
            tokens, right = int(lengths[i]), bool(correct[i])
            verdict = ("correct" if right else "wrong") if graded[i] else "ungraded"
            answer = (
                str(self.numbers[problem])
                if right
                else None
                if truncated[i]
                else str(int(begins[i]))
            )
            self.generated += tokens
            yield (
                base
                | {
                    "group": number if in_group[i] else None,
                    "verdict": verdict,
                    "reason": ("correct" if right else "no_answer" if truncated[i] else "wrong")
                    if graded[i]
                    else "timeout",
                    "outcome_reward": float(rewards[i]) if graded[i] else None,
                    "reward": float(rewards[i] + ranks[i]) if graded[i] else None,
                    "ranked": i in ranked,
                    "advantage": next(advantages) if in_group[i] else None,
                    "truncated": bool(truncated[i]),
                    "num_tokens": tokens,
                    "answer": answer,
                    "text": self.text(problem, int(begins[i]), tokens, answer),
                }
                | (self._entropy(int(begins[i]), tokens) if i in ranked else {})
            )
            if graded[i] and not reflection:
                kept = Kept(
                    self.step, tokens, float(rewards[i]), int(begins[i]), bool(truncated[i])
                )
                reached[problem, right] = kept
        for stored in recalled:
            right = stored.reward > 0
            begin = stored.begin % (3 * size.max_tokens)
            then = -self.entropies[begin : begin + stored.tokens]
            yield base | {
                "group": number,
                "context": "plain",
                "verdict": "correct" if right else "wrong",
                "reason": "correct" if right else "wrong",
                "outcome_reward": stored.reward,
                "reward": stored.reward,
                "ranked": False,
                "advantage": next(advantages),
                "recalled_from": stored.step,
                "truncated": stored.truncated,
                "num_tokens": stored.tokens,
                "text": self.text(
                    problem,
                    stored.begin,
                    stored.tokens,
                    str(self.numbers[problem]) if right else None,
                ),
                "token_logprob": then,
                "token_policy_logprob": then * np.float16(0.9),
                "token_chars": self._chars(stored.tokens),
            }

    def text(self, problem: int, begin: int, tokens: int, answer: str | None) -> str:
        """Return a response of exactly CHARACTERS * tokens characters. Beginnings and ends have numbers of their own."""
        head = f"First, x_{problem} with {begin * 7919 % 99991} terms. "
        tail = f" So the final answer is \\boxed{{{answer}}}." if answer is not None else ""
        missing = CHARACTERS * tokens - len(head) - len(tail)
        if missing < 0:
            return (head + tail)[-CHARACTERS * tokens :]
        times = -(-(begin + missing) // CORPUS_CHARACTERS)
        return head + (self.corpus * times)[begin : begin + missing] + tail

    def _remember(self, rows: list[dict], epoch: int) -> None:
        """Some plain rows go to the history, and their tokens, which are CHARACTERS letters each, to the tokenizer."""
        rollouts = []
        for row in rows:
            text = row["text"]
            pieces = [text[at : at + CHARACTERS] for at in range(0, len(text), CHARACTERS)]
            ids = [self.vocabulary.setdefault(piece, len(self.vocabulary)) for piece in pieces]
            rollouts.append(
                Rollout(
                    uid=row["uid"],
                    context=Context.PLAIN,
                    prompt_ids=np.zeros(1, dtype=np.int32),
                    response_ids=np.array(ids, dtype=np.int32),
                    response_logprobs=-self.entropies[: len(ids)].astype(np.float32),
                    verdict=Verdict(row["verdict"]),
                    reward=row["outcome_reward"],
                    truncated=row["truncated"],
                    finish_reason="length" if row["truncated"] else "stop",
                    policy_step=self.step - 1,
                    epoch=epoch + 1,
                    text=text,
                    reason=row["reason"],
                    answer=row["answer"],
                )
            )
        with closing(HistoryStore.open(self.run.history, seed=1)) as store:
            store.commit_step(self.step, epoch + 1, rollouts)
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": self.vocabulary, "unk_token": UNKNOWN},
        }
        self.run.final_model.mkdir(exist_ok=True)
        (self.run.final_model / "tokenizer.json").write_text(
            json.dumps(tokenizer), encoding="utf-8"
        )

    def _entropy(self, begin: int, tokens: int) -> dict:
        begin %= 3 * self.size.max_tokens
        values = self.entropies[begin : begin + tokens]
        ordered = np.sort(values.astype(np.float64))
        return {
            "entropy_peak": float(ordered[-max(1, tokens // 5) :].mean()),
            "entropy_global": float(ordered.mean()),
            "entropy_source": "exact",
            "token_entropy": values,
            "token_chars": self._chars(tokens),
        }

    def _chars(self, tokens: int) -> np.ndarray:
        return np.full(tokens, CHARACTERS, dtype=np.uint16)

    def _metrics(self, rows: list[dict], epoch: int, groups: int) -> dict:
        fresh = [row for row in rows if row["recalled_from"] is None]
        graded = [row for row in fresh if row["verdict"] != "ungraded"]
        recalled = [row for row in rows if row["recalled_from"] is not None]
        lags = [self.step - row["recalled_from"] for row in recalled]
        tokens = [row["num_tokens"] for row in fresh]
        share = sum(row["verdict"] == "correct" for row in graded) / max(1, len(graded))
        noise = float(self.rng.normal(0, 0.01))
        none = groups * (1 - share) * 0.6
        return {
            "step": self.step,
            "epoch": epoch + 1,
            "loss": noise,
            "grad_norm": 0.4 + abs(noise),
            "reward_mean": sum(row["outcome_reward"] for row in graded) / max(1, len(graded)),
            "accuracy": share,
            "response_length_mean": sum(tokens) / len(tokens),
            "response_tokens": float(sum(tokens)),
            "truncated_rate": sum(row["truncated"] for row in fresh) / len(fresh),
            "generated_tokens": float(sum(tokens)),
            "generated_tokens_total": float(self.generated),
            "trained_tokens": float(sum(row["num_tokens"] for row in rows)),
            "r3/groups/all_correct": groups * share * 0.4,
            "r3/groups/none_correct": none,
            "r3/groups/mixed": groups - none - groups * share * 0.4,
            "r3/groups/collapsed_before": none + groups * share * 0.4,
            "r3/groups/collapsed_after": none * 0.3,
            "r3/groups/left_out": 0.0,
            "r3/replay/recalled": float(len(recalled)),
            "r3/replay/hits": len(recalled) / RECALLED,
            "r3/replay/misses": 3.0,
            "r3/replay/mean_lag": sum(lags) / len(lags) if lags else 0.0,
            "r3/replay/max_lag": float(max(lags, default=0)),
            "r3/replay/row_share": len(recalled) / len(rows),
            "r3/replay/ratio_mean": 1 + noise,
            "r3/replay/ratio_max": 3 + 50 * abs(noise),
            "r3/replay/clip_fraction": 0.1 + abs(noise),
            "r3/reflection/groups": float(groups - self.size.problems),
            "r3/reflection/hard_prompts": float(groups - self.size.problems),
            "r3/reflection/accuracy": share / 2,
            "r3/reflection/plain_accuracy": share / 3,
            "r3/ranking/groups": 5.0,
            "r3/ranking/rows": float(sum(row["ranked"] for row in rows)),
            "r3/entropy/estimate": 0.6 * 0.999**self.step + abs(noise),
            "r3/sync/abs_logprob_gap": 0.01 + abs(noise) / 10,
            "r3/grading/ungraded": float(len(fresh) - len(graded)),
            "r3/grading/ungraded_rate": 1 - len(graded) / len(fresh),
            "r3/tokens/mixed": 0.5 * sum(tokens),
            "r3/tokens/all_correct": 0.1 * sum(tokens),
            "r3/tokens/none_correct": 0.3 * sum(tokens),
            "r3/tokens/reflection": 0.1 * sum(tokens),
            "timing/generation": 120 + 100 * noise,
            "timing/make_experience": 25.0,
            "timing/ppo_train": 40.0,
            "timing/broadcast": 3.0,
            "timing/step_total": 190 + 100 * noise,
            "r3/time/added_s": 2.0,
        }

    def _evaluation(self, epoch: int) -> dict:
        accuracy = 0.3 + 0.3 * self.step / self.size.steps
        return {
            "step": self.step,
            "epoch": epoch + 1,
            "generated_tokens": self.generated,
            "name": "held_out",
            "num_problems": 30,
            "n_samples": 16,
            "temperature": 0.6,
            "max_new_tokens": self.size.max_tokens,
            "pass_at_1": accuracy,
            "pass_at_n": accuracy + 0.2,
            "response_tokens_mean": 4000.0,
            "truncated_rate": 0.1,
            "num_ungraded": 0,
            "problems_sha256": "0" * 64,
        }


def corpus(draw: random.Random) -> str:
    """CORPUS_CHARACTERS of prose of this repository, with numbers of its own in every sentence."""
    text = " ".join(file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("docs/*.md")))
    sentences = [
        " ".join(part.split()) for part in re.split(r"[.:;]\s", text) if 20 < len(part) < 300
    ]
    draw.shuffle(sentences)
    parts, length = [], 0
    for sentence in sentences:
        parts.append(
            f"{sentence}, so $y_{{{draw.randrange(1000)}}} = {draw.randrange(10**5)}$. "
        )
        length += len(parts[-1])
        if length >= CORPUS_CHARACTERS:
            break
    prose = "".join(parts)
    return (prose * (-(-CORPUS_CHARACTERS // len(prose))))[:CORPUS_CHARACTERS]


def make(directory: Path, size: Size) -> None:
    run = SyntheticRun(directory, size)
    rollouts = sum(run.write() for _ in range(size.steps))
    print(f"{size.steps} steps, {rollouts:,} rollouts")
