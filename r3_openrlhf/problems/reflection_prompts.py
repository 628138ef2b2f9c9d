"""Which problems of a batch get a reflection group, and from which prompt (ISR, METHOD section 5)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from r3_openrlhf.agents.reflection import attempt_section, attempt_text
from r3_openrlhf.core.reflection import fit_attempt, is_hard, reflection_message
from r3_openrlhf.problems import prompts as prompting
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.types import PlayedTurn, Rollout, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from r3_openrlhf.config import R3Config
    from r3_openrlhf.history.store import HistoryStore


def hard_problems(
    labels: Sequence[Label], *, history: HistoryStore, config: R3Config, step: int
) -> tuple[int, list[int]]:
    """(how many of the batch's problems are hard, places of those that are asked again with a reflection prompt).

    A problem is hard when the mean stored reward of its plain rollouts is below reflection.threshold. More than
    reflection.max_per_step are drawn from, reproducibly from train.seed and `step`.
    """
    return drawn_hard_problems(
        labels,
        history=history,
        threshold=config.reflection.threshold,
        max_per_step=config.reflection.max_per_step,
        rng=random.Random(f"{config.train.seed}/reflection/{step}"),
    )


def drawn_hard_problems(
    labels: Sequence[Label],
    *,
    history: HistoryStore,
    threshold: float,
    max_per_step: int | None,
    rng: random.Random,
) -> tuple[int, list[int]]:
    """(how many problems have a mean stored reward of plain rollouts below `threshold`, places of `max_per_step` of them)."""
    means = history.mean_rewards([label.uid for label in labels])
    hard = [i for i, label in enumerate(labels) if is_hard(means.get(label.uid), threshold=threshold)]
    if max_per_step is None or len(hard) <= max_per_step:
        return len(hard), hard
    return len(hard), sorted(rng.sample(hard, max_per_step))


def stored_error(label: Label, *, history: HistoryStore, config: R3Config, step: int) -> Rollout | None:
    """A randomly drawn wrong answer to the plain prompt; None: the store has none (any more)."""
    stored = history.recall(
        label.uid, Verdict.WRONG, k=1, step=step, max_policy_lag=config.replay.max_policy_lag, order="uniform"
    )
    return stored[0].rollout if stored else None


def reflection_prompt(
    label: Label, error: Rollout, *, config: R3Config, tokenizer: PreTrainedTokenizerBase
) -> str | None:
    """Problem + stored error + guidance, within the context. None: no room for an error beside the problem.

    Of a task of many turns: the lines for the prompts of its turns, which agent_executor.py makes.
    """
    if error.turns is not None:
        return _lines_about(error.turns, config=config, tokenizer=tokenizer)
    attempt = tokenizer.decode(error.response_ids.tolist(), skip_special_tokens=True)
    problem = prompting.problem_message(config.data, label.problem)

    def render(shortened: str) -> str:
        return prompting.render(tokenizer, config.data, reflection_message(problem, shortened))

    shortened = fit_attempt(
        attempt,
        num_prompt_tokens=lambda text: prompting.count_tokens(tokenizer, render(text)),
        num_tokens=lambda text: prompting.count_tokens(tokenizer, text),
        max_prompt_tokens=config.data.max_len - config.rollout.max_new_tokens,
        max_attempt_tokens=config.reflection.max_attempt_tokens,
    )
    return None if shortened is None else render(shortened)


def _lines_about(turns: Sequence[PlayedTurn], *, config: R3Config, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Short enough to stand in the longest prompt of that attempt: so a memory seldom gives way to them."""
    longest = max(len(turn.prompt_ids) for turn in turns)
    shortened = fit_attempt(
        attempt_text(turns),
        num_prompt_tokens=lambda text: longest + prompting.count_tokens(tokenizer, attempt_section(text)),
        num_tokens=lambda text: prompting.count_tokens(tokenizer, text),
        max_prompt_tokens=config.data.max_len - config.rollout.max_new_tokens,
        max_attempt_tokens=config.reflection.max_attempt_tokens,
    )
    return None if shortened is None else attempt_section(shortened)
