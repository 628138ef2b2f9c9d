"""Count what happened in one step, as numbers for metrics.jsonl (METHOD section 7)."""

from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from r3_openrlhf.method.core.groups import GroupState, RankingFate, RecallFate
from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.types import Context, Rollout, Verdict


def batch_metrics(batch: MixedBatch, *, step: int) -> dict[str, float]:
    """Compute the counts of METHOD section 7 that follow from the rows alone."""
    groups, rows = batch.groups, batch.rows
    recalled = [row for row in rows if row.recalled and not row.rehearsed]
    lags = [step - row.rollout.policy_step for row in recalled if not row.rollout.origin]
    wanted = [group for group in groups if group.wanted]
    ranked_groups = [group for group in groups if group.ranking is RankingFate.RANKED]
    ranked = [row.ranking_reward for row in rows if row.ranking_reward is not None]
    mass = sum(abs(row.advantage) for row in rows if row.trained)
    unverified = sum(
        abs(row.advantage)
        for group in groups
        if group.collapsed_after  # all verdicts are equal
        for row in (rows[i] for i in group.rows)
        if row.trained
    )
    graded = [r for r in batch.rollouts if r.verdict is not Verdict.UNGRADED]
    num_rollouts = max(1, len(batch.rollouts))
    tokens = dict.fromkeys(
        ("mixed", "all_correct", "none_correct", "reflection", "prefix", "hint"), 0
    )
    for group in groups:
        kind = str(group.state if group.context is Context.PLAIN else group.context)
        tokens[kind] += sum(
            rows[i].rollout.num_sampled_tokens for i in group.rows if not rows[i].recalled
        )
    of_mixed = [
        rows[i].rollout.verdict is Verdict.CORRECT
        for group in groups
        if group.state is GroupState.MIXED and group.context is Context.PLAIN
        for i in group.rows
        if not rows[i].recalled
    ]
    reflection_uids = {g.uid for g in groups if g.context is Context.REFLECTION}
    hinted = [r.verdict is Verdict.CORRECT for r in graded if r.context is Context.HINT]
    prefixed = [r for r in graded if r.context is Context.PREFIX]
    return {
        "r3/groups/all_correct": count(g.state is GroupState.ALL_CORRECT for g in groups),
        "r3/groups/none_correct": count(g.state is GroupState.NONE_CORRECT for g in groups),
        "r3/groups/mixed": count(g.state is GroupState.MIXED for g in groups),
        "r3/groups/mixed_pass_rate": mean_or_zero(of_mixed),
        "r3/groups/left_out": float(batch.num_left_out_groups),
        "r3/groups/collapsed_before": count(g.collapsed_before for g in groups),
        "r3/groups/collapsed_after": count(g.collapsed_after for g in groups),
        **{f"r3/tokens/{kind}": float(number) for kind, number in tokens.items()},
        "r3/replay/recalled": float(len(recalled)),
        "r3/replay/imported": count(bool(row.rollout.origin) for row in rows),
        "r3/replay/rehearsed": count(row.rehearsed for row in rows),
        "r3/replay/hits": count(bool(g.recalled) for g in wanted),
        "r3/replay/hits_correct": count(
            bool(g.recalled) and g.state is GroupState.NONE_CORRECT for g in wanted
        ),
        "r3/replay/misses": count(not g.recalled for g in wanted),
        "r3/replay/starts_elsewhere": count(
            g.replay is RecallFate.STARTS_ELSEWHERE for g in groups
        ),
        "r3/replay/mean_lag": mean_or_zero(lags),
        "r3/replay/max_lag": float(max(lags, default=0)),
        "r3/reflection/groups": count(g.context is Context.REFLECTION for g in groups),
        "r3/reflection/accuracy": accuracy(graded, Context.REFLECTION, reflection_uids),
        "r3/reflection/plain_accuracy": accuracy(graded, Context.PLAIN, reflection_uids),
        "r3/prefix/groups": count(g.context is Context.PREFIX for g in groups),
        "r3/prefix/mixed": count(
            g.context is Context.PREFIX and g.state is GroupState.MIXED for g in groups
        ),
        "r3/prefix/accuracy": mean_or_zero([r.verdict is Verdict.CORRECT for r in prefixed]),
        "r3/prefix/tokens_given": mean_or_zero([r.prefix_tokens for r in prefixed]),
        "r3/hint/groups": count(g.context is Context.HINT for g in groups),
        "r3/hint/accuracy": mean_or_zero(hinted),
        "r3/hint/recalled": count(
            row.recalled and row.rollout.context is Context.HINT for row in rows
        ),
        "r3/ranking/groups": float(len(ranked_groups)),
        "r3/ranking/groups_exact": count(g.entropy_source == "exact" for g in ranked_groups),
        "r3/ranking/rows": float(len(ranked)),
        "r3/ranking/reward_mean": mean_or_zero(ranked),
        "r3/ranking/reward_std": pstdev(ranked) if ranked else 0.0,
        "r3/advantage/abs_sum": mass,
        "r3/advantage/unverified_share": unverified / mass if mass else 0.0,
        "r3/grading/ungraded": float(batch.num_ungraded),
        "r3/grading/ungraded_rate": batch.num_ungraded / num_rollouts,
        "r3/grading/slow": count(r.reason == "slow" for r in batch.rollouts),
        "response_tokens": float(sum(r.num_sampled_tokens for r in batch.rollouts)),
        **fresh_metrics(batch.rollouts),
    }


# name until 0.2 -> name; both are written, and older runs are read by the second
OLDER_NAMES = {
    "accuracy": "fresh/accuracy",
    "reward_mean": "fresh/reward",
    "response_length_mean": "fresh/response_length",
    "truncated_rate": "fresh/truncated",
    "r3/entropy/estimate": "fresh/entropy",
}


def fresh_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Means over what was sampled in this step, trained or not; never over recalled rows.

    `entropy`: mean of -ln p(sampled token), unbiased for the mean token entropy, in nats."""
    graded = [r for r in rollouts if r.verdict is not Verdict.UNGRADED]
    unaided = [r for r in graded if r.context is not Context.HINT]
    correct = [(r.verdict is Verdict.CORRECT, r.context is Context.PLAIN) for r in unaided]
    logprob = sum(float(r.response_logprobs[r.sampled].sum()) for r in rollouts)
    numbers = {
        "fresh/reward": mean_or_zero([r.graded_reward for r in graded]),
        "fresh/score": mean_or_zero([right for right, _ in correct]),  # not of a hint
        "fresh/accuracy": mean_or_zero([right for right, plain in correct if plain]),
        "fresh/response_length": mean_or_zero([r.num_sampled_tokens for r in rollouts]),
        "fresh/truncated": mean_or_zero([r.truncated for r in rollouts]),
        "fresh/entropy": -logprob / max(1, sum(r.num_sampled_tokens for r in rollouts)),
    }
    return numbers | {old: numbers[name] for old, name in OLDER_NAMES.items()}


def trained_tokens(batch: MixedBatch, *, passes: int) -> float:
    """Tokens of the update: prompt and response tokens of the trained rows, once for each pass."""
    return float(
        sum(len(batch.prompt_ids_of(row)) + row.rollout.num_tokens for row in batch.trained)
        * passes
    )


def accuracy(rollouts: Sequence[Rollout], context: Context, uids: set[str]) -> float:
    """Share of correct rollouts of these problems in this context; 0.0 without any."""
    return mean_or_zero(
        [
            r.verdict is Verdict.CORRECT
            for r in rollouts
            if r.context is context and r.uid in uids
        ]
    )


def count(values: Iterable[object]) -> float:
    """Count the true values."""
    return float(sum(map(bool, values)))


def mean_or_zero(values: Sequence[float]) -> float:
    """Compute the mean; 0.0 of no values, because a metric has to be a number."""
    return fmean(values) if values else 0.0
