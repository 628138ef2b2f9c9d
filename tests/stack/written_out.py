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
    groups = [group for group in groups if len(group) > 1]
    number = {id(one): i for i, one in enumerate(one for group in groups for one in group)}
    prepared = []
    for group in groups:
        verdicts = {one.verdict for one in group}
        wanted = {frozenset({W}): C, frozenset({C}): W}.get(frozenset(verdicts))
        if wanted is W and group[0].context is Context.REFLECTION:
            wanted = None  # nothing bounds its ratio there
        recalled = [one for one in stored if one.uid == group[0].uid and one.verdict is wanted][
            :K
        ]
        ranked = [one for one in group if one.truncated] if verdicts == {W} else []
        prepared.append((group, recalled, ranked if len(ranked) > 1 else []))
    rewards_of = [
        with_ranking(group, recalled, ranked, number) for group, recalled, ranked in prepared
    ]
    differing = sum(len(set(rewards)) > 1 for rewards in rewards_of) / len(rewards_of)
    entering, of_recalled = [], []
    for (group, recalled, ranked), rewards in zip(prepared, rewards_of, strict=True):
        rows, correct = group + recalled, [one.verdict is C for one in group + recalled]
        if ranked and not any(correct):
            values = of_estimator("dr_grpo", rewards, correct, differing)
        else:
            values = of_estimator(
                estimator, rewards, correct, differing, alpha if recalled else 1.0
            )
        right = [value for value, is_right in zip(values, correct, strict=True) if is_right]
        extra = (
            (weight - 1) * max(0.0, math.fsum(right) / len(right))
            if 0 < len(right) < len(rows)
            else 0.0
        )
        values = [
            value + extra * is_right for value, is_right in zip(values, correct, strict=True)
        ]
        if ranked and any(correct):  # no ranked failure above a success of its group
            least = min(
                value for value, is_right in zip(values, correct, strict=True) if is_right
            )
            best = max(
                value
                for value, one in zip(values, rows, strict=True)
                if any(one is r for r in ranked)
            )
            lower = max(0.0, best - least)
            values = [
                value - lower * (not is_right)
                for value, is_right in zip(values, correct, strict=True)
            ]
        prompt = group[0].prompt_ids.tolist()
        for one, value in zip(rows, values, strict=True):
            is_recalled = not any(one is fresh for fresh in group)
            row = Entering(
                prompt,
                one.response_ids.tolist(),
                [value] * one.num_tokens,
                recalled=is_recalled,
            )
            row.stored = behaviour and is_recalled and one.prompt_ids.tolist() == prompt
            (of_recalled if is_recalled else entering).append(row)
    entering += of_recalled
    return entering + [
        Entering(
            one.prompt_ids.tolist(),
            one.response_ids.tolist(),
            [1.0] * one.num_tokens,
            recalled=True,
        )
        for one in rehearsed
    ]


def with_ranking(group, recalled, ranked, number):
    """Rewards of a group's rows. The test's entropies rank an earlier row above a later one."""
    rows = group + recalled
    rewards = [one.graded_reward for one in rows]
    if not ranked:
        return rewards
    place = {
        id(one): k for k, one in enumerate(sorted(ranked, key=lambda one: number[id(one)]))
    }
    parts = [
        R_MAX * (0.5 - place[id(one)] / (len(ranked) - 1)) if id(one) in place else 0.0
        for one in rows
    ]
    successes = [reward for reward, one in zip(rewards, rows, strict=True) if one.verdict is C]
    if not successes:
        return [reward + part for reward, part in zip(rewards, parts, strict=True)]
    best = max(reward for reward, one in zip(rewards, rows, strict=True) if id(one) in place)
    lower = max(0.0, best - (min(successes) - MARGIN))
    own = [
        reward - lower * (one.verdict is not C)
        for reward, one in zip(rewards, rows, strict=True)
    ]
    room = [
        (min(successes) - value) / part
        for value, part in zip(own, parts, strict=True)
        if part > 0
    ]
    factor = min([1.0, *((1 - MARGIN) * share for share in room)])
    return [value + factor * part for value, part in zip(own, parts, strict=True)]


def stock(rollouts, *, estimator, penalty=lambda length: 0.0, values_of=None):
    """OpenRLHF's estimators over the graded rows; an ungraded row has no tokens in the loss."""
    entering = []
    for group in grouped(rollouts):
        graded = [one for one in group if one.verdict is not U]
        rewards = [one.graded_reward - penalty(one.num_tokens) for one in graded]
        if len(graded) < 2 and estimator not in ("gae", "reinforce"):
            values = [0.0] * len(graded)
        elif estimator == "reinforce_baseline":
            values = [reward - math.fsum(rewards) / len(rewards) for reward in rewards]
        elif estimator in ("gae", "reinforce"):
            values = rewards
        else:
            values = of_estimator(estimator, rewards, None, 1.0)
        for one, value in zip(graded, values, strict=True):
            critic = values_of(one) if estimator == "gae" else [0.0] * one.num_tokens
            advantages = [value - before for before in critic]  # GAE with gamma and lambda 1
            entering.append(
                Entering(one.prompt_ids.tolist(), one.response_ids.tolist(), advantages)
            )
    # whitened over the step's tokens
    if estimator in (
        "gae",
        "reinforce",
        "reinforce_baseline",
    ):
        flat = [value for row in entering for value in row.advantages]
        mean = math.fsum(flat) / len(flat)
        deviation = math.sqrt(
            max(1e-8, math.fsum((value - mean) ** 2 for value in flat) / len(flat))
        )
        for row in entering:
            row.advantages = [(value - mean) / deviation for value in row.advantages]
    return entering
