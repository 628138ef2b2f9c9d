"""Choose the rows that pass through the policy before the update, where nobody reads the log-probs of some.

A row without a gradient (idle_rows.py) needs no log-probs, unless its entropy is ranked, it was
recalled, or its values are logged. Of the others a sample passes, for the gap between actor and engine.
"""

import random
from collections.abc import Collection, Sequence

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

ONE_IN = 16  # rows that nobody reads, for each that is compared with the engine


def drawn(rows: Collection[int], *, seed: int, step: int) -> set[int]:
    """Draw one in `ONE_IN` of these rows by lot, rounded up: one at least, if there is any."""
    count = -(-len(rows) // ONE_IN)
    return set(random.Random(f"{seed}/log-probs/{step}").sample(sorted(rows), count))


def passing(unread: Collection[int], lengths: Sequence[int], *, ranks: int) -> list[int]:
    """Return the rows that pass through the policy, in their order, as many on each rank.

    The shortest of the unread complete them to a multiple of `ranks`, which the number of rows is.

    Args:
        unread: numbers of rows.
        lengths: tokens of each row, prompt and response."""
    read = [row for row in range(len(lengths)) if row not in unread]
    missing = -len(read) % ranks
    if not read:
        missing = ranks
    shortest = sorted(unread, key=lambda row: (lengths[row], row))
    return sorted(read + shortest[:missing])


def set_logprobs(
    rows: Sequence[Experience], forwarded: Sequence[Experience], numbers: Sequence[int]
) -> None:
    """Give each row [1, A] what its pass found; the rows that did not pass get their engine's log-probs.

    Those stand where a loss with advantage 0 reads them. The rows have no reference and no critic.

    Args:
        forwarded: micro-batches of upstream's `make_experience`.
        numbers: places in `rows`, in the order of the rows of `forwarded`."""
    found: dict[int, torch.Tensor] = {}
    of_forwarded = iter(numbers)
    for experience in forwarded:
        for logprobs_A in experience.action_log_probs:
            found[next(of_forwarded)] = logprobs_A
    for number, row in enumerate(rows):
        length = row.action_mask.size(1)
        if number in found:
            # rows of a micro-batch are padded on the right
            row.action_log_probs = found[number][None, :length]
        else:
            row.action_log_probs = row.rollout_log_probs * row.action_mask
        row.kl = torch.zeros_like(row.action_log_probs)
        row.info |= {"kl": torch.zeros(1), "logprobs_diff": torch.zeros(1)}
