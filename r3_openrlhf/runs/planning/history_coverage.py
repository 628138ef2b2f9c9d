"""Forecast, before a run starts, whether its history will hold something to recall."""

from __future__ import annotations

from r3_openrlhf.config import R3Config
from r3_openrlhf.runs.planning.history_forecast import ENOUGH, Forecast, forecast


def history_forecast(config: R3Config, *, num_problems: int, mean_tokens: float, steps: int) -> Forecast | None:
    """What the history store will hold of a run of `steps` steps; None where the run recalls nothing.

    mean_tokens: of a response.
    """
    remembers = config.replay.enabled or config.reflection.enabled
    if not (config.algorithm.keeps_history and remembers):
        return None
    checkpoint = config.checkpoint
    steps_to_floor = 1 if checkpoint.save_steps == -1 else checkpoint.save_steps * checkpoint.max_num
    return forecast(
        config.history,
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
