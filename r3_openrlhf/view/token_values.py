"""What is stored about each token of a group's responses: in the step's file, and in the history store.

`logging.token_values` decides which rows of the file have entropies, and the log-probs of the policy that sampled them and of the
step's policy. The history store has the sampling log-probs of every rollout that it still holds; rows and rollouts are matched by
what both know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history.records import StoredRollout
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.runs.history_numbers import sampled_in
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.token_texts import MISSING, TokenTexts

Row = dict[str, Any]
SCALE = 10_000  # values go into a page as whole numbers of 1e-4


@dataclass(slots=True, kw_only=True)
class TokenValues:
    """One response, token by token. Arrays have one value per token [T]; None: not stored."""

    pieces: list[str]  # together they are the text
    ids: np.ndarray | None = None  # int32
    logprobs: np.ndarray | None = None  # of the sampled token under the policy that sampled it, natural log
    policy_logprobs: np.ndarray | None = None  # under the policy of this step, before its update
    entropies: np.ndarray | None = None  # nats, under the policy of this step


def token_values(
    run: RunReader, rows: Sequence[Row], columns: Sequence[dict[str, Any]], *, step: int, texts: TokenTexts | None
) -> tuple[list[TokenValues | None], str | None]:
    """One per row of a group, and a sentence where some are missing. `columns`: what the step's file has of each row.

    A recalled row is looked up in the history at the step that sampled it.
    """
    history = stored_rollouts(run, rows, step=step, texts=texts)
    found = [
        _values(row, column, rollout, texts) for row, column, rollout in zip(rows, columns, history.found, strict=True)
    ]
    if all(values is not None for values in found):
        return found, None
    ungraded = all(
        row["verdict"] == Verdict.UNGRADED for row, values in zip(rows, found, strict=True) if values is None
    )
    if ungraded:
        return found, "No values are kept of ungraded rollouts."
    if texts is None and any(rollout is not None for rollout in history.found):
        return found, MISSING
    return found, f"The values of some responses are not there: {history.why or LOST}."


LOST = "they have left the history store, or never were in it"


@dataclass(frozen=True, slots=True)
class Stored:
    """The rows of the history store that rows of a step are."""

    found: list[StoredRollout | None]
    why: str | None = None  # none was looked for


def stored_rollouts(run: RunReader, rows: Sequence[Row], *, step: int, texts: TokenTexts | None) -> Stored:
    """One per row; None: it is not there, or which one it is cannot be told."""
    if not run.directory.history.is_file():
        return Stored([None] * len(rows), "this run directory has no history.sqlite")
    by_step: dict[int, list[StoredRollout]] = {}
    try:
        for sampled in {_sampled_in(row, step) for row in rows}:
            by_step[sampled] = sampled_in(run.directory.history, rows[0]["uid"], step=sampled)
    except HistoryError as error:
        return Stored([None] * len(rows), str(error))
    decoded: dict[int, str] = {}  # a stored rollout is compared with several rows

    def text_of(one: StoredRollout) -> str:
        if one.row not in decoded:
            assert texts is not None
            decoded[one.row] = texts.text(one.rollout.response_ids.tolist())
        return decoded[one.row]

    compared = text_of if texts is not None else None
    return Stored([_match(row, by_step[_sampled_in(row, step)], compared) for row in rows])


def _sampled_in(row: Row, step: int) -> int:
    return step if row["recalled_from"] is None else row["recalled_from"]


def _match(
    row: Row, stored: Sequence[StoredRollout], text_of: Callable[[StoredRollout], str] | None
) -> StoredRollout | None:
    """Rows have no number in common with the store, so everything that both know must agree, their texts too: responses that were
    cut are of one length. A recalled row may have been sampled from the other prompt of its problem."""
    contexts = [Context(row["context"])] if row["recalled_from"] is None else list(Context)
    alike = [
        one
        for one in stored
        if one.rollout.num_tokens == row["num_tokens"]
        and one.rollout.verdict == row["verdict"]
        and one.rollout.truncated == row["truncated"]
        and one.rollout.context in contexts
        and one.rollout.reward == row["outcome_reward"]
    ]
    if text_of is not None and row["text"]:
        wanted = row["text"].split()  # tokenizers differ in spaces
        return next((one for one in alike if text_of(one).split() == wanted), None)
    return alike[0] if len(alike) == 1 else None


def _values(
    row: Row, column: dict[str, Any], stored: StoredRollout | None, texts: TokenTexts | None
) -> TokenValues | None:
    ids = None if stored is None else stored.rollout.response_ids
    if ids is not None and texts is not None:
        pieces = texts.pieces(ids.tolist())
    elif row["text"] and column.get("token_chars") is not None:
        ends = accumulate(column["token_chars"].tolist(), initial=0)
        pieces = [row["text"][begin:end] for begin, end in pairwise(ends)]
    else:
        return None
    return TokenValues(
        pieces=pieces,
        ids=ids,
        logprobs=column.get("token_logprob") if stored is None else stored.rollout.response_logprobs,
        policy_logprobs=column.get("token_policy_logprob"),
        entropies=column.get("token_entropy"),
    )


def peak_tokens(entropies: np.ndarray, *, peak_fraction: float) -> list[int]:
    """The max(1, floor(p * L)) tokens whose entropies make the peak entropy (METHOD section 6), in the order of the text."""
    count = max(1, int(peak_fraction * len(entropies)))
    return sorted(np.argsort(-np.asarray(entropies, dtype=np.float64), kind="stable")[:count].tolist())


def as_numbers(values: np.ndarray) -> list[int]:
    """Whole numbers of 1e-4, which make a page a third of the size."""
    return np.rint(np.asarray(values, dtype=np.float64) * SCALE).astype(np.int64).tolist()
