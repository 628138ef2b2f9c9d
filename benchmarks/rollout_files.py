"""What do the rollouts of a step cost on disk and in time, as Parquet and as JSON Lines? Size, write, read.

    python benchmarks/rollout_files.py                                # 128 x 16 rollouts of 1,000 to 3,000 tokens of text
    python benchmarks/rollout_files.py --problems 8 --samples 4

The text is prose of this repository (docs/*.md and docstrings, no two rollouts alike) cut to --min-tokens to --max-tokens
tokens, four characters each. Real responses repeat themselves more, and compress better. Medians of --rounds rounds; the
file system's cache is warm. The last lines are what values per token would take if every row had them: entropies (and log-probs,
which are alike) of 70% of the tokens from an exponential distribution of mean 0.02 nats, of the others from a gamma distribution
of mean 1, and characters of one token, one to eight.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from r3_openrlhf.runs.files import RolloutLine, read_lines
from r3_openrlhf.runs.rollout_files import read_step, read_tokens, write_step

ROOT = Path(__file__).parents[1]
CHARACTERS = 4  # of a token


def rollouts_of(draw: random.Random, *, problems: int, samples: int, tokens: tuple[int, int]) -> list[dict]:
    """One step, every column filled as a run fills it."""
    files = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("r3_openrlhf/**/*.py"))]
    words = [word for file in files for word in file.read_text(encoding="utf-8").split(" ")]
    rows = []
    for problem in range(problems):
        for _ in range(samples):
            length, begin, parts, size = draw.randint(*tokens), draw.randrange(len(words)), [], 0
            while size < length * CHARACTERS:
                if draw.random() < 0.05:  # from elsewhere: no two responses share long passages
                    begin = draw.randrange(len(words))
                parts.append(words[begin % len(words)])
                size, begin = size + len(parts[-1]) + 1, begin + 1
            peak = draw.uniform(1, 3)
            rows.append(
                {
                    "step": 1, "uid": f"{problem:016x}", "context": "plain", "group": problem, "verdict": "wrong",
                    "reason": "wrong", "outcome_reward": 0.0, "reward": draw.random(), "ranked": True,
                    "advantage": draw.gauss(0, 1), "recalled_from": None, "truncated": False, "num_tokens": length,
                    "entropy_peak": peak, "entropy_global": peak / 4, "entropy_source": "exact",
                    "text": " ".join(parts)[: length * CHARACTERS],
                }
            )  # fmt: skip
    return rows


def token_columns(rows: list[dict]) -> dict[str, list[np.ndarray]]:
    """Values of the tokens of every row."""
    rng = np.random.default_rng(0)
    found: dict[str, list[np.ndarray]] = {"token_entropy": [], "token_chars": []}
    for row in rows:
        size = row["num_tokens"]
        values = np.where(rng.random(size) < 0.7, rng.exponential(0.02, size), rng.gamma(1.25, 0.8, size))
        found["token_entropy"].append(values.astype(np.float16))
        found["token_chars"].append(
            rng.choice(np.arange(1, 9, dtype=np.uint16), size, p=[0.2, 0.15, 0.15, 0.2, 0.1, 0.1, 0.05, 0.05])
        )
    return found


def seconds(call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--min-tokens", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = rollouts_of(
        random.Random(0),
        problems=options.problems,
        samples=options.samples,
        tokens=(options.min_tokens, options.max_tokens),
    )
    with tempfile.TemporaryDirectory() as directory:
        lines = Path(directory) / "rollouts.jsonl"

        def write_lines() -> None:
            lines.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")

        times = {name: [] for name in ("Parquet write", "Parquet read", "JSON Lines write", "JSON Lines read")}
        for _ in range(options.rounds):
            times["Parquet write"].append(seconds(lambda: write_step(Path(directory), 1, rows)))
            times["Parquet read"].append(seconds(lambda: list(read_step(Path(directory) / "step_000001.parquet"))))
            times["JSON Lines write"].append(seconds(write_lines))
            times["JSON Lines read"].append(seconds(lambda: list(read_lines(lines, RolloutLine))))
        sizes = {
            "Parquet": (Path(directory) / "step_000001.parquet").stat().st_size,
            "JSON Lines": lines.stat().st_size,
        }
    tokens = sum(row["num_tokens"] for row in rows)
    print(f"{len(rows)} rollouts, {tokens / 1e6:.2f} million tokens, {options.rounds} rounds")
    for kind, size in sizes.items():
        write, read = (statistics.median(times[f"{kind} {what}"]) for what in ("write", "read"))
        print(
            f"{kind:<10}  {size / 1e6:6.2f} MB  write {write:.3f} s  read {read:.3f} s  {size / tokens:.2f} bytes a token"
        )
    print(f"JSON Lines / Parquet: {sizes['JSON Lines'] / sizes['Parquet']:.2f} in bytes")
    with tempfile.TemporaryDirectory() as directory:
        for name, values in token_columns(rows).items():
            more = [row | {name: value} for row, value in zip(rows, values, strict=True)]
            write = seconds(lambda: write_step(Path(directory), 1, more))  # noqa: B023
            size = (Path(directory) / "step_000001.parquet").stat().st_size
            read = seconds(lambda: list(read_tokens(Path(directory) / "step_000001.parquet")))
            print(
                f"with {name} of every row: {(size - sizes['Parquet']) / tokens:.2f} bytes a token more; write {write:.3f} s, read {read:.3f} s"
            )


if __name__ == "__main__":
    main()
