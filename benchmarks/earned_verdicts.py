"""How many of the lab's right answers have right steps? The grader sees the final number alone, and two slips can cancel.

    python benchmarks/earned_verdicts.py                        # of the solutions that the lab's model is taught
    python benchmarks/earned_verdicts.py --model MODEL [--n 8]  # of what a model answers, within the length limit

`7+5=12+9=21+6=26+7=34+3=37 \\boxed{37}` is graded as right: 26 is one too few, 34 is one too many.
"""

import argparse
import itertools
import random
import re

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.sources import Label, load_problems
from r3_openrlhf.runs.models.lab import work_out
from r3_openrlhf.study.lab.loop import Lab

EXPERIMENTS = ("lab", "lab_false_positives")  # of the worlds whose verdicts are earned: r3 lab shares


def terms_of(problem: str) -> list[int]:
    return [int(term) for term in re.findall(r"\d+", problem.split("Calculate")[1])]


def taught(labels: list[Label], n: int, rng: random.Random) -> tuple[int, int, int]:
    """(answers, right answers, right answers by right steps) of `n` solutions that `work_out` makes of each problem."""
    right = earned = 0
    for label in labels:
        terms = terms_of(label.problem)
        for _ in range(n):
            totals, slipped = work_out(terms, rng)
            right += totals[-1] == sum(terms)
            earned += not slipped
    return n * len(labels), right, earned


def answered(lab: Lab, labels: list[Label], n: int) -> tuple[int, int, int]:
    """The same three numbers of `n` responses of a model to each problem."""
    samples = lab.ask([(label, lab.plain_prompt(label), Context.PLAIN) for label in labels], n=n)
    steps = {label.uid: list(itertools.accumulate(terms_of(label.problem)))[1:] for label in labels}
    right = [sample.rollout for sample in samples if sample.rollout.verdict is Verdict.CORRECT]
    written = [re.findall(r"=\s*(\d+)", re.split(r"\\boxed|check|so the", one.text)[0]) for one in right]
    earned = sum([int(total) for total in found] == steps[one.uid] for one, found in zip(right, written, strict=True))
    return len(samples), len(right), earned


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a directory with the lab's model, or `lab`")
    parser.add_argument("--n", type=int, help="answers to each problem: 8 of a model, 400 of the taught solutions")
    options = parser.parse_args()
    for experiment in EXPERIMENTS:
        config = load_config(experiment, ["algo=grpo"])
        labels = load_problems(config.data).labels
        if options.model:
            answers, right, earned = answered(Lab(config, model_dir=options.model), labels, options.n or 8)
        else:
            answers, right, earned = taught(labels, options.n or 400, random.Random(0))
        print(
            f"{experiment}: {right / answers:.1%} of {answers:,} answers right, {earned / right:.1%} of these earned"
        )
