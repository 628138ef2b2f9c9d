"""Forecast, before a run starts, whether `history.max_bytes` will hold something to recall of every
problem. Pure."""

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.history.usage import (
    BASE_BYTES,
    PROBLEM_BYTES,
    blob_bytes,
    live_bytes,
    row_bytes,
)
from r3_openrlhf.method.settings import HistorySettings

# Bytes per token after compression: log-probs are noise but for their exponents, token ids below
# 2**18 are not. `python benchmarks/storage.py` prints 6.3 for both and the row's own fields.
LOGPROB_BYTES, TOKEN_BYTES = 3.9, 2.2
PROMPT_TOKENS = 200
# of a byte of experts (history/experts.py): 8 of 128 are drawn by lot; real ones repeat
EXPERT_SHARE = 0.66
ENOUGH = 0.95


def forecast(
    limits: HistorySettings,
    *,
    num_problems: int,
    problems_per_step: int,
    samples: int,
    mean_tokens: float,
    steps_to_floor: int,
    expert_bytes: int = 0,
) -> tuple[float, int]:
    """Return (rows of each problem and verdict, `max_bytes` that would hold one of each).

    Every problem counts as both solved and failed, the most that can be asked for. Below 1, rows are
    the share of problems with something to recall: room.py gives every set one row before it gives
    any a second. mean_tokens: of a response. steps_to_floor: how old the oldest checkpoint gets, in
    steps; what they bring needs space as well. expert_bytes: of the experts of a token, with
    rollout.routing_replay."""
    row = row_bytes(int(LOGPROB_BYTES * mean_tokens), int(TOKEN_BYTES * mean_tokens))
    if expert_bytes:
        tokens = PROMPT_TOKENS + mean_tokens
        row += blob_bytes(int(EXPERT_SHARE * expert_bytes * tokens))
    stored = min(samples, 2 * limits.max_per_problem_and_verdict)
    arriving = steps_to_floor * problems_per_step * stored * row
    fixed = BASE_BYTES + num_problems * (
        PROBLEM_BYTES + blob_bytes(int(TOKEN_BYTES * PROMPT_TOKENS))
    )
    one_of_each = 2 * num_problems * row
    live = max(0, live_bytes(limits.max_bytes - fixed, arrived=arriving))
    enough = fixed + min(one_of_each + arriving + arriving // 4, 2 * one_of_each)
    return min(limits.max_per_problem_and_verdict, live / one_of_each), enough


def history_warnings(
    config: R3Config,
    *,
    num_problems: int,
    mean_tokens: float | None = None,
    expert_bytes: int = 0,
) -> list[str]:
    """Return a sentence about a history that will be too small to recall from; [] where it is large
    enough, or where the run recalls nothing.

    mean_tokens: of a response; None: half of rollout.max_new_tokens. expert_bytes: as in `forecast`."""
    mean_tokens, checkpoint = (
        mean_tokens or config.rollout.max_new_tokens / 2,
        config.checkpoint,
    )
    if not (
        config.algorithm.keeps_history and (config.replay.enabled or config.reflection.enabled)
    ):
        return []
    steps = -(-num_problems * config.train.num_epochs // config.rollout.batch_size)
    steps_to_floor = (
        1 if checkpoint.save_steps == -1 else checkpoint.save_steps * checkpoint.max_num
    )
    rows, enough_bytes = forecast(
        config.history,
        num_problems=num_problems,
        problems_per_step=config.rollout.batch_size,
        samples=config.rollout.n_samples_per_prompt,
        mean_tokens=mean_tokens,
        steps_to_floor=min(steps_to_floor, steps),
        expert_bytes=expert_bytes,
    )
    if rows >= ENOUGH:
        return []
    return [
        f"history.max_bytes is {config.history.max_bytes:,}: with {num_problems:,} problems and responses of {mean_tokens:,.0f} "
        f"tokens it will hold a success and an error of about {rows:.0%} of them, and replay will find nothing for the others; "
        f"use {enough_bytes:,} or more"
    ]
