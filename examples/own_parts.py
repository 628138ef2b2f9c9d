"""Parts of one's own, each named by its import path: `r3 train ... ranking.score=examples/own_parts.py:shortest`."""

from r3_openrlhf.config.algorithms import Algorithm


# ranking.score: which failures of a group look best, one number for each, the higher the better
def shortest(rollouts):
    return [-rollout.num_tokens for rollout in rollouts]


# ranking.score with a second argument: the entropies of these rollouts are measured for it
def calm(rollouts, entropies):
    return [-entropy.global_ for entropy in entropies]


# replay.order: up to k of the stored rollouts of a problem; they come sorted, the newest first
def best(candidates, k, rng):
    return sorted(candidates, key=lambda stored: stored.reward, reverse=True)[:k]


# distill.source: which right responses a failure may learn from, of its group and of the store; one is drawn
def briefest(group, stored):
    return sorted([*group, *stored], key=lambda rollout: rollout.num_tokens)[:1]


# distill.weight: how much a token counts, by the entropy of its teacher in nats, arrays [tokens]
def sure(entropies):
    return (entropies < 1.0).astype(float)


# data.task: is the response right? A score in [0, 1], True or False; None: it cannot be graded
def contains(response, reference):
    return reference in response


# algo: OpenRLHF's RLOO with dynamic sampling
RLOO_FILTERED = Algorithm(estimator="rloo", filters_groups=True)
