"""CPU seconds of the parts of a lab step, with what makes it fast and without, in turns on the same rollouts.

    OMP_NUM_THREADS=1 python benchmarks/lab_step.py [NUM_STEPS] [EXPERIMENT]

Without: Transformers' forward pass for every token, and rows without an advantage run through the model. The order changes
from step to step; the policy is trained by the faster update, so that both see the same policies.
"""

from __future__ import annotations

import copy
import random
import sys
import time
from functools import partial
from statistics import fmean

import torch

from r3_openrlhf.config_loading import load_config
from r3_openrlhf.lab import loop, sampling, update
from r3_openrlhf.lab.decoding import TransformersDecoder, decoder_of
from r3_openrlhf.problems.sources import load_problems

PARTS = ("sampling", "update", "evaluation")


def with_all_rows(model, rows, **settings):
    """update.accumulate_gradient as if every row had an advantage; the smallest one that is none."""
    tiny = [copy.copy(row) for row in rows]
    for row in tiny:
        row.advantage = row.advantage or 1e-30
    return update.accumulate_gradient(model, tiny, **settings)


def timed(work):
    """(what it returns, CPU seconds of this process)."""
    start = time.process_time()
    found = work()
    return found, time.process_time() - start


def main(num_steps: int, experiment: str) -> None:
    """Prints a Markdown table."""
    torch.set_num_threads(1)
    lab = loop.Lab(load_config(experiment, ["algo=grpo", "train.seed=1"]))
    labels = load_problems(lab.config.data).labels
    draw = random.Random(1)
    spent: dict[tuple[str, bool], list[float]] = {(part, fast): [] for part in PARTS for fast in (False, True)}
    for number in range(num_steps):
        asked = draw.sample(labels, lab.config.rollout.batch_size)
        before = copy.deepcopy((lab.model.state_dict(), lab.optimizer.state_dict()))
        for fast in (False, True) if number % 2 else (True, False):
            sampling.decoder_of = decoder_of if fast else TransformersDecoder
            lab.generator.manual_seed(number)
            (found, _), spent_s = timed(partial(lab.sample_step, asked, None))
            spent["sampling", fast].append(spent_s)
            loop.accumulate_gradient = update.accumulate_gradient if fast else with_all_rows
            batch = lab.mixed_batch(found, lab.r3_with(None))
            lab.model.load_state_dict(before[0])
            lab.optimizer.load_state_dict(copy.deepcopy(before[1]))
            spent["update", fast].append(timed(partial(lab.update, batch))[1])
            if fast:
                after = copy.deepcopy((lab.model.state_dict(), lab.optimizer.state_dict()))
            lab.model.load_state_dict(before[0])
        lab.model.load_state_dict(after[0])
        lab.optimizer.load_state_dict(after[1])
    for fast in (True, False):
        sampling.decoder_of = decoder_of if fast else TransformersDecoder
        spent["evaluation", fast].append(timed(partial(lab.evaluate, labels[:64]))[1])
    print("| part | without | with | ratio |\n|---|---:|---:|---:|")
    for part in PARTS:
        slow, quick = (fmean(spent[part, fast]) for fast in (False, True))
        print(f"| {part} | {slow:.2f} s | {quick:.2f} s | {slow / quick:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8, sys.argv[2] if len(sys.argv) > 2 else "lab_hard_tail")
