"""`r3 eval`'s loop (grading on, samples.jsonl written) beside a bare vLLM loop over the same prompts and engine.

    python benchmarks/evaluation.py [--model smollm2] [--data ../shared/data/math/eval] [--problems 8] [--n 4]
                                    [--max-new-tokens 48] [--rounds 4]

Both sides get the same prompt ids, submit everything at once and run until the last response; ours ends when the last
problem has been graded and written. Sides alternate, and so does who goes first; the prefix cache is emptied in between.
Prints tokens per second of each round and the ratio of the totals (target: 0.90 or more).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from r3_openrlhf.config import BenchmarkConfig, ClusterConfig, DataConfig, RewardConfig
from r3_openrlhf.evaluation.benchmarks import load_problem_set
from r3_openrlhf.evaluation.grading_thread import GradingThread
from r3_openrlhf.evaluation.sample_file import SampleFile
from r3_openrlhf.evaluation.sampling import make_work, sample
from r3_openrlhf.runs.models.locate import resolve_model


def bare(llm, params, work, options: BenchmarkConfig) -> tuple[int, float]:
    """(response tokens, seconds) of vLLM's own loop; it makes the text too, as it does for everybody."""
    prompts = [{"prompt_token_ids": list(item.prompt_ids)} for item in work for _ in range(options.n_samples)]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    return sum(len(output.outputs[0].token_ids) for output in outputs), seconds


def ours(engine, grading, tokenizer, work, options: BenchmarkConfig, directory: Path) -> tuple[int, float]:
    started = time.perf_counter()
    speed = sample(work, engine, grading, SampleFile(directory / "samples.jsonl"), tokenizer, options)
    return speed.num_tokens, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--data", default="../shared/data/math/eval", help="directory of gsm8k_test.jsonl")
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    if not Path(given.data).is_dir():
        sys.exit(f"{given.data} does not exist; give the directory of the evaluation data with --data")

    from transformers import AutoTokenizer

    from r3_openrlhf.evaluation.engine import Engine

    options = BenchmarkConfig(n_samples=given.n, max_new_tokens=given.max_new_tokens)
    data = DataConfig(path="gsm8k")
    labels = load_problem_set("gsm8k", data, data_dir=given.data, max_problems=given.problems).labels
    model = resolve_model(given.model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    work = [make_work("gsm8k", label, data, tokenizer) for label in labels]
    context = max(len(item.prompt_ids) for item in work) + options.max_new_tokens
    engine = Engine(model, max_model_len=context, options=options, cluster=ClusterConfig())
    totals = {"ours": [0, 0.0], "bare": [0, 0.0]}
    from vllm import SamplingParams

    params = SamplingParams(temperature=options.temperature, top_p=options.top_p, max_tokens=options.max_new_tokens)
    with tempfile.TemporaryDirectory() as scratch, GradingThread(RewardConfig()) as grading:
        bare(engine.llm, params, work[:2], options)  # both sides warm: the engine, and the grading processes
        ours(engine, grading, tokenizer, work[:2], options, Path(scratch))
        for number in range(given.rounds):
            for side in ("ours", "bare") if number % 2 == 0 else ("bare", "ours"):
                engine.llm.reset_prefix_cache()
                if side == "ours":
                    tokens, seconds = ours(engine, grading, tokenizer, work, options, Path(scratch))
                else:
                    tokens, seconds = bare(engine.llm, params, work, options)
                totals[side][0] += tokens
                totals[side][1] += seconds
                print(
                    f"round {number + 1} {side}: {tokens} tokens, {seconds:.2f} s, {tokens / seconds:.0f} tokens/s",
                    flush=True,
                )
    engine.close()
    speeds = {side: tokens / seconds for side, (tokens, seconds) in totals.items()}
    print(f"load average {os.getloadavg()[0]:.1f}; {len(work)} problems x {given.n}, {given.model}")
    print(
        f"ours {speeds['ours']:.0f}, bare {speeds['bare']:.0f} tokens/s; ratio {speeds['ours'] / speeds['bare']:.3f}"
    )


if __name__ == "__main__":
    main()
