"""Count what happened in one step, as numbers for metrics.jsonl (METHOD section 7)."""

from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from r3_openrlhf.method.core.groups import GroupState, RankingFate, RecallFate
from r3_openrlhf.method.core.mixed_batch import Group, MixedBatch
from r3_openrlhf.method.types import Context, Rollout, Verdict

TOKEN_KINDS = ("mixed", "all_correct", "none_correct", "reflection", "prefix", "hint")


def batch_metrics(batch: MixedBatch, *, step: int) -> dict[str, float]:
    """Compute the counts of METHOD section 7 that follow from the rows alone."""
    graded = [r for r in batch.rollouts if r.verdict is not Verdict.UNGRADED]
    return {
        **group_metrics(batch),
        **token_metrics(batch),
        **replay_metrics(batch, step=step),
        **reflection_metrics(batch, graded),
        **prefix_metrics(batch, graded),
        **hint_metrics(batch, graded),
        **ranking_metrics(batch),
        **advantage_metrics(batch),
        **grading_metrics(batch),
        "response_tokens": float(sum(r.num_sampled_tokens for r in batch.rollouts)),
        **fresh_metrics(batch.rollouts),
    }


def group_metrics(batch: MixedBatch) -> dict[str, float]:
    """Count the groups of each state, and those that collapsed before and after replay."""
    groups = batch.groups
    mixed_verdicts: list[bool] = []
    for group in groups:
        if group.state is GroupState.MIXED and group.context is Context.PLAIN:
            fresh = fresh_rollouts(batch, group)
            mixed_verdicts += [rollout.verdict is Verdict.CORRECT for rollout in fresh]
    single: dict[str, float] = {}
    if batch.keeps_single:
        single["r3/groups/single"] = count(g.state is GroupState.TOO_SMALL for g in groups)
    return single | {
        "r3/groups/all_correct": count(g.state is GroupState.ALL_CORRECT for g in groups),
        "r3/groups/none_correct": count(g.state is GroupState.NONE_CORRECT for g in groups),
        "r3/groups/mixed": count(g.state is GroupState.MIXED for g in groups),
        "r3/groups/mixed_pass_rate": mean_or_zero(mixed_verdicts),
        "r3/groups/left_out": float(batch.num_left_out_groups),
        "r3/groups/collapsed_before": count(g.collapsed_before for g in groups),
        "r3/groups/collapsed_after": count(g.collapsed_after for g in groups),
    }


def token_metrics(batch: MixedBatch) -> dict[str, float]:
    """Count the sampled tokens by the state of a plain group, or by the context of another one."""
    tokens = dict.fromkeys([*TOKEN_KINDS, *["single"] * batch.keeps_single], 0)
    for group in batch.groups:
        kind = str(group.state if group.context is Context.PLAIN else group.context)
        kind = "single" if kind == GroupState.TOO_SMALL else kind
        tokens[kind] += sum(r.num_sampled_tokens for r in fresh_rollouts(batch, group))
    return {f"r3/tokens/{kind}": float(number) for kind, number in tokens.items()}


def replay_metrics(batch: MixedBatch, *, step: int) -> dict[str, float]:
    """Count the recalled rows, their lag in steps, and the groups that found one or none."""
    groups, rows = batch.groups, batch.rows
    recalled = [row for row in rows if row.recalled and not row.rehearsed]
    # an imported rollout has no step of this run
    lags = [step - row.rollout.policy_step for row in recalled if not row.rollout.origin]
    wanted = [group for group in groups if group.wanted]
    hits = [group for group in wanted if group.recalled]
    elsewhere = [group for group in groups if group.replay is RecallFate.STARTS_ELSEWHERE]
    return {
        "r3/replay/recalled": float(len(recalled)),
        "r3/replay/imported": count(row.rollout.origin for row in rows),
        "r3/replay/rehearsed": count(row.rehearsed for row in rows),
        "r3/replay/hits": float(len(hits)),
        "r3/replay/hits_correct": count(g.state is GroupState.NONE_CORRECT for g in hits),
        "r3/replay/misses": float(len(wanted) - len(hits)),
        "r3/replay/starts_elsewhere": float(len(elsewhere)),
        "r3/replay/mean_lag": mean_or_zero(lags),
        "r3/replay/max_lag": float(max(lags, default=0)),
    }


def reflection_metrics(batch: MixedBatch, graded: Sequence[Rollout]) -> dict[str, float]:
    """Compare the accuracy of reflection with that of the plain prompt on the same problems."""
    groups = [group for group in batch.groups if group.context is Context.REFLECTION]
    uids = {group.uid for group in groups}
    return {
        "r3/reflection/groups": float(len(groups)),
        "r3/reflection/accuracy": accuracy(graded, Context.REFLECTION, uids),
        "r3/reflection/plain_accuracy": accuracy(graded, Context.PLAIN, uids),
    }


def prefix_metrics(batch: MixedBatch, graded: Sequence[Rollout]) -> dict[str, float]:
    """Measure the rollouts that continue the beginning of an earlier one."""
    groups = [group for group in batch.groups if group.context is Context.PREFIX]
    rollouts = [rollout for rollout in graded if rollout.context is Context.PREFIX]
    verdicts = [rollout.verdict is Verdict.CORRECT for rollout in rollouts]
    return {
        "r3/prefix/groups": float(len(groups)),
        "r3/prefix/mixed": count(group.state is GroupState.MIXED for group in groups),
        "r3/prefix/accuracy": mean_or_zero(verdicts),
        "r3/prefix/tokens_given": mean_or_zero([r.prefix_tokens for r in rollouts]),
    }


def hint_metrics(batch: MixedBatch, graded: Sequence[Rollout]) -> dict[str, float]:
    """Measure the rollouts whose prompt had a hint."""
    verdicts = [r.verdict is Verdict.CORRECT for r in graded if r.context is Context.HINT]
    recalled = [row for row in batch.rows if row.recalled]
    return {
        "r3/hint/groups": count(group.context is Context.HINT for group in batch.groups),
        "r3/hint/accuracy": mean_or_zero(verdicts),
        "r3/hint/recalled": count(row.rollout.context is Context.HINT for row in recalled),
    }


def ranking_metrics(batch: MixedBatch) -> dict[str, float]:
    """Count the ranked groups and rows, with the mean and spread of the ranking rewards. A group in
    which all tie is not ranked, and is counted apart."""
    groups = [group for group in batch.groups if group.ranking is RankingFate.RANKED]
    rows = [batch.rows[index] for group in groups for index in group.rows]
    rewards = [row.ranking_reward for row in rows if row.ranking_reward is not None]
    return {
        "r3/ranking/groups": float(len(groups)),
        "r3/ranking/tied": count(group.ranking is RankingFate.TIED for group in batch.groups),
        "r3/ranking/groups_exact": count(group.entropy_source == "exact" for group in groups),
        "r3/ranking/rows": float(len(rewards)),
        "r3/ranking/reward_mean": mean_or_zero(rewards),
        "r3/ranking/reward_std": pstdev(rewards) if rewards else 0.0,
    }


def advantage_metrics(batch: MixedBatch) -> dict[str, float]:
    """Sum |advantage| over the trained rows, and give the share of groups with equal verdicts."""
    total = sum(abs(row.advantage) for row in batch.trained)
    # rows of groups whose verdicts are all equal
    of_collapsed: list[float] = []
    for group in batch.groups:
        if group.collapsed_after:
            rows = [batch.rows[index] for index in group.rows]
            of_collapsed += [abs(row.advantage) for row in rows if row.trained]
    return {
        "r3/advantage/abs_sum": total,
        "r3/advantage/unverified_share": sum(of_collapsed) / total if total else 0.0,
    }


def grading_metrics(batch: MixedBatch) -> dict[str, float]:
    """Count the rollouts without a verdict, and those that were slow to grade."""
    return {
        "r3/grading/ungraded": float(batch.num_ungraded),
        "r3/grading/ungraded_rate": batch.num_ungraded / max(1, len(batch.rollouts)),
        "r3/grading/slow": count(r.reason == "slow" for r in batch.rollouts),
    }


def fresh_rollouts(batch: MixedBatch, group: Group) -> list[Rollout]:
    """Return the rollouts of a group that this step sampled."""
    rows = [batch.rows[index] for index in group.rows]
    return [row.rollout for row in rows if not row.recalled]


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

    Reward and accuracy are those of plain prompts, so that they compare with a run without reflection.
    `entropy`: mean of -ln p(sampled token), unbiased for the mean token entropy, in nats."""
    graded = [r for r in rollouts if r.verdict is not Verdict.UNGRADED]
    unaided = [r for r in graded if r.context is not Context.HINT]
    plain = [r for r in graded if r.context is Context.PLAIN]
    numbers = {
        "fresh/reward": mean_or_zero([r.graded_reward for r in plain]),
        "fresh/score": correct_rate(unaided),
        "fresh/accuracy": correct_rate(plain),
        "fresh/response_length": mean_or_zero([r.num_sampled_tokens for r in rollouts]),
        "fresh/truncated": mean_or_zero([r.truncated for r in rollouts]),
        "fresh/entropy": sampled_entropy(rollouts),
    }
    return numbers | {old: numbers[name] for old, name in OLDER_NAMES.items()}


def correct_rate(rollouts: Sequence[Rollout]) -> float:
    """Share of correct rollouts; 0.0 without any."""
    return mean_or_zero([r.verdict is Verdict.CORRECT for r in rollouts])


def sampled_entropy(rollouts: Sequence[Rollout]) -> float:
    """Mean of -ln p over the sampled tokens, in nats; 0.0 without any."""
    logprob = sum(float(r.response_logprobs[r.sampled].sum()) for r in rollouts)
    num_tokens = sum(r.num_sampled_tokens for r in rollouts)
    return -logprob / max(1, num_tokens)


def trained_tokens(batch: MixedBatch, *, passes: int) -> float:
    """Tokens of the update: prompt and response tokens of the trained rows, once for each pass."""
    return float(
        sum(len(batch.prompt_ids_of(row)) + row.rollout.num_tokens for row in batch.trained)
        * passes
    )


def accuracy(rollouts: Sequence[Rollout], context: Context, uids: set[str]) -> float:
    """Share of correct rollouts of these problems in this context; 0.0 without any."""
    return correct_rate([r for r in rollouts if r.context is context and r.uid in uids])


def count(values: Iterable[object]) -> float:
    """Count the true values."""
    return float(sum(map(bool, values)))


def mean_or_zero(values: Sequence[float]) -> float:
    """Compute the mean; 0.0 of no values, because a metric has to be a number."""
    return fmean(values) if values else 0.0
