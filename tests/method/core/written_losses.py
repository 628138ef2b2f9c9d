"""The losses written out, a token at a time."""

import math


def written_out(name, now, then, advantage, recalled, low, high, dual):
    """The loss of each token of one row, from its formula; lists of numbers."""
    logs = [n - t for n, t in zip(now, then, strict=True)]
    ratios = [math.exp(log) for log in logs]

    def bounded(r):
        return min(max(r, 1 - low), 1 + high)

    def clipped(r):
        gain = min(r * advantage, bounded(r) * advantage)
        if advantage < 0 and dual:
            gain = max(gain, dual * advantage)
        return -gain

    if recalled and name in ("exgrpo", "luffy"):
        return shaped(ratios if name == "exgrpo" else [math.exp(n) for n in now], advantage)
    if name in ("ppo", "exgrpo", "luffy"):
        return [clipped(r) for r in ratios]
    if name == "gspo":
        return [clipped(math.exp(sum(logs) / len(logs)))] * len(now)
    if name == "cispo":
        return [-bounded(r) * advantage * n for r, n in zip(ratios, now, strict=True)]
    if name == "gmpo":
        return gmpo(logs, advantage)
    if name == "sapo":
        return sapo(ratios, advantage)
    assert name == "gpg"
    return [-advantage * n for n in now]


def shaped(weights, advantage):
    """The loss of a recalled row in ExGRPO and LUFFY."""
    return [-w / (w + 0.1) * advantage for w in weights]


def sapo(ratios, advantage):
    """A soft gate in place of the clip, with a temperature for each sign."""
    tau = 1.0 if advantage > 0 else 1.05
    return [-4 / tau / (1 + math.exp(-tau * (r - 1))) * advantage for r in ratios]


def gmpo(logs, advantage):
    """The geometric mean of ratios, each bounded on the side to which the advantage pulls."""
    if advantage > 0:
        bounded = [min(log, 0.4) for log in logs]
    else:
        bounded = [max(log, -0.4) for log in logs]
    return [-advantage * math.exp(sum(bounded) / len(bounded))] * len(logs)
