"""How much of what was ever sampled can still be recalled under the byte cap? The real store, three epochs, scaled down.

    python benchmarks/history_coverage.py --mean-tokens 3500,4500,5500 --output coverage.json        # about 3 minutes

A run of 40,315 problems (DeepScaleR), 128 x 16 a step, history.max_bytes of 20 GB, with problems, batch and bytes divided
by --scale (64): 630 problems, 2 a step, 312.5 MB. Lengths, steps an epoch (315), checkpoints (every 20 steps, 3 kept) and
hence the age at which evicted rows are freed are those of the full run.

The population: a problem's pass rate is drawn from Beta(0.5, 0.5), many easy and many hard ones, and its log-odds rise by
0.6 an epoch. Lengths are log-normal (sigma 0.5) around the problem's own median (sigma 0.4 between problems); wrong
responses are 1.6 times as long as right ones; cut at 8,192 tokens, where a response is wrong. Medians are set so that
epoch 1 has the mean asked for.

Per epoch: `anything`, the share of the asked problems of which any rollout is still recallable; `collapsed`, groups with
equal verdicts; `never`, those whose opposite verdict was never sampled; `coverage`, of the others the share with something
to recall.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

from r3_openrlhf.method.history import HistoryStore, RecallRequest  # noqa: E402
from r3_openrlhf.method.settings import HistorySettings  # noqa: E402
from r3_openrlhf.method.types import Context, Rollout, Verdict  # noqa: E402

PROBLEMS, BATCH, GROUP, EPOCHS = 40_315, 128, 16, 3
MAX_TOKENS, VOCABULARY = 8192, 151_936
SAVE_STEPS, CHECKPOINTS = 20, 3
MAX_POLICY_LAG = 1000


class Population:
    """Pass rates and lengths of simulated problems."""

    def __init__(self, num: int, *, mean_tokens: float, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        rate = self.rng.beta(0.5, 0.5, num).clip(1e-4, 1 - 1e-4)
        self.log_odds = np.log(rate / (1 - rate))
        self.factor = np.exp(0.4 * self.rng.standard_normal(num))
        self.median = 1.0
        low, high = 10.0, 20_000.0  # of the right responses, by bisection
        for _ in range(30):
            self.median = (low + high) / 2
            sampled = [length for p in range(0, num, 3) for length, _ in self.sample(p, epoch=1)]
            low, high = (self.median, high) if np.mean(sampled) < mean_tokens else (low, self.median)
        self.ids = ((self.rng.zipf(1.2, size=4_000_000) - 1) % VOCABULARY).astype(np.int32)
        self.logprobs = (
            -self.rng.exponential(size=4_000_000)
            * self.rng.choice([1e-4, 0.05, 1.0], size=4_000_000, p=[0.5, 0.3, 0.2])
        ).astype(np.float32)

    def sample(self, problem: int, *, epoch: int) -> list[tuple[int, bool]]:
        """(tokens, right?) of one group."""
        rate = 1 / (1 + np.exp(-self.log_odds[problem] - 0.6 * (epoch - 1)))
        right = self.rng.random(GROUP) < rate
        median = self.median * self.factor[problem] * np.where(right, 1.0, 1.6)
        lengths = (median * np.exp(0.5 * self.rng.standard_normal(GROUP))).astype(int).clip(8, MAX_TOKENS)
        return [(int(n), bool(r and n < MAX_TOKENS)) for n, r in zip(lengths, right, strict=True)]

    def rollouts(self, problem: int, *, epoch: int, step: int) -> list[Rollout]:
        prompt = self.ids[problem : problem + 150]
        found = []
        for length, right in self.sample(problem, epoch=epoch):
            start = int(self.rng.integers(len(self.ids) - length))
            found.append(
                Rollout(
                    uid=f"problem-{problem}",
                    context=Context.PLAIN,
                    prompt_ids=prompt,
                    response_ids=self.ids[start : start + length],
                    response_logprobs=self.logprobs[start : start + length],
                    verdict=Verdict.CORRECT if right else Verdict.WRONG,
                    reward=1.0 + max(0.0, 1 - length / 32768) if right else 0.0,
                    truncated=length == MAX_TOKENS,
                    finish_reason="stop",
                    policy_step=step,
                    epoch=epoch,
                )
            )
        return found


def drive(
    store: HistoryStore, population: Population, *, num_problems: int, batch: int, epochs: int, seed: int
) -> list[dict[str, float]]:
    """A run's calls in its order: for each batch recall, commit, and the floor of the oldest checkpoint."""
    step, ever, reports, checkpoints = 0, set(), [], []
    for epoch in range(1, epochs + 1):
        counts = dict.fromkeys(("asked", "anything", "collapsed", "never", "hits"), 0)
        tokens, commits = [], []
        order = random.Random(f"{seed}/{epoch}").sample(range(num_problems), num_problems)
        for start in range(0, num_problems - batch + 1, batch):
            rollouts = []
            for problem in order[start : start + batch]:
                group = population.rollouts(problem, epoch=epoch, step=step)
                verdicts = {rollout.verdict for rollout in group}
                rows = {
                    verdict: store.recall_many(
                        [
                            RecallRequest(
                                uid=group[0].uid, verdict=verdict, k=2, step=step, max_policy_lag=MAX_POLICY_LAG
                            )
                        ]
                    )[0]
                    for verdict in (Verdict.CORRECT, Verdict.WRONG)
                }
                counts["asked"] += 1
                counts["anything"] += any(rows.values())
                if len(verdicts) == 1:
                    counts["collapsed"] += 1
                    (opposite,) = {Verdict.CORRECT, Verdict.WRONG} - verdicts
                    counts["never"] += (problem, opposite) not in ever
                    counts["hits"] += bool(rows[opposite])
                ever |= {(problem, verdict) for verdict in verdicts}
                tokens += [rollout.num_tokens for rollout in group]
                rollouts += group
            step += 1
            began = time.process_time()
            store.commit_step(step, epoch, rollouts)
            if step % SAVE_STEPS == 0:
                checkpoints = [*checkpoints, step][-CHECKPOINTS:]
                store.set_rollback_floor(checkpoints[0])
            commits.append(time.process_time() - began)
        known = counts["collapsed"] - counts["never"]
        reports.append(
            {
                "epoch": epoch,
                "mean_tokens": float(np.mean(tokens)),
                "anything": counts["anything"] / counts["asked"],
                "collapsed": counts["collapsed"],
                "never": counts["never"],
                "coverage": counts["hits"] / known if known else 1.0,
                "commit_cpu_s": float(np.mean(commits)),
                "commit_cpu_s_max": float(np.max(commits)),
            }
        )
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mean-tokens", default="3500,4500,5500")
    parser.add_argument("--scale", type=int, default=64)
    parser.add_argument("--max-bytes", type=float, default=20e9, help="of the full run")
    parser.add_argument("--cap", type=int, default=32, help="history.max_per_problem_and_verdict")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", help="where the stores are written; default: a temporary directory")
    parser.add_argument("--output")
    options = parser.parse_args()
    num, batch = PROBLEMS // options.scale, BATCH // options.scale
    reports = []
    print("| mean tokens | epoch | anything | collapsed | never | coverage | commit CPU s, mean / max |")
    print("|---|---|---|---|---|---|---|")
    for mean_tokens in map(float, options.mean_tokens.split(",")):
        population = Population(num, mean_tokens=mean_tokens, seed=options.seed)
        limits = HistorySettings(
            max_per_problem_and_verdict=options.cap, max_bytes=int(options.max_bytes / options.scale)
        )
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            path = Path(directory) / "history.sqlite"
            with HistoryStore.open(path, limits=limits) as store:
                found = drive(store, population, num_problems=num, batch=batch, epochs=EPOCHS, seed=options.seed)
            size = path.stat().st_size
        for line in found:
            print(
                f"| {line['mean_tokens']:.0f} | {line['epoch']} | {line['anything']:.1%} | {line['collapsed']} "
                f"| {line['never']} | {line['coverage']:.1%} | {line['commit_cpu_s']:.3f} / {line['commit_cpu_s_max']:.3f} |",
                flush=True,
            )
        reports.append({"asked_mean_tokens": mean_tokens, "file_bytes": size, "epochs": found})
    if options.output:
        Path(options.output).write_text(json.dumps({"options": vars(options), "reports": reports}, indent=1) + "\n")


if __name__ == "__main__":
    main()
