"""What enters the loss, written out from the rollouts in plain numbers: the reference of test_at_the_loss.py."""

import math
import statistics
from dataclasses import dataclass

from r3_openrlhf.method.types import Context, Verdict

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED
K, R_MAX, MARGIN = 2, 0.5, 0.1  # rows recalled for a group; rankings


@dataclass
class Entering:
    """One row of the loss: its prompt and tokens, the advantage of each token, whether the ratio is one to stored log-probs, and
    whether it is from the history."""

    prompt: list
    tokens: list
    advantages: list
    stored: bool = False
    recalled: bool = False


def grouped(rollouts):
    groups = {}
    for one in rollouts:
        groups.setdefault((one.uid, one.context), []).append(one)
    return list(groups.values())


def of_estimator(name, rewards, correct, differing, alpha=1.0):
    """One advantage per row of a group."""
    mean, n = math.fsum(rewards) / len(rewards), len(rewards)
    if name in ("nsr", "w_reinforce"):
        return [(0.0 if name == "nsr" else 0.1) if right else -1.0 for right in correct]
    if len(set(rewards)) == 1:
        return [0.0] * n
    scale = {
        "group_norm": lambda: 1 / (alpha * statistics.stdev(rewards)),
        "dr_grpo": lambda: 1.0,
        "rloo": lambda: n / (n - 1),
        "maxrl": lambda: 1 / mean if mean > 0 else 0.0,
        "gpg": lambda: 1 / differing,
    }[name]()
    return [(reward - mean) * scale for reward in rewards]


def r3(
    rollouts,
    stored,
    *,
    estimator="group_norm",
    weight=1.0,
    alpha=1.0,
    behaviour=True,
    rehearsed=(),
):
    """Algorithm 1 between grading and the update, as METHOD sections 4, 6 and 11 have it."""
    groups = [[one for one in group if one.verdict is not U] for group in grouped(rollouts)]
    # one graded row is a group where something joins it
    groups = [
        group for group in groups if len(group) > 1 or group and recalled_for(group, stored)
    ]
    number = {}
    for group in groups:
        for one in group:
            number[id(one)] = len(number)
    prepared = []
    for group in groups:
        recalled, ranked = recalled_for(group, stored), ranked_of(group)
        rewards = with_ranking(group, recalled, ranked, number)
        prepared.append((group, recalled, ranked, rewards))
    differing = sum(len(set(rewards)) > 1 for *_, rewards in prepared) / len(prepared)
    fresh_rows, recalled_rows = [], []
    for group, recalled, ranked, rewards in prepared:
        rows = group + recalled
        correct = [one.verdict is C for one in rows]
        if ranked and not any(correct):
            values = beside_a_ranking(estimator, rows, ranked, number, differing)
        else:
            scale = alpha if recalled else 1.0
            values = of_estimator(estimator, rewards, correct, differing, scale)
        values = with_weight(values, correct, weight)
        if ranked and any(correct):
            values = without_a_failure_on_top(values, rows, ranked)
        prompt = group[0].prompt_ids.tolist()
        for place, (one, value) in enumerate(zip(rows, values, strict=True)):
            tokens, advantages = one.response_ids.tolist(), [value] * one.num_tokens
            if place < len(group):
                fresh_rows.append(Entering(prompt, tokens, advantages))
                continue
            is_stored = behaviour and one.prompt_ids.tolist() == prompt
            recalled_rows.append(Entering(prompt, tokens, advantages, is_stored, recalled=True))
    entering = fresh_rows + recalled_rows
    for one in rehearsed:
        prompt, tokens = one.prompt_ids.tolist(), one.response_ids.tolist()
        entering.append(Entering(prompt, tokens, [1.0] * one.num_tokens, recalled=True))
    return entering


def beside_a_ranking(estimator, rows, ranked, number, differing):
    """The advantages of failures' own pay, and the ranking's part of each row, whose mean is 0."""
    paid = [one.graded_reward for one in rows]
    own = [0.0] * len(rows)
    if len(set(paid)) > 1:
        own = of_estimator(estimator, paid, [False] * len(rows), differing)
    parts = ranking_parts(rows, ranked, number)
    return [value + part for value, part in zip(own, parts, strict=True)]


def recalled_for(group, stored):
    """The stored rollouts of a group with one verdict: K of the other one. Nothing bounds the ratio of a
    failure in a reflection group."""
    verdicts = {one.verdict for one in group}
    is_reflected = group[0].context is Context.REFLECTION
    if verdicts == {W}:
        wanted = C
    elif verdicts == {C} and not is_reflected:
        wanted = W
    else:
        return []
    fitting = [one for one in stored if one.uid == group[0].uid and one.verdict is wanted]
    return fitting[:K]


def ranked_of(group):
    """The truncated rows of a group of failures; one alone has nothing to be compared with."""
    if any(one.verdict is not W for one in group):
        return []
    truncated = [one for one in group if one.truncated]
    return truncated if len(truncated) > 1 else []


def with_weight(values, correct, weight):
    """The advantages, with successes of a group with both verdicts weighed `weight` times."""
    right = [value for value, is_right in zip(values, correct, strict=True) if is_right]
    if not right or len(right) == len(values):
        return values
    extra = (weight - 1) * max(0.0, math.fsum(right) / len(right))
    return [
        value + extra if is_right else value
        for value, is_right in zip(values, correct, strict=True)
    ]


def without_a_failure_on_top(values, rows, ranked):
    """The advantages, with the failures lowered until no ranked one is above a success."""
    pairs = list(zip(values, rows, strict=True))
    ids = {id(one) for one in ranked}
    least = min(value for value, one in pairs if one.verdict is C)
    best = max(value for value, one in pairs if id(one) in ids)
    lower = max(0.0, best - least)
    return [value if one.verdict is C else value - lower for value, one in pairs]


def with_ranking(group, recalled, ranked, number):
    """Rewards of a group's rows. The test's entropies rank an earlier row above a later one."""
    rows = group + recalled
    rewards = [one.graded_reward for one in rows]
    if not ranked:
        return rewards
    parts = ranking_parts(rows, ranked, number)
    successes = [one.graded_reward for one in rows if one.verdict is C]
    if not successes:
        return [reward + part for reward, part in zip(rewards, parts, strict=True)]
    least = min(successes)
    best = max(one.graded_reward for one in ranked)
    lower = best - (least - MARGIN) if best >= least else 0.0
    lowered = [
        one.graded_reward if one.verdict is C else one.graded_reward - lower for one in rows
    ]
    factor = largest_factor(lowered, parts, least)
    return [value + factor * part for value, part in zip(lowered, parts, strict=True)]


def largest_factor(values, parts, least):
    """The largest factor up to 1 with which no part lifts its row to the least success."""
    factor = 1.0
    for value, part in zip(values, parts, strict=True):
        if part > 0:
            factor = min(factor, (1 - MARGIN) * ((least - value) / part))
    return factor


def ranking_parts(rows, ranked, number):
    """The ranking reward of each row: from R_MAX / 2 down to -R_MAX / 2, and 0 for a row without a rank."""
    in_order = sorted((id(one) for one in ranked), key=number.__getitem__)
    place = {identity: k for k, identity in enumerate(in_order)}
    parts = [0.0] * len(rows)
    for i, one in enumerate(rows):
        if id(one) in place:
            parts[i] = R_MAX * (0.5 - place[id(one)] / (len(ranked) - 1))
    return parts


WHITENED = ("gae", "reinforce", "reinforce_baseline")  # over the step's tokens


def stock(rollouts, *, estimator, penalty=lambda length: 0.0, values_of=None):
    """OpenRLHF's estimators over the graded rows; an ungraded row has no tokens in the loss."""
    entering = []
    of_step = [one.graded_reward for one in rollouts if one.verdict is not U]
    baseline = statistics.fmean(of_step) if estimator == "flash_reinforce" else 0.0
    for group in grouped(rollouts):
        graded = [one for one in group if one.verdict is not U]
        rewards = [one.graded_reward - penalty(one.num_tokens) for one in graded]
        for one, value in zip(graded, stock_values(estimator, rewards), strict=True):
            critic = values_of(one) if estimator == "gae" else [0.0] * one.num_tokens
            # GAE with gamma and lambda 1
            advantages = [value - baseline - before for before in critic]
            entering.append(
                Entering(one.prompt_ids.tolist(), one.response_ids.tolist(), advantages)
            )
    if estimator in WHITENED:
        whiten(entering)
    return entering


def stock_values(estimator, rewards):
    """One advantage per graded row of a group, before a critic and whitening."""
    if estimator in ("gae", "reinforce", "flash_reinforce"):
        return rewards
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    if estimator == "reinforce_baseline":
        mean = math.fsum(rewards) / len(rewards)
        return [reward - mean for reward in rewards]
    return of_estimator(estimator, rewards, None, 1.0)


def whiten(entering):
    """Shift and scale the advantages to mean 0 and deviation 1 over all tokens."""
    values = []
    for row in entering:
        values += row.advantages
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    deviation = math.sqrt(max(1e-8, variance))
    for row in entering:
        row.advantages = [(value - mean) / deviation for value in row.advantages]
