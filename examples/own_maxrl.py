"""MaxRL (arXiv 2602.02710), one function: `r3 train ... advantage.function=examples/own_maxrl.py:maxrl`."""


# the rewards of one group's graded rows, recalled ones too -> an advantage for each
def maxrl(rewards):
    mean = sum(rewards) / len(rewards)
    return [(reward - mean) / mean if mean > 0 else 0.0 for reward in rewards]
