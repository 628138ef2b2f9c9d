"""How long the first page of a run takes: rows read, references checked, prompts made and counted, examples graded.

    python benchmarks/first_page.py [--problems 40000]

Seconds after the imports, with the tiny model's tokenizer: of wall clock, and of this process's and its children's processors.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import openrlhf  # noqa: F401  what a run has imported before its first page
import torch  # noqa: F401
import transformers

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.first_page import page_here
from r3_openrlhf.runs.models.locate import resolve_model

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--problems", type=int, default=40_000)
count = parser.parse_args().problems

with tempfile.TemporaryDirectory() as directory:
    data = Path(directory, "problems.jsonl")
    with data.open("w") as file:
        for i in range(count):
            text = f"Ann has {i} apples and Bob {i % 97} pears, and both sell {i % 13}. What is {i} + {i * 7 % 1013} in all?"
            file.write(json.dumps({"problem": text, "answer": str(i + i * 7 % 1013)}) + "\n")
    settings = (f"run_dir={directory}/run", f"data.path={data}", "data.reasoning_gym={}")
    config, model = load_config("cpu_smoke", settings), resolve_model("tiny")
    transformers.AutoTokenizer.from_pretrained(model)
    wall, cpu = time.perf_counter(), time.process_time()
    page_here(config, model)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    children = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
print(f"{count:,} problems: {wall:.1f} s, {cpu:.1f} s of the processor, {children:.1f} s in grading processes")
