"""What is stored about each token of a group's responses: log-probs in the history store, matched to the rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history.inspection import sampled_in
from r3_openrlhf.history.records import StoredRollout
from r3_openrlhf.types import Rollout, Verdict
from r3_openrlhf.viewer.run_reader import RunReader
from r3_openrlhf.viewer.token_texts import TokenTexts

Row = dict[str, Any]
SCALE = 10_000  # values go into a page as whole numbers of 1e-4


@dataclass(slots=True)
class TokenValues:
    """One response, token by token. Arrays have one value per token; None: not stored."""

    ids: np.ndarray  # int32 [T]
    prompt_ids: np.ndarray  # int32 [P]
    logprobs: np.ndarray | None  # float32 [T], of the sampled token under the sampling policy, natural log
    entropies: np.ndarray | None = None  # nats [T]
    peak: list[int] = field(default_factory=list)  # the tokens whose entropies make the peak entropy


def token_values(
    run: RunReader, rows: Sequence[Row], *, step: int, texts: TokenTexts | None
) -> tuple[list[TokenValues | None], str | None]:
    """One per row of a group, and a sentence where some are missing. A recalled row is looked up in the step it came from."""
    if not run.directory.history.is_file():
        return [None] * len(rows), "This run directory has no history.sqlite, so there are no values of its tokens."
    stored: dict[int, list[StoredRollout]] = {}
    found: list[TokenValues | None] = []
    for row in rows:
        sampled = row["recalled_from"] if row["recalled_from"] is not None else step
        if sampled not in stored:
            try:
                stored[sampled] = sampled_in(run.directory.history, row["uid"], step=sampled)
            except HistoryError as error:
                return [None] * len(rows), str(error)
        match = _match(row, stored[sampled], texts)
        found.append(None if match is None else _values_of(match.rollout))
    return found, _why_missing(rows, found, texts)


def _values_of(rollout: Rollout) -> TokenValues:
    return TokenValues(ids=rollout.response_ids, prompt_ids=rollout.prompt_ids, logprobs=rollout.response_logprobs)


def _match(row: Row, stored: Sequence[StoredRollout], texts: TokenTexts | None) -> StoredRollout | None:
    """The stored rollout that a row is. Rows have no number in common, so everything that both know must agree; where that
    leaves several, their texts decide."""
    alike = [
        one
        for one in stored
        if one.rollout.num_tokens == row["num_tokens"]
        and one.rollout.verdict == row["verdict"]
        and one.rollout.truncated == row["truncated"]
        and one.rollout.context == row.get("sampled_context", row["context"])
        and one.rollout.reward == row["outcome_reward"]
    ]
    if not alike and row["recalled_from"] is not None:  # it may come from the problem's other context
        alike = [
            one
            for one in stored
            if one.rollout.num_tokens == row["num_tokens"] and one.rollout.verdict == row["verdict"]
        ]
    if len(alike) > 1 and texts is not None and row["text"] is not None:
        same = [one for one in alike if texts.text(one.rollout.response_ids.tolist()) == row["text"]]
        return same[0] if same else None
    return alike[0] if len(alike) == 1 else None


def _why_missing(rows: Sequence[Row], found: Sequence[TokenValues | None], texts: TokenTexts | None) -> str | None:
    missing = [row for row, values in zip(rows, found, strict=True) if values is None]
    if not missing:
        return None
    if all(row["verdict"] == Verdict.UNGRADED for row in missing):
        return "The history keeps no ungraded rollouts, so their tokens have no values."
    several = (
        "several responses of the same length, and without their tokenizer which is which cannot be told; "
        if texts is None
        else ""
    )
    return (
        f"The values of {len(missing)} of {len(rows)} responses are not there: {several}they have left the history store, or "
        "never were in it."
    )


def as_numbers(values: np.ndarray) -> list[int]:
    """Whole numbers of 1e-4, which make a page a third of the size."""
    return np.rint(np.asarray(values, dtype=np.float64) * SCALE).astype(np.int64).tolist()
