"""What does the dual clip change in an update? Both gradients of the same rows, step by step, in the lab.

    python benchmarks/dual_clip.py                                      # three seeds, both readings of old log-probs
    python benchmarks/dual_clip.py --seeds 1 --steps 30 train.learning_rate=1e-3

The run trains without the bound (replay.dual_clip=null). At each pass over a step's rows the gradient is also computed with it. All 16
problems come up in every step, in groups of 4, so that failures are recalled from the second step on. Prints per run: recalled failures, the
largest ratio of a token of a row with A < 0, tokens above the bound among those, and for passes in which there is one the norm of both
gradients and the cosine between them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

from r3_openrlhf.config_loading import load_config  # noqa: E402
from r3_openrlhf.lab import loop, update  # noqa: E402
from r3_openrlhf.types import Verdict  # noqa: E402

SMALL = (
    *("data.reasoning_gym.size=16", "data.reasoning_gym.max_terms=4", "rollout.n_samples_per_prompt=4"),
    *("held_out.path=null", "train.max_generated_tokens=null"),
)
PASSES = {"behaviour": 1, "recompute": 2}  # with recompute every ratio of a first pass is 1


class Pass(NamedTuple):
    """One gradient of a step's rows, without the bound and with it."""

    largest: float  # ratio of a token of a row with a negative advantage
    above: int  # such tokens above the bound
    norm: float
    bounded_norm: float
    cosine: float


def measured(found: list[Pass], bound: float):
    """In the place of the lab's accumulate_gradient: the same, and its twin into `found`."""

    def accumulate(model, rows, **settings):
        with_bound = update.accumulate_gradient(model, rows, **settings | {"dual_clip": bound})
        bounded = flat_gradient(model)
        model.zero_grad(set_to_none=True)
        without = update.accumulate_gradient(model, rows, **settings | {"dual_clip": None})
        plain = flat_gradient(model)
        ratios = [
            np.exp(np.clip(now - row.old_logprobs, -20, 20))
            for row, now in zip(rows, without.logprobs, strict=True)
            if row.old_logprobs is not None and row.advantage < 0
        ]
        ratios_N = np.concatenate([*ratios, np.zeros(0)])
        assert len(with_bound.logprobs) == len(without.logprobs)
        found.append(
            Pass(
                largest=float(ratios_N.max(initial=0.0)),
                above=int((ratios_N > bound).sum()),
                norm=plain.norm().item(),
                bounded_norm=bounded.norm().item(),
                cosine=torch.nn.functional.cosine_similarity(plain, bounded, dim=0).item(),
            )
        )
        return without

    return accumulate


def flat_gradient(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


class Counting(loop.Lab):
    """The lab, and how many failures its groups have recalled."""

    failures = 0

    def update(self, batch):
        self.failures += sum(row.recalled and row.rollout.verdict is Verdict.WRONG for row in batch.rows)
        return super().update(batch)


def run(reading: str, seed: int, *, steps: int, bound: float, settings: list[str], directory: str) -> str:
    config = load_config(
        "lab",
        [
            *SMALL,
            *("algo=r3", f"train.seed={seed}", f"train.max_steps={steps}", f"train.inner_epochs={PASSES[reading]}"),
            *(f"replay.old_logprobs={reading}", "replay.dual_clip=null", *settings),
            f"run_dir={directory}/{reading}-{seed}",
        ],
    )
    found: list[Pass] = []
    loop.accumulate_gradient = measured(found, bound)
    policy = Counting(config)
    policy.train()
    bitten = [one for one in found if one.above]
    said = f"{reading:<10} seed {seed}: {policy.failures:>4} recalled failures, largest ratio {max(one.largest for one in found):8.2f}, "
    said += f"{len(bitten)} of {len(found)} passes with {sum(one.above for one in bitten)} tokens above {bound:g}"
    if bitten:
        norms = f"{statistics.median(one.norm for one in bitten):.3f} -> {statistics.median(one.bounded_norm for one in bitten):.3f}"
        worst = max(bitten, key=lambda one: one.norm / one.bounded_norm)
        said += f"; there the median norm {norms}, cosine {statistics.median(one.cosine for one in bitten):.3f}; "
        said += f"largest change {worst.norm:.3f} -> {worst.bounded_norm:.3f}"
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--readings", default="behaviour,recompute", help="of replay.old_logprobs")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--bound", type=float, default=3.0)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="of the run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        for seed in map(int, given.seeds.split(",")):
            for reading in given.readings.split(","):
                said = run(
                    reading, seed, steps=given.steps, bound=given.bound, settings=given.settings, directory=directory
                )
                print(said, flush=True)


if __name__ == "__main__":
    main()
