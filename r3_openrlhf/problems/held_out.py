"""Held-out problems for the policy in training: their choice, and a line of evaluations.jsonl."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from r3_openrlhf.config import DataConfig, R3Config
from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.method.types import Rollout, Verdict
from r3_openrlhf.problems.prompt_checks import near
from r3_openrlhf.problems.sources import REASONING_GYM, Label, check_source, load_problems
from r3_openrlhf.problems.training_file import (
    drawn_before,
    line_of,
    read_prompts,
    rendered,
    write_once,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def held_out_data(config: R3Config) -> DataConfig | None:
    """Return the source of held-out problems: `held_out`, with columns, grader, prompt of `data`."""
    settings, data = config.held_out, config.data
    if settings.path is None:
        return None
    return replace(
        data,
        path=settings.path,
        subset=data.subset if settings.path == data.path else None,
        revision=data.revision if settings.path == data.path else None,
        sources=[],
        split=settings.split,
        reasoning_gym=settings.reasoning_gym,
        max_samples=settings.max_samples,
        # None: the one that fits the path
        task=None if data.task is None or TASKS[data.task].problems is not None else data.task,
    )


def check_held_out_source(config: R3Config, *, are_drawn: bool = False) -> None:
    """Check `held_out` as problems.check_source does."""
    data = held_out_data(config)
    if data is not None:
        with _errors_name_the_right_key():
            check_source(data, with_rows=config.reward.reads_rows, are_drawn=are_drawn)


def prepare_held_out(
    config: R3Config, tokenizer: PreTrainedTokenizerBase | None, training: Path, output: Path
) -> int:
    """Write the prompts of the held-out problems as data.prepare does the present `training`. Returns their number.

    Generated problems meet by chance: those trained on are left out, before held_out.max_samples
    counts. In a file or hub data set that is a mistake. DataError, in one sentence: a held-out
    problem is trained on, none is left, others than at an earlier start; and as load_problems.
    """
    data = held_out_data(config)
    if data is None:
        raise ValueError("held_out.path is not set; there is nothing to prepare")
    with _errors_name_the_right_key():
        problems = drawn_before(data, output)
        if problems is None:
            problems = load_problems(data, with_rows=config.reward.reads_rows)
    labels = problems.labels
    trained = [Label.from_json(label) for label in read_prompts(training)[1]]
    uids, texts = {label.uid for label in trained}, set(map(near, trained))
    both = [label for label in labels if label.uid in uids or near(label) in texts]
    if both and not data.path.startswith(REASONING_GYM):
        raise DataError(
            f"held_out.path {data.path} holds {len(both)} of the problems that are trained on ({both[0].uid} is the "
            "first), so it is not held out; use another file or split, or leave them out of one of the two"
        )
    left_out = {label.uid for label in both}
    lines: list[str] = []
    room = data.max_len - config.rollout.max_new_tokens
    for label, prompt, _ in rendered(
        [one for one in labels if one.uid not in left_out], data, tokenizer, room=room
    ):
        if prompt is not None:
            lines.append(line_of(label, prompt, "held_out"))
        if len(lines) == data.max_samples:
            break
    if not lines:
        raise DataError(
            f"held_out.path {data.path} gives no problem that is not trained on and leaves room for a response; use "
            "another file, or a held_out.reasoning_gym.seed that is further away (problem i comes from seed + i)"
        )
    write_once(output, lines, f"held_out.path {data.path}", problems.sources)
    return len(lines)


def evaluation_line(
    rollouts: Sequence[Rollout],
    *,
    config: R3Config,
    step: int,
    epoch: int,
    generated_tokens: int,
) -> dict[str, float | int | str | None]:
    """One line of evaluations.jsonl (docs/metrics.md) from every response to the held-out problems.

    pass_at_1 is the mean over problems of the share of correct responses, pass_at_n the share of
    problems with a correct one. An ungraded response counts in neither; a problem without any
    graded response has no value and leaves both means, which are None when no problem has one.
    step: optimizer steps done. generated_tokens: sampled for training so far; the evaluation's own
    are not among them."""
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.verdict is not Verdict.UNGRADED:
            verdicts[rollout.uid].append(rollout.verdict is Verdict.CORRECT)
    uids = {rollout.uid for rollout in rollouts}
    settings = config.held_out
    return {
        "step": step,
        "epoch": epoch,
        "generated_tokens": generated_tokens,
        "name": "held_out",
        "num_problems": len(uids),
        "n_samples": settings.n_samples,
        "temperature": settings.temperature,
        "max_new_tokens": config.rollout.max_new_tokens,
        "pass_at_1": fmean(fmean(found) for found in verdicts.values()) if verdicts else None,
        "pass_at_n": fmean(any(found) for found in verdicts.values()) if verdicts else None,
        "response_tokens_mean": fmean(rollout.num_sampled_tokens for rollout in rollouts),
        "truncated_rate": fmean(rollout.truncated for rollout in rollouts),
        "num_ungraded": sum(rollout.verdict is Verdict.UNGRADED for rollout in rollouts),
        "problems_sha256": hashlib.sha256("\n".join(sorted(uids)).encode()).hexdigest(),
    }


@contextmanager
def _errors_name_the_right_key() -> Iterator[None]:
    """Name held_out.path in sentences that problems/sources.py writes about data.path."""
    try:
        yield
    except DataError as error:
        text = str(error)
        for key in ("path", "sources", "reasoning_gym", "split"):
            text = text.replace(f"data.{key}", f"held_out.{key}")
        raise DataError(text) from error
