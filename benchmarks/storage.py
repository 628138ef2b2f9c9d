"""Measure what a step costs to keep: commits, recalls and bytes of the history store, and the file of rollouts.

    python benchmarks/storage.py                                  # 1e3 and 1e4 rollouts, about two minutes
    python benchmarks/storage.py --sizes 1e3,1e4,1e5,1e6 --recalls 100

For each size: fill the store with steps of 2,048 rollouts (128 problems x 16; fewer for 1e3), 2,048 tokens long on average (32 from
1e6 on); open it again; recall for 128 problems with k = 2; commit steps of 2,048 rollouts x 8,192 tokens; recall those; roll back
first those, then 20 steps of the fill. Token ids are drawn from a Zipf law over 151,936, log-probs have random mantissas: real ones
compress a little better. Memory is the peak above what the process held before it opened the store, rollouts included.

Then one step of 128 x 16 rollouts of 1,000 to 3,000 tokens of prose of this repository is written as Parquet and as JSON Lines, and
once more with one value per token of each row. Real responses repeat themselves more and compress better.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # runs from a checkout that is not installed

from r3_openrlhf.method.history import HistoryStore, RecallRequest  # noqa: E402
from r3_openrlhf.method.settings import HistorySettings  # noqa: E402
from r3_openrlhf.method.types import Context, Rollout, Verdict  # noqa: E402
from r3_openrlhf.runs.files import read_lines  # noqa: E402
from r3_openrlhf.runs.rollout_files import read_step, write_step  # noqa: E402

PROBLEMS, GROUP, PAPER_TOKENS, VOCABULARY = 128, 16, 8192, 151_936
CHARACTERS = 4  # of a token of prose


def draw_rollouts(
    rng: np.random.Generator, *, num: int, tokens: int, is_exact: bool
) -> list[Rollout]:
    """Draw templates. Every use changes the first tokens, so that no two responses are equal."""
    templates = []
    for _ in range(num):
        length = tokens if is_exact else max(4, int(rng.gamma(2.0, tokens / 2)))
        logprobs = -rng.exponential(size=length) * rng.choice(
            [1e-4, 0.05, 1.0], size=length, p=[0.5, 0.3, 0.2]
        )
        verdict = Verdict.CORRECT if rng.random() < 0.5 else Verdict.WRONG
        templates.append(
            Rollout(
                uid="",
                context=Context.PLAIN,
                prompt_ids=rng.integers(0, VOCABULARY, 150).astype(np.int32),
                response_ids=((rng.zipf(1.2, size=length) - 1) % VOCABULARY).astype(np.int32),
                response_logprobs=logprobs.astype(np.float32),
                verdict=verdict,
                reward=1.5 if verdict is Verdict.CORRECT else 0.0,
                truncated=False,
                finish_reason="stop",
                policy_step=0,
                epoch=1,
            )
        )
    return templates


def step_of(
    step: int, templates: list[Rollout], *, num: int, uid: str, problems: int
) -> list[Rollout]:
    rollouts = []
    for index in range(num):
        template = templates[(step * num + index) % len(templates)]
        ids = template.response_ids.copy()
        ids[:3] = step, index, 7
        name = f"{uid}-{(step * PROBLEMS + index // GROUP) % problems}"
        rollouts.append(
            dataclasses.replace(template, uid=name, response_ids=ids, policy_step=step)
        )
    return rollouts


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float, float]:
    """Return the function's value, and its wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = function(*arguments)
    return value, time.perf_counter() - wall, time.process_time() - cpu


def status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(text.split()[1]) / 1000 for text in lines if text.startswith(name + ":"))


def recall_ms(
    store: HistoryStore, rng: np.random.Generator, *, uids: list[str], step: int, times: int
) -> str:
    wall_ms = []
    for _ in range(times):
        requests = [
            RecallRequest(
                uid=str(uid),
                verdict=Verdict.WRONG if rng.random() < 0.5 else Verdict.CORRECT,
                k=2,
                step=step,
                max_policy_lag=10**6,
            )
            for uid in rng.choice(uids, PROBLEMS)
        ]
        wall_ms.append(
            1000 * timed(lambda some: [store.answer(one) for one in some], requests)[1]
        )
    return f"p50 {statistics.median(wall_ms):.1f} p99 {np.percentile(wall_ms, 99):.1f} ms"


def measure_store(size: int, commits: int, recalls: int) -> str:
    rng = np.random.default_rng(1)
    per_step = min(size, PROBLEMS * GROUP)
    steps, problems = size // per_step, max(PROBLEMS, size // 25)
    templates = draw_rollouts(
        rng, num=256, tokens=32 if size >= 10**6 else 2048, is_exact=False
    )
    long_templates = draw_rollouts(rng, num=64, tokens=PAPER_TOKENS, is_exact=True)
    later = range(steps + 1, steps + 1 + commits)
    long_steps = {
        n: step_of(n, long_templates, num=PROBLEMS * GROUP, uid="long", problems=10**9)
        for n in later
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.sqlite"
        # the kernel's record of the peak starts anew: proc_pid_clear_refs(5)
        Path("/proc/self/clear_refs").write_text("5")
        before_mb, tokens = status_mb("VmRSS"), 0
        with closing(
            HistoryStore.open(path, limits=HistorySettings(max_bytes=10**12))
        ) as store:
            for step in range(1, steps + 1):
                rollouts = step_of(
                    step, templates, num=per_step, uid="problem", problems=problems
                )
                tokens += sum(rollout.num_tokens for rollout in rollouts)
                store.commit_step(step, 1, rollouts)
        bytes_per_token = path.stat().st_size / tokens
        store, open_s, _ = timed(
            lambda: HistoryStore.open(path, limits=HistorySettings(max_bytes=10**12))
        )
        with closing(store):
            short = recall_ms(
                store,
                rng,
                uids=[f"problem-{n}" for n in range(problems)],
                step=steps + 1,
                times=recalls,
            )
            seconds = [
                timed(store.commit_step, number, 1, rollouts)[1:]
                for number, rollouts in long_steps.items()
            ]
            wall_s, cpu_s = (statistics.median(column) for column in zip(*seconds, strict=True))
            uids = sorted(
                {rollout.uid for rollouts in long_steps.values() for rollout in rollouts}
            )
            long = recall_ms(store, rng, uids=uids, step=steps + commits + 1, times=recalls)
            peak_mb = status_mb("VmHWM") - before_mb
            undo_s = [timed(store.roll_back, step)[1] for step in (steps, max(0, steps - 20))]
    return (
        f"{steps * per_step:>8} rollouts  commit {wall_s:.2f} s (cpu {cpu_s:.2f})  recall {short}, of 8192 tokens {long}  "
        f"open {open_s:.3f} s  roll back {undo_s[0]:.2f} and {undo_s[1]:.2f} s  {bytes_per_token:.2f} B/token  +{peak_mb:.0f} MB"
    )


def prose_rows(draw: random.Random) -> list[dict]:
    """Make one step. Passages are short, so that no two responses share long ones."""
    words = [
        word
        for file in sorted(ROOT.glob("docs/*.md"))
        for word in file.read_text(encoding="utf-8").split(" ")
    ]
    rows = []
    for index in range(PROBLEMS * GROUP):
        length, begin, parts = draw.randint(1000, 3000), draw.randrange(len(words)), []
        while len(parts) < length:
            begin = (
                draw.randrange(len(words)) if draw.random() < 0.05 else (begin + 1) % len(words)
            )
            parts.append(words[begin])
        rows.append(
            {
                "step": 1,
                "uid": f"{index // GROUP:016x}",
                "context": "plain",
                "group": index // GROUP,
                "verdict": "wrong",
                "reason": "wrong",
                "outcome_reward": 0.0,
                "reward": draw.random(),
                "ranked": True,
                "advantage": draw.gauss(0, 1),
                "recalled_from": None,
                "truncated": False,
                "num_tokens": length,
                "text": " ".join(parts)[: length * CHARACTERS],
            }
        )
    return rows


def measure_file(rounds: int) -> list[str]:
    rows, rng = prose_rows(random.Random(0)), np.random.default_rng(0)
    tokens = sum(row["num_tokens"] for row in rows)
    entropies = [rng.exponential(0.3, row["num_tokens"]).astype(np.float16) for row in rows]
    with tempfile.TemporaryDirectory() as directory:
        folder, lines = Path(directory), Path(directory) / "rollouts.jsonl"
        parquet = folder / "step_000001.parquet"

        def write_lines() -> None:
            lines.write_text(
                "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
                encoding="utf-8",
            )

        def line_of(
            name: str, file: Path, write: Callable[[], Any], read: Callable[[], Any]
        ) -> str:
            seconds = [
                statistics.median(timed(call)[1] for _ in range(rounds))
                for call in (write, read)
            ]
            size = file.stat().st_size
            return f"{name:<24} {size / 1e6:6.2f} MB  {size / tokens:.2f} B/token  write {seconds[0]:.2f} s  read {seconds[1]:.2f} s"

        valued = [
            row | {"token_entropy": values} for row, values in zip(rows, entropies, strict=True)
        ]
        return [
            f"{len(rows)} rollouts, {tokens / 1e6:.2f} million tokens",
            line_of(
                "Parquet",
                parquet,
                lambda: write_step(folder, 1, rows),
                lambda: list(read_step(parquet)),
            ),
            line_of("JSON Lines", lines, write_lines, lambda: list(read_lines(lines))),
            line_of(
                "Parquet, a value a token",
                parquet,
                lambda: write_step(folder, 1, valued),
                lambda: list(read_step(parquet)),
            ),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", default="1e3,1e4", help="rollouts in the store, comma-separated"
    )
    parser.add_argument("--commits", type=int, default=3, help="steps of 2,048 x 8,192 tokens")
    parser.add_argument("--recalls", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="of the file of rollouts")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    # memory is each size's own
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
        for size in options.sizes.split(","):
            print(
                fresh.apply(
                    measure_store, (int(float(size)), options.commits, options.recalls)
                ),
                flush=True,
            )
    print("\n".join(measure_file(options.rounds)))


if __name__ == "__main__":
    main()
