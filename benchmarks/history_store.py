"""What does the history store cost, beside other ways to keep the same rollouts? Time, memory and bytes, in one run.

    python benchmarks/history_store.py --output history.json                  # 1e3 and 1e4 rollouts, about 2 minutes
    python benchmarks/history_store.py --sizes 1e3,1e4,1e5,1e6 --output history.json

Peers (`pip install --no-deps lmdb==3.0.0 torchrl==0.14.1 tensordict==0.15.3 pyvers==0.2.3`; an absent one is left out
with the reason): LMDB with the same arrays and keys, TorchRL's memory-mapped storage, a pickled dict of deques.

For each store and size, in a process of its own: fill it with steps of 2048 rollouts (128 problems x 16; fewer for
1e3), the responses --fill-tokens long on average (32 from 1e6 on); open it again; recall for 128 problems with k = 2,
--recalls times; commit --commits steps of the paper's scale, 2048 rollouts x 8192 tokens; recall those; roll back the
steps of the paper's scale, then 20 steps of the fill.

Token ids are drawn from a Zipf law over 151,936, log-probs have random mantissas: real ones compress a little better.
Wall time and the process's own CPU time: on a machine that does other work too, the second is the store's cost.
Memory is the peak above what the process held before it opened the store (which includes the rollouts themselves).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

from benchmarks import history_peers  # noqa: E402
from r3_openrlhf.method.history import HistoryStore, RecallRequest  # noqa: E402
from r3_openrlhf.method.settings import HistorySettings  # noqa: E402
from r3_openrlhf.method.types import Context, EntropyStatistics, Rollout, Verdict  # noqa: E402
from r3_openrlhf.runs.history_numbers import statistics as statistics_of  # noqa: E402

PROBLEMS_PER_STEP = 128
GROUP = 16
PAPER_TOKENS = 8192
VOCABULARY = 151_936
STORES = ("r3", "lmdb", "torchrl memmap", "pickled deques")
MAX_PICKLE_BYTES = 1_500_000_000  # of rollouts: it holds them all in memory, twice while it writes
MAX_MEMMAP_BYTES = 12_000_000_000


class Ours:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = HistoryStore.open(path, limits=HistorySettings(max_bytes=10**12))

    def commit(self, step: int, rollouts: list[Rollout]) -> None:
        self._store.commit_step(step, 1, rollouts)

    def recall(self, requests: list[RecallRequest]) -> list:
        return self._store.recall_many(requests)

    def roll_back(self, step: int) -> None:
        self._store.roll_back(step)

    def close(self) -> None:
        self._store.close()


def draw_rollouts(rng: np.random.Generator, *, num: int, tokens: int, exact: bool) -> list[Rollout]:
    """Templates; every use changes the first tokens, so that no two responses are equal."""
    templates = []
    for _ in range(num):
        length = tokens if exact else max(4, int(rng.gamma(2.0, tokens / 2)))
        logprobs = -rng.exponential(size=length) * rng.choice([1e-4, 0.05, 1.0], size=length, p=[0.5, 0.3, 0.2])
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
                entropy=EntropyStatistics(peak=1.0, global_=0.5, source="exact"),
            )
        )
    return templates


def step_of(step: int, templates: list[Rollout], *, num: int, problems: int) -> list[Rollout]:
    rollouts = []
    for place in range(num):
        template = templates[(step * num + place) % len(templates)]
        ids = template.response_ids.copy()
        ids[:3] = step, place, 7
        uid = f"problem-{(step * PROBLEMS_PER_STEP + place // GROUP) % problems}"
        logprobs = template.response_logprobs.copy()  # of its own: pickle would write a shared array once
        rollouts.append(
            dataclasses.replace(template, uid=uid, response_ids=ids, response_logprobs=logprobs, policy_step=step)
        )
    return rollouts


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float, float]:
    """What the function returns, and its wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = function(*arguments)
    return value, time.perf_counter() - wall, time.process_time() - cpu


def status_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1000
    raise KeyError(name)


def reset_peak_memory() -> float:
    """Sets the kernel's record of this process's peak back (proc_pid_clear_refs(5)); what it holds now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_mb("VmRSS")


def bytes_on_disk(path: Path) -> int:
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    return sum(file.stat().st_blocks * 512 for file in files)


def recall_times(store: Any, rng: np.random.Generator, *, uids: list[str], step: int, times: int) -> dict[str, float]:
    taken, busy, hits = [], [], 0
    for _ in range(times):
        requests = [
            RecallRequest(
                uid=str(uid),
                verdict=Verdict.WRONG if rng.random() < 0.5 else Verdict.CORRECT,
                k=2,
                step=step,
                max_policy_lag=10**6,
            )
            for uid in rng.choice(uids, PROBLEMS_PER_STEP)
        ]
        answers, wall_s, cpu_s = timed(store.recall, requests)
        taken.append(1000 * wall_s)
        busy.append(1000 * cpu_s)
        hits += sum(map(len, answers))
    return {
        "p50_ms": statistics.median(taken),
        "p99_ms": float(np.percentile(taken, 99)),
        "cpu_p50_ms": statistics.median(busy),
        "cpu_p99_ms": float(np.percentile(busy, 99)),
        "rows": hits / times,
    }


def run_case(name: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """All measurements of one store at one size."""
    rng = np.random.default_rng(1)
    fill_tokens = 32 if size >= 10**6 else options.fill_tokens
    per_step = min(size, PROBLEMS_PER_STEP * GROUP)
    steps = size // per_step
    problems = max(PROBLEMS_PER_STEP, size // 25)
    templates = draw_rollouts(rng, num=256, tokens=fill_tokens, exact=False)
    paper_rows = PROBLEMS_PER_STEP * GROUP
    long_templates = draw_rollouts(rng, num=64, tokens=PAPER_TOKENS, exact=True)
    paper_steps = [
        [
            dataclasses.replace(rollout, uid=f"long-{number}-{rollout.uid}")
            for rollout in step_of(steps + 1 + number, long_templates, num=paper_rows, problems=10**9)
        ]
        for number in range(options.commits)
    ]
    longest = max(template.num_tokens for template in templates)
    directory = Path(tempfile.mkdtemp(dir=options.directory))
    path = directory / "store"
    try:
        make = opener(name, path, size=size, width=PAPER_TOKENS, extra=options.commits * paper_rows)
        before = reset_peak_memory()
        store = make()
        fill_s = 0.0
        for step in range(1, steps + 1):
            rollouts = step_of(step, templates, num=per_step, problems=problems)
            # The deques would write everything again with every step: saved once, at the end.
            unsaved = (False,) if name == "pickled deques" and step < steps else ()
            fill_s += timed(store.commit, step, rollouts, *unsaved)[1]
        tokens = sum(
            templates[(s * per_step + p) % 256].num_tokens for s in range(1, steps + 1) for p in range(per_step)
        )
        store.close() if name != "torchrl memmap" else None
        result: dict[str, Any] = {
            "store": name,
            "rollouts": steps * per_step,
            "tokens_per_rollout": tokens / (steps * per_step),
            "longest": longest,
            "fill_rollouts_per_s": steps * per_step / fill_s,
            "bytes_per_token": bytes_on_disk(path) / tokens,
            "file_mb": bytes_on_disk(path) / 1e6,
        }
        if name.startswith("r3"):
            sizes = statistics_of(path)["bytes"]
            result["counted_bytes_per_file_byte"] = sizes["counted_towards_cap"] / sizes["file"]
        if name == "torchrl memmap":
            result["open_s"] = None  # the index by problem would have to be kept and loaded by the caller
        else:
            store, result["open_s"], _ = timed(make)
        uids = [f"problem-{number}" for number in range(problems)]
        store.recall([RecallRequest(uid=uids[0], verdict=Verdict.WRONG, k=2, step=steps, max_policy_lag=10**6)])
        result["recall"] = recall_times(store, rng, uids=uids, step=steps + 1, times=options.recalls)
        commits = [
            timed(store.commit, steps + 1 + number, rollouts)[1:] for number, rollouts in enumerate(paper_steps)
        ]
        taken, busy = zip(*commits, strict=True)
        result["commit_2048x8192_s"] = {
            "median": statistics.median(taken),
            "max": max(taken),
            "cpu_median": statistics.median(busy),
        }
        long_uids = sorted({rollout.uid for rollouts in paper_steps for rollout in rollouts})
        result["recall_8192"] = recall_times(store, rng, uids=long_uids, step=steps + 9, times=options.recalls)
        result["peak_memory_added_mb"] = status_mb("VmHWM") - before
        for key, step in (("roll_back_paper_steps_s", steps), ("roll_back_20_steps_s", max(0, steps - 20))):
            _, wall_s, cpu_s = timed(store.roll_back, step)
            result[key] = {"wall": wall_s, "cpu": cpu_s}
        store.close()
        return result
    finally:
        shutil.rmtree(directory)


def opener(name: str, path: Path, *, size: int, width: int, extra: int) -> Callable[[], Any]:
    if name == "lmdb":
        return lambda: history_peers.Lmdb(path)
    if name == "pickled deques":
        return lambda: history_peers.PickledDeques(path)
    if name == "torchrl memmap":
        return lambda: history_peers.TorchRLMemmap(path, capacity=size + extra, width=width)
    return lambda: Ours(path)


def reason_to_skip(name: str, size: int, options: argparse.Namespace) -> str | None:
    module = {"lmdb": "lmdb", "torchrl memmap": "torchrl"}.get(name)
    if module is not None:
        done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True)
        if done.returncode:
            return f"cannot import {module}: {done.stderr.strip().splitlines()[-1]}"
    paper = options.commits * PROBLEMS_PER_STEP * GROUP
    tokens = (32 if size >= 10**6 else options.fill_tokens) * size + paper * PAPER_TOKENS
    if name == "pickled deques" and 8 * tokens > MAX_PICKLE_BYTES:
        return f"would hold {8 * tokens / 1e9:.1f} GB of rollouts in memory, and write them all with every step"
    if name == "torchrl memmap" and (size + paper) * PAPER_TOKENS * 8 > MAX_MEMMAP_BYTES:
        return f"rows of {PAPER_TOKENS} tokens whatever their length: {(size + paper) * PAPER_TOKENS * 8 / 1e9:.0f} GB"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1e3,1e4", help="rollouts, comma-separated")
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--fill-tokens", type=int, default=2048, help="mean response length of the fill")
    parser.add_argument("--commits", type=int, default=3, help="steps of the paper's scale")
    parser.add_argument("--recalls", type=int, default=100)
    parser.add_argument("--directory", help="where the stores lie while they are measured; default: the temporary one")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, size = options.case.rsplit(":", 1)
        print(json.dumps(run_case(name, int(size), options)))
        return
    results = []
    for size in [int(float(text)) for text in options.sizes.split(",")]:
        for name in options.stores.split(","):
            if reason := reason_to_skip(name, size, options):
                results.append({"store": name, "rollouts": size, "skipped": reason})
            else:
                done = subprocess.run(
                    [sys.executable, __file__, *sys.argv[1:], "--case", f"{name}:{size}"],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                if done.returncode:
                    raise SystemExit(f"{name} at {size} failed with exit code {done.returncode}")
                results.append(json.loads(done.stdout.splitlines()[-1]))  # TorchRL prints there too
            print(line(results[-1]), file=sys.stderr, flush=True)
    report = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "command": " ".join(sys.argv),
        "results": results,
    }
    text = json.dumps(report, indent=1)
    if options.output:
        options.output.write_text(text + "\n")
    else:
        print(text)


def line(result: dict[str, Any]) -> str:
    head = f"{result['store']:<15} {result['rollouts']:>8}"
    if "skipped" in result:
        return f"{head}  skipped: {result['skipped']}"
    opened = "-" if result["open_s"] is None else f"{result['open_s']:.3f}"
    commit, recalls = result["commit_2048x8192_s"], (result["recall"], result["recall_8192"])
    undone = result["roll_back_paper_steps_s"], result["roll_back_20_steps_s"]
    short, long = (
        f"p50 {r['p50_ms']:.1f} p99 {r['p99_ms']:.1f} (cpu {r['cpu_p50_ms']:.1f}, {r['cpu_p99_ms']:.1f})"
        for r in recalls
    )
    return (
        f"{head}  commit {commit['median']:.2f} s (max {commit['max']:.2f}, cpu {commit['cpu_median']:.2f})  "
        f"recall {short} ms, of 8192 tokens {long} ms  open {opened} s  "
        f"roll back {undone[0]['wall']:.2f} and {undone[1]['wall']:.2f} s (cpu {undone[0]['cpu']:.2f}, {undone[1]['cpu']:.2f})  "
        f"{result['bytes_per_token']:.2f} B/token  +{result['peak_memory_added_mb']:.0f} MB  "
        f"fill {result['fill_rollouts_per_s']:.0f}/s"
    )


if __name__ == "__main__":
    main()
