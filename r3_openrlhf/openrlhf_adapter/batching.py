"""How rows are laid out over data-parallel ranks and micro-batches. Pure; no tensor.

Every rank must run the same number of forward and backward passes, or ranks wait for each other for ever. Upstream
assumes rollout counts that divide evenly; mixed groups do not. Rows are therefore completed by fillers (rows without
any action, see convert.filler_experience) up to a multiple of ranks * windows: fewer than ranks * windows of them.
A window is what one optimizer step sees.
"""

from __future__ import annotations

from types import SimpleNamespace


def effective_ranks(args: SimpleNamespace) -> int:
    """Data-parallel ranks: processes that see different rows (trainer/ppo_utils/experience_maker.py:54-59)."""
    return (
        args.actor.num_nodes * args.actor.num_gpus_per_node // args.ds.ring_attn_size // args.ds.tensor_parallel_size
    )


def num_windows(args: SimpleNamespace) -> int:
    """Optimizer steps per training step. Fixed by the fresh rollouts, so that additional rows enlarge a window and
    never add one: the learning-rate schedule keeps its length."""
    return max(1, args.rollout.batch_size * args.rollout.n_samples_per_prompt // args.train.batch_size)


def num_fillers(num_rows: int, *, ranks: int, windows: int) -> int:
    """Rows that are missing to the next multiple of ranks * windows."""
    return -num_rows % (ranks * windows)


def even_slices(num_rows: int, num_slices: int) -> list[slice]:
    """Consecutive slices whose sizes differ by at most one."""
    size, rest = divmod(num_rows, num_slices)
    starts = [i * size + min(i, rest) for i in range(num_slices + 1)]
    return [slice(a, b) for a, b in zip(starts, starts[1:], strict=False)]


def micro_batches(num_rows: int, micro_batch_size: int) -> list[slice]:
    """As few micro-batches as the size allows, filled evenly."""
    return even_slices(num_rows, -(-num_rows // micro_batch_size))
