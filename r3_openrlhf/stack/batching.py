"""Lay rows out over data-parallel ranks and micro-batches. Pure; no tensor.

Every rank must run the same number of forward and backward passes, or ranks wait for each other for
ever. Upstream assumes rollout counts that divide evenly; mixed groups do not. Rows are therefore
completed by fillers (rows without any action, see convert.filler_experience) up to a multiple of
ranks * windows: fewer than ranks * windows of them. A window is what one optimizer step sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace

from openrlhf.utils.seqlen_balancing import get_minimum_num_micro_batch_size, get_seqlen_balanced_partitions

MAX_ADDITIONAL = 2  # micro-batches beyond the fewest, to pad short rows less;
ADDITIONAL_MUST_SAVE = 0.5  # each of them this share of the tokens that a micro-batch has


def effective_ranks(args: SimpleNamespace) -> int:
    """Ranks that see different rows (trainer/ppo_utils/experience_maker.py:54-59)."""
    return (
        args.actor.num_nodes * args.actor.num_gpus_per_node // args.ds.ring_attn_size // args.ds.tensor_parallel_size
    )


def num_windows(args: SimpleNamespace) -> int:
    """Optimizer steps per training step. Fixed by the fresh rollouts, so that additional rows
    enlarge a window and never add one: the learning-rate schedule keeps its length."""
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


def max_forward_tokens(args: SimpleNamespace) -> int:
    """Return the most tokens of a micro-batch of log-probs, over all processes with its rows."""
    return args.rollout.max_tokens_per_gpu * args.ds.ring_attn_size * args.ds.tensor_parallel_size


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
        if all(len(rows) == 1 or sum(lengths[i] for i in rows) <= max_tokens for rows in batches):
            break
    return batches


def num_tight(lengths: Sequence[int], micro_batch_size: int) -> int:
    """Into how many micro-batches to put padded rows of these lengths (tokens, ascending).

    As few as the size allows, and up to MAX_ADDITIONAL more where that saves padding: eight
    reflection prompts among the sixteen rows of a micro-batch would pad the other eight to their
    length."""
    fewest = -(-len(lengths) // micro_batch_size)
    most = min(fewest + MAX_ADDITIONAL, len(lengths))
    padded = {
        count: num_padded_tokens(lengths, tight_micro_batches(lengths, micro_batch_size, count))
        for count in range(fewest, most + 1)
    }
    costs_alone = ADDITIONAL_MUST_SAVE * padded[fewest] / fewest
    return min(padded, key=lambda count: padded[count] + count * costs_alone)


def num_padded_tokens(lengths: Sequence[int], batches: list[slice]) -> int:
    """Tokens that go through the model, padding included."""
    return sum((rows.stop - rows.start) * lengths[rows.stop - 1] for rows in batches)


def tight_micro_batches(lengths: Sequence[int], micro_batch_size: int, count: int) -> list[slice]:
    """`count` micro-batches of at most `micro_batch_size` rows with as little padding as possible;
    `lengths` ascend.

    Exact, by dynamic programming over where a micro-batch ends. ValueError: `count` micro-batches
    cannot hold the rows, or would not all have one."""
    rows = len(lengths)
    if not -(-rows // micro_batch_size) <= count <= rows:
        raise ValueError(f"{rows} rows do not make {count} micro-batches of 1 to {micro_batch_size} rows")
    tokens = {0: 0}  # of the micro-batches so far, by the row where the last one ends
    begins: list[dict[int, int]] = []  # of each micro-batch, by the same
    for left in reversed(range(count)):
        done, began = tokens, {}
        tokens = {}
        for end in range(max(len(begins) + 1, rows - left * micro_batch_size), rows - left + 1):
            starts = [start for start in range(max(0, end - micro_batch_size), end) if start in done]
            if starts:
                began[end] = min(starts, key=lambda start: done[start] + (end - start) * lengths[end - 1])
                tokens[end] = done[began[end]] + (end - began[end]) * lengths[end - 1]
        begins.append(began)
    ends = [rows]
    for began in reversed(begins):
        ends.append(began[ends[-1]])
    return [slice(start, end) for start, end in pairwise(reversed(ends))]
