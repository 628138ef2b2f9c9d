"""One step of R³ as a configuration says: from graded rollouts to advantages and old log-probs (algorithm 1).

Every training loop makes the same calls, the OpenRLHF adapter, the lab and yours (examples/own_loop.py):

    batch = MixedBatch(rollouts, group_ids)                     # ungraded rollouts leave their group
    recall(batch, stored, config, step=step)                    # CCR: `stored` is often `stored_rollouts` of a history
    ranked = rows_to_rank(batch, config)                        # SERR: the rows whose entropy is needed
    assign_advantages(batch, ranked, entropy, config)           # SERR and eq. 3
    uses_stored_logprobs(batch, row, config)                    # for each trained row: which old log-probs

A loop samples, grades, computes entropies and updates; it decides nothing of this.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from r3_openrlhf.config import HistoryConfig, R3Config
from r3_openrlhf.core.groups import opposite_verdict
from r3_openrlhf.core.mixed_batch import MixedBatch, RecallFunction, Row, topk_decides
from r3_openrlhf.core.ranking import mean_logprob
from r3_openrlhf.core.replay import choose, response_bytes
from r3_openrlhf.core.rewards import overlong_penalty
from r3_openrlhf.core.selection import ProblemSelection
from r3_openrlhf.history.forecast import ENOUGH, Forecast, forecast
from r3_openrlhf.history.records import Absence, HistoryLimits, RecallRequest
from r3_openrlhf.history.store import HistoryStore
from r3_openrlhf.types import (
    Algorithm,
    Context,
    EntropySource,
    EntropyStatistics,
    OldLogprobs,
    RecallOrder,
    Rollout,
    Verdict,
)


def problem_selection(config: R3Config) -> ProblemSelection | None:
    """Which of an epoch's problems are asked, by the section exploration.select; None where it is off: all of them."""
    select = config.exploration.select
    if not select.enabled:
        return None
    return ProblemSelection(
        rule=select.rule,
        floor=select.floor,
        keep_all_correct=select.keep_all_correct,
        keep_none_correct=select.keep_none_correct,
        adapt=select.adapt,
        target_all_correct=select.target_all_correct,
        target_none_correct=select.target_none_correct,
        candidates=select.candidates,
        memory=select.memory,
    )


def draws(config: R3Config) -> tuple[int, int]:
    """Responses to a prompt in the first draw, and in the second for groups that need one (`core.selection.draws_on`)."""
    whole, draw = config.rollout.n_samples_per_prompt, config.exploration.draw
    return (draw.first_samples, whole - draw.first_samples) if draw.enabled else (whole, 0)


def selection_rng(config: R3Config, *, step: int) -> random.Random:
    """For the choice of the problems of the step behind `step`: the same in a run that goes on from there."""
    return random.Random(f"{config.train.seed}/select/{step}")


def plain_counts(rollouts: Iterable[Rollout]) -> dict[str, tuple[int, int]]:
    """uid -> (correct, graded) rollouts of a step from the plain prompt: what a ProblemSelection observes."""
    correct: Counter[str] = Counter()
    graded: Counter[str] = Counter()
    for rollout in rollouts:
        if rollout.context is Context.PLAIN and rollout.verdict is not Verdict.UNGRADED:
            graded[rollout.uid] += 1
            correct[rollout.uid] += rollout.verdict is Verdict.CORRECT
    return {uid: (correct[uid], count) for uid, count in graded.items()}


def step_state(selection: ProblemSelection | None) -> dict[str, Any] | None:
    """What a step leaves in the history store beside its rollouts (`HistoryStore.commit_step`), so that it follows roll-back."""
    return None if selection is None else {"selection": selection.state()}


def restore_selection(selection: ProblemSelection, history: HistoryStore, *, step: int) -> None:
    """The selection as it was after `step`; from the beginning where the store has nothing of that step."""
    state = history.state_of(step) or {}
    selection.restore(state.get("selection"))


def history_limits(settings: HistoryConfig) -> HistoryLimits:
    """The bounds of a run's history store."""
    return HistoryLimits(
        max_per_problem_and_verdict=settings.max_per_problem_and_verdict,
        max_bytes=settings.max_bytes,
        eviction=settings.eviction,
    )


def history_forecast(config: R3Config, *, num_problems: int, mean_tokens: float, steps: int) -> Forecast | None:
    """What the history store will hold of a run of `steps` steps; None where the run recalls nothing.

    mean_tokens: of a response.
    """
    remembers = config.replay.enabled or config.reflection.enabled or config.exploration.prefix.enabled
    if config.algo != Algorithm.R3 or not remembers:
        return None
    checkpoint = config.checkpoint
    steps_to_floor = 1 if checkpoint.save_steps == -1 else checkpoint.save_steps * checkpoint.max_num
    return forecast(
        history_limits(config.history),
        num_problems=num_problems,
        problems_per_step=config.rollout.batch_size,
        samples=config.rollout.n_samples_per_prompt,
        mean_tokens=mean_tokens,
        steps_to_floor=min(steps_to_floor, steps),
    )


def history_warnings(config: R3Config, *, num_problems: int) -> list[str]:
    """Sentences about a history that will be too small to recall from; [] where it is large enough.

    Responses are taken to be half as long as rollout.max_new_tokens on average.
    """
    mean_tokens, checkpoint = config.rollout.max_new_tokens / 2, config.checkpoint
    steps = -(-num_problems * config.train.num_epochs // config.rollout.batch_size)
    expected = history_forecast(config, num_problems=num_problems, mean_tokens=mean_tokens, steps=steps)
    if expected is None:
        return []
    found, given = [], f"history.max_bytes is {config.history.max_bytes:,}"
    if expected.coverage < ENOUGH:
        found.append(
            f"{given}: with {num_problems:,} problems and responses of {mean_tokens:,.0f} tokens it will hold a success and an "
            f"error of about {expected.coverage:.0%} of them, and replay will find nothing for the others; "
            f"use {expected.enough_bytes:,} or more"
        )
    if expected.arriving_share > 0.5:
        found.append(
            f"{given}, of which {expected.arriving_share:.0%} would be new before the oldest of {checkpoint.max_num} checkpoints "
            f"frees any: some rollouts will be counted but not kept; lower checkpoint.save_steps ({checkpoint.save_steps}) or "
            "checkpoint.max_num, or raise history.max_bytes"
        )
    return found


def stored_rollouts(
    history: HistoryStore, config: R3Config, uid: str, verdict: Verdict, *, step: int
) -> list[Rollout]:
    """The rollouts of one problem with one verdict that `replay` recalls in this step; their text is empty."""
    (found,) = history.recall_many([_request(config, uid, verdict, step=step)])
    return [stored.rollout for stored in found]


def coverage_metrics(batch: MixedBatch, history: HistoryStore, config: R3Config, *, step: int) -> dict[str, float]:
    """How many of the collapsed groups that ask for a recall had something stored, and why the others had not. Call it after
    `recall` and before the step is committed. Nothing with replay.enabled=false."""
    if not config.replay.enabled:
        return {}
    reasons: Counter[Absence | None] = Counter()
    wanted = [(group.uid, opposite_verdict(group.state)) for group in batch.groups if group.wanted]
    collapsed = [(uid, verdict) for uid, verdict in wanted if verdict is not None]
    for uid, verdict in collapsed:
        reasons[history.absence(_request(config, uid, verdict, step=step))] += 1
    covered = reasons[None] / len(collapsed) if collapsed else 1.0
    return {"r3/history/coverage": covered} | {f"r3/history/{why}": float(reasons[why]) for why in Absence}


def _request(config: R3Config, uid: str, verdict: Verdict, *, step: int) -> RecallRequest:
    replay = config.replay
    contexts = [Context.PLAIN]
    contexts += [Context.REFLECTION] if replay.include_reflection else []
    contexts += [Context.PREFIX] if config.exploration.prefix.enabled else []
    return RecallRequest(
        uid=uid,
        verdict=verdict,
        k=replay.k,
        step=step,
        max_policy_lag=replay.max_policy_lag,
        order=replay.order,
        contexts=tuple(contexts),
    )


def recall(batch: MixedBatch, stored: RecallFunction, config: R3Config, *, step: int) -> None:
    """CCR: what `stored(uid, verdict)` gives joins each collapsed group; with share_successes (of reflection and of
    exploration.prefix) what this step found behind a reflection prompt or a prefix comes first. replay.k rows at most then.
    Nothing with all of it switched off.

    A success behind a reflection prompt has no log-probs of its own behind the plain one. So its ratio is taken against
    the current policy's (`uses_stored_logprobs`), and the clip bounds how far the step moves it. One from a prefix began
    behind the plain prompt and has its own.
    """
    replay = config.replay
    share = {
        context
        for context, shares in (
            (Context.REFLECTION, config.reflection.share_successes),
            (Context.PREFIX, config.exploration.prefix.share_successes),
        )
        if shares
    }
    if not (replay.enabled or share):
        return
    shared = batch.successes_in(share)

    def found(uid: str, verdict: Verdict) -> list[Rollout]:
        recalled = list(stored(uid, verdict)) if replay.enabled else []
        candidates = shared.get(uid, []) if verdict is Verdict.CORRECT else []
        if not candidates:
            return recalled
        rng = random.Random(f"{config.train.seed}/share/{step}/{uid}")
        first = choose(candidates, k=replay.k, order=RecallOrder.UNIFORM, rng=rng)
        known = {response_bytes(one) for one in first}
        return (first + [one for one in recalled if response_bytes(one) not in known])[: replay.k]

    rng = random.Random(f"{config.train.seed}/replace/{step}")
    batch.recall(found, mode=replay.mode, rng=rng, failures=replay.enabled and replay.recall_failures)


def rows_to_rank(batch: MixedBatch, config: R3Config) -> dict[int, list[int]]:
    """SERR: group index -> indices of the rows that are ranked. None with ranking.enabled=false."""
    return batch.rows_to_rank(scope=config.ranking.scope) if config.ranking.enabled else {}


def rows_with_exact_entropy(batch: MixedBatch, ranked: dict[int, list[int]], config: R3Config) -> set[int]:
    """Indices of the ranked rows whose entropy must come from the policy's own logits, by ranking.entropy_source. For
    the others the engine's top-k log-probs will do. None with ranking.score=logprob: every row has its log-probs."""
    if not config.ranks_by_entropy:
        return set()
    source = EntropySource.checked("ranking.entropy_source", config.ranking.entropy_source)
    found: set[int] = set()
    for indices in ranked.values():
        rows = [batch.rows[i] for i in indices]
        if source is EntropySource.EXACT or (
            source is EntropySource.AUTO and not topk_decides(rows, lambda row: row.rollout.entropy_bounds)
        ):
            found.update(indices)
    return found


def assign_advantages(
    batch: MixedBatch,
    ranked: dict[int, list[int]],
    entropy: Callable[[Row], EntropyStatistics],
    config: R3Config,
) -> None:
    """SERR and eq. 3: `row.reward` and `row.advantage` of every row. `entropy` is asked for the ranked rows alone, and
    for none with ranking.score=logprob."""
    if config.ranks_by_entropy:
        batch.rank(ranked, entropy, max_reward=config.ranking.max_reward)
    else:
        batch.rank_by_score(
            ranked,
            lambda row: mean_logprob(
                row.rollout.response_logprobs[row.rollout.prefix_tokens :]
            ),  # of what was sampled
            max_reward=config.ranking.max_reward,
        )
    if Algorithm.checked("algo", config.algo) is Algorithm.DAPO:
        for row in batch.rows:
            row.reward -= overlong_penalty(row.rollout.num_tokens, max_tokens=config.rollout.max_new_tokens)
    batch.advantages(
        alpha=config.advantage.alpha,
        lam=config.advantage.lam,
        scope=config.advantage.scope,
        guard=config.ranking.guard,
        zero_collapsed=config.advantage.zero_collapsed,
        success_scale=config.advantage.success_scale,
    )


def training_metrics(batch: MixedBatch, config: R3Config) -> dict[str, float]:
    """What the update costs: `trained_tokens`, prompt and response tokens of the trained rows, once for each pass."""
    asked = ((row if batch.has_own_prompt(row) else batch.first_of(row)).rollout for row in batch.rows if row.trained)
    responses = sum(row.rollout.num_tokens for row in batch.rows if row.trained)
    tokens = sum(len(rollout.prompt_ids) for rollout in asked) + responses
    return {"trained_tokens": float(tokens * config.train.inner_epochs)}


def uses_stored_logprobs(batch: MixedBatch, row: Row, config: R3Config) -> bool:
    """Is the row's ratio taken against the log-probs it was sampled with (METHOD section 4), not the current policy's?

    Only a recalled row has a choice, and only where it was sampled from the prompt of its group.
    """
    wanted = OldLogprobs.checked("replay.old_logprobs", config.replay.old_logprobs)
    return row.recalled and wanted is OldLogprobs.BEHAVIOUR and batch.has_own_prompt(row)
