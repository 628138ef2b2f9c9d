"""The rollouts of a step as rows of its file in rollouts/ (columns: runs/columns.toml)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from r3_openrlhf.config.words import TokenValues
from r3_openrlhf.method.core.mixed_batch import MixedBatch, Row
from r3_openrlhf.method.history.codec import state_digest
from r3_openrlhf.method.types import EntropyStatistics, Rollout
from r3_openrlhf.runs.rollout_files import COLUMNS, TOKEN_COLUMNS

MAX_ANSWER_CHARS = 2000
_UNKNOWN = "\ufffd"  # what a decoder writes for a part of a character
MAX_CHARS = 2**16 - 1
# Tokens of characters that are tried together; the last has all others, however long
MAX_PARTS = 16
VALUES = ("token_entropy", "token_logprob", "token_policy_logprob", "token_teacher_logprob")


def records_of(
    batch: MixedBatch,
    *,
    step: int,
    prompts: Sequence[str] | None = None,
    recalled_prompts: Mapping[int, str] | None = None,
    entropies: Mapping[int, EntropyStatistics] | None = None,
    policy_logprobs: Mapping[int, np.ndarray] | None = None,
    teacher_logprobs: Mapping[int, np.ndarray] | None = None,
    token_values: TokenValues | str = TokenValues.NONE,
    token_chars: TokenPieces | None = None,
) -> list[dict[str, Any]]:
    """One dict per rollout of the step, ungraded and recalled ones included: group by group,
    recalled rows at the end of theirs.

    Args:
        prompts: of the rollouts that the batch was made of, in their order.
        recalled_prompts: row index -> a recalled row's own prompt; others have their group's.
        entropies: row index -> what was measured, for a ranking or for the file.
        policy_logprobs: row index -> log-probs of its tokens [T] under the current policy.
        teacher_logprobs: taught row's index -> those after its teacher's prompt.
        token_chars: counts the characters of the tokens of rows with any value per token.

    Raises:
        ValueError: a word for token_values that does not exist."""
    wanted = TokenValues.checked("token_values", token_values)
    rows = [batch.rows[index] for group in batch.groups for index in group.rows]
    placed = {row.source for row in rows}
    found: list[tuple[Row | None, int]] = [
        (row, batch.first_of(row).fresh_source if row.source is None else row.source)
        for row in rows
    ]
    # in no group
    found += [(None, index) for index in range(len(batch.rollouts)) if index not in placed]
    records = []
    for row, source in found:
        rollout = batch.rollouts[source] if row is None else row.rollout
        record = record_of(rollout, step=step, row=row)
        if prompts is not None:
            of_group = prompts[source]
            record["prompt"] = (
                of_group if row is None else (recalled_prompts or {}).get(row.index, of_group)
            )
        if row is not None:
            group = batch.groups[row.group]
            record |= {"group_replay": group.replay.value, "group_ranking": group.ranking.value}
            record |= _measured(row, (entropies or {}).get(row.index))
            record["token_policy_logprob"] = _float16((policy_logprobs or {}).get(row.index))
            record["token_teacher_logprob"] = _float16((teacher_logprobs or {}).get(row.index))
            fate = batch.lesson_fates.get(row.index)
            record["distill"] = None if fate is None else fate.value
        # of tools: no one sampled them, so no log-probs
        answers = rollout.given[bool(rollout.prefix_tokens) :]
        is_wanted = wanted is TokenValues.ALL or (
            wanted is TokenValues.USED and row is not None and row.recalled
        )
        if is_wanted and not answers and rollout.has_logprobs:
            record["token_logprob"] = _float16(rollout.response_logprobs)
        has_values = any(record[name] is not None for name in VALUES)
        if token_chars is not None and has_values and rollout.text:
            record["token_chars"] = token_chars.lengths(
                rollout.response_ids.tolist(), rollout.text
            )
        records.append(record)
    return records


def record_of(rollout: Rollout, *, step: int, row: Row | None) -> dict[str, Any]:
    """One row with every column, null where nothing is known yet. `row` is None for a rollout that
    is in no group."""
    entropy, bounds, cut, turn = (
        rollout.entropy,
        rollout.entropy_bounds,
        rollout.state,
        rollout.turn,
    )
    record: dict[str, Any] = dict.fromkeys(COLUMNS | TOKEN_COLUMNS) | {
        "step": step,
        "uid": rollout.uid,
        "context": rollout.context.value,
        "origin": rollout.origin or None,
        "verdict": rollout.verdict.value,
        "reason": rollout.reason,
        "outcome_reward": rollout.reward,
        "reward": rollout.reward,
        "ranked": False,
        "truncated": rollout.truncated,
        "num_tokens": rollout.num_tokens,
        "text": rollout.text,
        "answer": rollout.answer and rollout.answer[:MAX_ANSWER_CHARS],
        "extras": json.dumps(rollout.extras, ensure_ascii=False) if rollout.extras else None,
        "prefix_tokens": rollout.prefix_tokens,
        "prefix_state": _digest(rollout, rollout.prefix_tokens),
        "given": json.dumps(rollout.given) if rollout.given else None,
        "pieces": _pieces(rollout),
    }
    if row is not None:
        record |= {
            "group": row.group,
            "ranking_reward": row.ranking_reward,
            "reward": row.reward,
            "ranked": row.ranked,
            "advantage": row.advantage if row.trained else None,
            # sampling step; 0: imported
            "recalled_from": rollout.policy_step + (not rollout.origin)
            if row.recalled
            else None,
        }
    if entropy is not None:
        record |= _entropy(entropy)
    if bounds is not None:
        record |= {f"entropy_{name}": value for name, value in asdict(bounds).items()}
    if cut is not None:
        digest = _digest(rollout, cut.num_tokens)
        record |= {"cut_tokens": cut.num_tokens, "cut_value": cut.value, "cut_state": digest}
    if turn is not None:
        record |= {"trajectory": turn.trajectory, "turn": turn.index, "state": turn.state}
        record |= {
            "turn_reward": turn.reward,
            "step_return": turn.step_return,
            "valid": turn.valid,
        }
    return record


def _pieces(rollout: Rollout) -> str | None:
    """Write the runs of a paused response as JSON; steps count from 1, as in the other columns."""
    if not rollout.pieces:
        return None
    return json.dumps([(tokens, step + 1) for tokens, step in rollout.pieces])


def _entropy(entropy: EntropyStatistics) -> dict[str, Any]:
    return {
        "entropy_peak": entropy.peak,
        "entropy_global": entropy.global_,
        "entropy_source": entropy.source,
    }


def _digest(rollout: Rollout, num_tokens: int) -> str | None:
    """Digest of a response's first tokens, as in the history store; None for no tokens."""
    return state_digest(rollout.response_ids[:num_tokens]).hex() if num_tokens else None


def _measured(row: Row, statistics: EntropyStatistics | None) -> dict[str, Any]:
    """Measure a row under this step's policy. Peak and global entropy stay those that ranked it, or
    those of the step that sampled it."""
    if statistics is None:
        return {}
    # of given tokens nothing was measured, so there is not one value per token
    found: dict[str, Any] = {"token_entropy": None if row.rollout.given else statistics.tokens}
    if row.rollout.entropy is None and not row.recalled:
        found |= _entropy(statistics)
    return found


def _float16(values: np.ndarray | None) -> np.ndarray | None:
    """Log-probs reach -1000 for an all but impossible token; float16 has room for 65,504."""
    return None if values is None else np.clip(values, -60_000, 0).astype(np.float16)


class TokenPieces:
    """Split texts at the tokens of one tokenizer. decode: token ids -> text.

    A token is decoded alone, once; tokens that are parts of one character are decoded together, and
    the last of them has it."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._piece = functools.cache(lambda token: decode([token]))

    def lengths(self, ids: Sequence[int], text: str) -> np.ndarray | None:
        """Return the characters of each token, uint16 [T], together len(text). None where the pieces
        do not make up the text: a tokenizer that drops or joins characters between tokens."""
        pieces = self.of(ids)
        lengths = [len(piece) for piece in pieces]
        if "".join(pieces) != text or max(lengths, default=0) > MAX_CHARS:
            return None
        return np.array(lengths, dtype=np.uint16)

    def of(self, ids: Sequence[int]) -> list[str]:
        """Return a text per token."""
        pieces: list[str] = []
        broken: list[int] = []  # tokens that are parts of characters, so far
        for token in ids:
            piece = self._piece(token)
            if broken and _UNKNOWN not in piece:  # the character never became whole
                pieces[-1] = self._decode(broken)
                broken.clear()
            pieces.append(piece)
            if _UNKNOWN in piece:
                broken.append(token)
                whole = self._decode(broken) if len(broken) <= MAX_PARTS else _UNKNOWN
                pieces[-1] = "" if _UNKNOWN in whole else whole
                if _UNKNOWN not in whole:
                    broken.clear()
        if broken:
            pieces[-1] = self._decode(broken)
        return pieces
