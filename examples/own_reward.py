"""Rewards of your own, as functions. The tutorial (docs/tutorial.md) uses the first.

r3 train experiment=... reward.function=examples/own_reward.py:is_right
r3 train experiment=... reward.functions=[data.task,examples/own_reward.py:brief] reward.weights=[1,0.2]
"""

import re


def is_right(response, reference):
    """The last number is right, and nothing is said in words."""
    numbers = re.findall(r"-?\d+", response)
    in_words = re.search("[A-Za-z]{2}", response.replace("\\boxed", ""))
    return numbers[-1:] == [reference] and not in_words


def brief(num_tokens, truncated):
    """1 for nothing at all, 0 from 32 tokens on, and less than nothing for a response that was cut off."""
    return -1.0 if truncated else max(0.0, 1 - num_tokens / 32)


def partly(response, reference, *, problem, row):
    """Partial credit, with values that reach the metrics (r3/reward/num_steps), rollouts/ and the viewer. With
    reward.correct_from=1 only the full credit counts as correct."""
    steps = re.findall(r"=\s*(-?\d+)", response)
    right = is_right(response, reference)
    return {
        "reward": 1.0 if right else 0.2 if reference in steps else 0.0,
        "num_steps": len(steps),
    }
