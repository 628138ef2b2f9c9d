"""Rows without a gradient: which they are, and how the others are laid out over windows and ranks.

An idle row has advantage 0 on each of its tokens, as the rows of a group that stays collapsed after replay.
Where the loss is proportional to the advantage its gradient is exactly 0, so it need not pass through the
model. A window is what one optimizer step sees. Pure but for `most`, which asks the other ranks.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed
from openrlhf.trainer.ppo_utils.experience import Experience

from r3_openrlhf.stack.taught_update import TARGET, has_target

# metrics of an update, besides upstream's: rows of the step that passed through the model, and that did not
NUM_ROWS = "rows"  # a key of `sums_of_rows`
TRAINED_ROWS, IDLE_ROWS = "r3/update/rows", "r3/update/skipped_rows"


def is_idle(row: Experience) -> bool:
    """Tell whether every token of this row [A] has advantage 0, and no target (taught_update.py)."""
    if row.advantages is None or has_target(row.info.get(TARGET)):
        return False
    return not bool((row.advantages * row.action_mask).any())


def num_actions(row: Experience) -> int:
    """Count the sampled tokens of this row [A]."""
    return int(row.action_mask.sum().item())


def dealt(order: Sequence[int], idle: Sequence[bool], windows: int) -> list[list[int]]:
    """Deal rows to windows of equal size, each with an equal share of the idle ones, up to one row.

    Without an idle row the windows are consecutive parts of `order`.

    Args:
        order: row numbers, as many as a multiple of `windows`.
        idle: of each row number, whether it is idle."""
    size = len(order) // windows
    if not any(idle[i] for i in order):
        return [list(order[window * size : (window + 1) * size]) for window in range(windows)]
    busy_first = [i for i in order if not idle[i]] + [i for i in order if idle[i]]
    return [busy_first[window::windows] for window in range(windows)]


def split_window(
    rows: Sequence[int], idle: Sequence[bool], lengths: Sequence[int], at_least: int
) -> tuple[list[int], list[int]]:
    """Return the rows of a window that pass through the model, and those that leave.

    The shortest idle rows stay where fewer than `at_least` rows have a gradient: every rank runs as many
    passes as the others, and each pass needs a row."""
    kept = [i for i in rows if not idle[i]]
    shortest = sorted((i for i in rows if idle[i]), key=lambda i: lengths[i])
    missing = max(0, at_least - len(kept))
    stay = set(shortest[:missing])
    return [i for i in rows if not idle[i] or i in stay], [
        i for i in rows if idle[i] and i not in stay
    ]


def agreed_counts(
    windows: Sequence[Sequence[int]],
    idle: Sequence[bool],
    lengths: Sequence[int],
    needed: Callable[[list[int]], int],
    most: Callable[[list[int]], list[int]],
) -> list[int]:
    """Return how many micro-batches each window has, the same on every rank.

    Args:
        needed: the rows of a window on this rank -> the micro-batches that they fill, at least 1.
        most: numbers of this rank, one a window -> the largest of all ranks. Every rank calls it equally often."""
    counts = [1] * len(windows)
    while True:
        kept = [
            split_window(rows, idle, lengths, count)[0]
            for rows, count in zip(windows, counts, strict=True)
        ]
        wanted = most(
            [max(count, needed(rows)) for rows, count in zip(kept, counts, strict=True)]
        )
        if wanted == counts:
            return counts
        counts = wanted


def sums_of_rows(rows: Sequence[Experience]) -> dict[str, float]:
    """Sum what upstream reports as a mean over rows (ppo_actor.py:380-398), of rows with actions.

    Keys of `info` with one number a row, lengths and truncation, and the number of rows."""
    sums: dict[str, float] = {NUM_ROWS: 0.0}
    for row in rows:
        # a filler has its keys, so that all ranks have the same
        counts = float(num_actions(row) > 0)
        sums[NUM_ROWS] += counts
        values = dict(row.info) | {
            name: getattr(row, name)
            for name in ("response_length", "truncated", "total_length")
        }
        values.pop(TARGET, None)
        for key, value in values.items():
            number = torch.as_tensor(value, dtype=torch.float64)
            if number.numel() == 1:
                sums[key] = sums.get(key, 0.0) + counts * number.item()
    return sums


def over_ranks(numbers: list, op: torch.distributed.ReduceOp.RedOpType, group: object) -> list:
    """Reduce numbers, nested lists of one shape on every rank, over the ranks of `group`; exact up to 2^53."""
    values = torch.tensor(numbers, dtype=torch.float64, device=torch.cuda.current_device())
    torch.distributed.all_reduce(values, op=op, group=group)
    return values.tolist()
