"""Before a run starts: will `history.max_bytes` hold something to recall of every problem? Pure.

row      bytes of a row of t tokens, by the store's own accounting (usage.row_bytes)
arrive   what the steps between two moves of the rollback floor bring
live     max_bytes - fixed - room for what arrives (usage.live_bytes)
rows     live / (2 problems row): rows of each problem and verdict, when every problem is both solved and failed, which
         is the most that can be asked for
coverage min(1, rows): room.py gives every set one row before it gives any a second
"""

from __future__ import annotations

from dataclasses import dataclass

from r3_openrlhf.method.history.usage import BASE_BYTES, PROBLEM_BYTES, blob_bytes, live_bytes, row_bytes
from r3_openrlhf.method.settings import HistorySettings

# Bytes per token after compression: log-probs are noise but for their exponents, token ids below 2**18 are not.
# `python benchmarks/storage.py` prints 6.3 for both and the row's own fields.
LOGPROB_BYTES, TOKEN_BYTES = 3.9, 2.2
PROMPT_TOKENS = 200
ENOUGH = 0.95


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a store of given limits will hold of a run."""

    row_bytes: int
    rows_per_set: float  # of one problem with one verdict; at most the cap
    coverage: float  # share of problems and verdicts with something to recall
    arriving_share: float  # of max_bytes, what the steps between two moves of the rollback floor bring
    enough_bytes: int  # max_bytes that would hold one row of everything


def forecast(
    limits: HistorySettings,
    *,
    num_problems: int,
    problems_per_step: int,
    samples: int,
    mean_tokens: float,
    steps_to_floor: int,
) -> Forecast:
    """mean_tokens: of a response. steps_to_floor: how old the oldest checkpoint gets, in steps."""
    row = row_bytes(int(LOGPROB_BYTES * mean_tokens), int(TOKEN_BYTES * mean_tokens))
    stored = min(samples, 2 * limits.max_per_problem_and_verdict)
    arriving = steps_to_floor * problems_per_step * stored * row
    fixed = BASE_BYTES + num_problems * (PROBLEM_BYTES + blob_bytes(int(TOKEN_BYTES * PROMPT_TOKENS)))
    one_of_each = 2 * num_problems * row
    live = max(0, live_bytes(limits.max_bytes - fixed, arrived=arriving))
    return Forecast(
        row_bytes=row,
        rows_per_set=min(limits.max_per_problem_and_verdict, live / one_of_each),
        coverage=min(1.0, live / one_of_each),
        arriving_share=arriving / limits.max_bytes,
        enough_bytes=fixed + min(one_of_each + arriving + arriving // 4, 2 * one_of_each),
    )
