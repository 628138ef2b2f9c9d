"""Lay rows out over data-parallel ranks and micro-batches. Pure; no tensor.

Every rank must run the same number of forward and backward passes, or ranks wait for each other for
ever. Upstream assumes rollout counts that divide evenly; mixed groups do not. Rows are therefore
completed by fillers (rows without any action, see convert.filler_experience) up to a multiple of
ranks * windows: fewer than ranks * windows of them. A window is what one optimizer step sees.
"""

from collections.abc import Sequence
from types import SimpleNamespace

from openrlhf.utils.seqlen_balancing import (
    get_minimum_num_micro_batch_size,
    get_seqlen_balanced_partitions,
)


def effective_ranks(args: SimpleNamespace) -> int:
    """Ranks that see different rows (trainer/ppo_utils/experience_maker.py:54-59)."""
    return (
        args.actor.num_nodes
        * args.actor.num_gpus_per_node
        // args.ds.ring_attn_size
        // args.ds.tensor_parallel_size
    )


def num_windows(
    args: SimpleNamespace, *, num_rows: int = 0, rows_per_update: int | None = None
) -> int:
    """Optimizer steps per training step. Fixed by the fresh rollouts, so that additional rows
    enlarge a window and never add one: the learning-rate schedule keeps its length.

    rows_per_update: as few windows as hold num_rows rows (of all ranks), each at most that many. A
    multiple of the ranks, so that fillers up to a multiple of ranks * windows never add a window:
    each rank finds the number in its own rows."""
    if rows_per_update is not None:
        return max(1, -(-num_rows // rows_per_update))
    return max(
        1, args.rollout.batch_size * args.rollout.n_samples_per_prompt // args.train.batch_size
    )


def num_fillers(num_rows: int, *, ranks: int, windows: int) -> int:
    """Rows that are missing to the next multiple of ranks * windows."""
    return -num_rows % (ranks * windows)


def even_slices(num_rows: int, num_slices: int) -> list[slice]:
    """Consecutive slices whose sizes differ by at most one."""
    size, rest = divmod(num_rows, num_slices)
    starts = [i * size + min(i, rest) for i in range(num_slices + 1)]
    return [slice(a, b) for a, b in zip(starts, starts[1:], strict=False)]


def micro_batches(num_rows: int, micro_batch_size: int) -> list[slice]:
    """Return as few micro-batches as the size allows, filled evenly."""
    return even_slices(num_rows, -(-num_rows // micro_batch_size))


def max_forward_tokens(args: SimpleNamespace) -> int:
    """Return the most tokens of a micro-batch of log-probs, over all processes with its rows."""
    return (
        args.rollout.max_tokens_per_gpu * args.ds.ring_attn_size * args.ds.tensor_parallel_size
    )


def balanced_batches(lengths: Sequence[int], *, ranks: int, max_tokens: int) -> list[list[int]]:
    """Rows, by their numbers, in micro-batches of at most `max_tokens` tokens or of one row, and a
    multiple of `ranks` of them.

    Answers trainer/ppo_utils/experience_maker.py:62, which rounds the number down to a multiple of
    ranks: 96 rows on 8 ranks made micro-batches of 1.7 times the tokens. Here it is rounded up, and
    raised while one is too large: balanced partitions need not fit where the first fit's do."""
    fewest = get_minimum_num_micro_batch_size(lengths, max_tokens, 1, 1)
    most = max(1, len(lengths) // ranks) * ranks
    for count in range(min(most, -(-fewest // ranks) * ranks), most + 1, ranks):
        batches = get_seqlen_balanced_partitions(lengths, count, equal_size=False)
        if all(
            len(rows) == 1 or sum(lengths[i] for i in rows) <= max_tokens for rows in batches
        ):
            break
    return batches
