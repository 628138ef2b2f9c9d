"""The tokens of a response: their texts, and what is stored about each of them.

Texts come from a tokenizer.json, read with `tokenizers` alone; no model is loaded. Values come from
the step's file (`logging.token_values` decides which rows have them) and from the history store,
which has the sampling log-probs of every rollout that it still holds; rows and rollouts are matched
by what both know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from r3_openrlhf.method.errors import ConfigError, HistoryError
from r3_openrlhf.method.history.numbers import sampled_in
from r3_openrlhf.method.history.records import StoredRollout
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.runs.models.locate import locate_model
from r3_openrlhf.runs.rollout_records import TokenPieces
from r3_openrlhf.runs.step_groups import Row
from r3_openrlhf.view.run_reader import RunReader, stamp_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
MISSING = (
    "There is no tokenizer for this run on this machine, so its tokens cannot be shown as text: copy the tokenizer.json of "
    "its model into the run's final_model/."
)
SCALE = 10_000  # values go into a page as whole numbers of 1e-4


def find_tokenizer(run: RunReader) -> Path | None:
    """Find the run's tokenizer.json: of final_model, its newest copy, or a local model.path."""
    directory = run.directory
    copies = sorted(
        directory.checkpoints.glob(f"global_step*_hf/{FILE}"),
        key=lambda path: path.stat().st_mtime,
    )
    candidates = [directory.final_model / FILE, *reversed(copies)]
    if run.config is not None:
        from huggingface_hub import try_to_load_from_cache

        with suppress(ConfigError):  # a directory of the machine that it was trained on
            located = locate_model(run.config.model.path)
            is_directory = Path(located).is_absolute()
            cached = None if is_directory else try_to_load_from_cache(located, FILE)
            candidates += [
                Path(located) / FILE,
                *([Path(cached)] if isinstance(cached, str) else []),
            ]
    return next((path for path in candidates if path.is_file()), None)


def texts_of(run: RunReader) -> tuple[TokenTexts | None, str | None]:
    """Return the run's tokenizer, or why there is none."""
    path = find_tokenizer(run)
    if path is None:
        return None, MISSING

    texts, fault = run.told("tokenizer", (path, stamp_of(path)), lambda: TokenTexts(path))
    return texts, fault and f"Tokens cannot be shown as text: {fault}."


class TokenTexts:
    """Decode with one tokenizer. pieces: ids -> a text per token, special tokens included.

    Raises ConfigError for a file that is no tokenizer."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self.tokenizer: Tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(
                f"{path} is no tokenizer: {' '.join(str(error).split())[:200]}"
            ) from error
        # some decoders drop a first space
        before = self.tokenizer.encode("a", add_special_tokens=False).ids
        start = len(self.whole_text(before))
        self.pieces = TokenPieces(lambda ids: self.whole_text([*before, *ids])[start:]).of

    def text(self, ids: Sequence[int]) -> str:
        """Decode as the run decoded its responses: without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def whole_text(self, ids: Sequence[int]) -> str:
        """Decode with special tokens: the prompt as the model saw it."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)


@dataclass(slots=True, kw_only=True)
class TokenValues:
    """One response, token by token. Arrays have one value per token [T]; None: not stored."""

    pieces: list[str]  # together they are the text
    ids: np.ndarray | None = None  # int32
    logprobs: np.ndarray | None = None  # of the sampled token, sampling policy, natural log
    # under the policy of this step, before its update
    policy_logprobs: np.ndarray | None = None
    entropies: np.ndarray | None = None  # nats, under the policy of this step
    # of a taught row under the same policy, after its teacher's prompt (method/core/distill.py)
    teacher_logprobs: np.ndarray | None = None

    @property
    def teacher_gap(self) -> np.ndarray | None:
        """Return teacher less policy, nats [T]."""
        if self.teacher_logprobs is None or self.policy_logprobs is None:
            return None
        policy = self.policy_logprobs.astype(np.float32)
        return self.teacher_logprobs.astype(np.float32) - policy

    def as_json(self, place: int, peak_fraction: float | None) -> dict[str, Any]:
        """Return the values for a page, in 1 / SCALE, and the tokens that make the peak entropy."""
        has_peak = self.entropies is not None and peak_fraction is not None
        peak = peak_tokens(self.entropies, peak_fraction=peak_fraction) if has_peak else []  # type: ignore[arg-type]
        ratio = None
        if self.policy_logprobs is not None and self.logprobs is not None:
            ratio = self.policy_logprobs.astype(np.float32) - self.logprobs.astype(np.float32)
        values = {
            "logprob": self.logprobs,
            "entropy": self.entropies,
            "ratio": ratio,
            "teacher": self.teacher_gap,
        }
        ids = {} if self.ids is None else {"ids": self.ids.tolist()}
        numbers = {
            name: np.rint(np.asarray(value, dtype=np.float64) * SCALE).astype(np.int64).tolist()
            for name, value in values.items()
            if value is not None
        }
        return {"place": place, "peak": peak, "pieces": self.pieces} | ids | numbers


def token_values(
    run: RunReader,
    rows: Sequence[Row],
    columns: Sequence[dict[str, Any]],
    *,
    step: int,
    texts: TokenTexts | None,
) -> tuple[list[TokenValues | None], str | None]:
    """Return the values of each row of a group, and a sentence if some are missing. `columns`: what the step's
    file has of each row.

    A recalled row is looked up in the history at the step that sampled it."""
    stored, why = stored_rollouts(run, rows, step=step, texts=texts)
    known = [_values(*parts, texts) for parts in zip(rows, columns, stored, strict=True)]
    lacking = [
        row["verdict"] for row, values in zip(rows, known, strict=True) if values is None
    ]
    if not lacking:
        return known, None
    if set(lacking) == {Verdict.UNGRADED}:
        return known, "No values are kept of ungraded rollouts."
    if texts is None and any(rollout is not None for rollout in stored):
        return known, MISSING
    return (
        known,
        f"The values of some responses are not there: {why or 'they have left the history store, or never were in it'}.",
    )


def stored_rollouts(
    run: RunReader, rows: Sequence[Row], *, step: int, texts: TokenTexts | None
) -> tuple[list[StoredRollout | None], str | None]:
    """Find the row of the history store that each row of a step is, and why none was looked for.

    None: it is not there, or which one it is cannot be told.
    """
    if not run.directory.history.is_file():
        return [None] * len(rows), "this run directory has no history.sqlite"
    by_step: dict[int, list[StoredRollout]] = {}
    try:
        for sampled in {_sampled_in(row, step) for row in rows}:
            by_step[sampled] = sampled_in(run.directory.history, rows[0]["uid"], step=sampled)
    except HistoryError as error:
        return [None] * len(rows), str(error)
    decoded: dict[int, str] = {}  # a stored rollout is compared with several rows

    def text_of(candidate: StoredRollout) -> str:
        if candidate.row not in decoded:
            assert texts is not None
            decoded[candidate.row] = texts.text(candidate.rollout.response_ids.tolist())
        return decoded[candidate.row]

    compared = text_of if texts is not None else None
    return [_match(row, by_step[_sampled_in(row, step)], compared) for row in rows], None


def _sampled_in(row: Row, step: int) -> int:
    return step if row["recalled_from"] is None else row["recalled_from"]


def _match(
    row: Row, stored: Sequence[StoredRollout], text_of: Callable[[StoredRollout], str] | None
) -> StoredRollout | None:
    """Match by what both know, texts too, for rows and store share no number: cut responses
    are of one length. A recalled row may come from the problem's other prompt."""
    contexts = [Context(row["context"])] if row["recalled_from"] is None else list(Context)
    alike = [
        candidate
        for candidate in stored
        if candidate.rollout.num_tokens == row["num_tokens"]
        and candidate.rollout.verdict == row["verdict"]
        and candidate.rollout.truncated == row["truncated"]
        and candidate.rollout.context in contexts
        and candidate.rollout.reward == row["outcome_reward"]
    ]
    if text_of is not None and row["text"]:
        wanted = row["text"].split()  # tokenizers differ in spaces
        return next(
            (candidate for candidate in alike if text_of(candidate).split() == wanted), None
        )
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
        logprobs=column.get("token_logprob")
        if stored is None
        else stored.rollout.response_logprobs,
        policy_logprobs=column.get("token_policy_logprob"),
        entropies=column.get("token_entropy"),
        teacher_logprobs=column.get("token_teacher_logprob"),
    )


def peak_tokens(entropies: np.ndarray, *, peak_fraction: float) -> list[int]:
    """Find the max(1, floor(p * L)) tokens of the peak entropy (METHOD section 6), in text order."""
    count = max(1, int(peak_fraction * len(entropies)))
    return sorted(
        np.argsort(-np.asarray(entropies, dtype=np.float64), kind="stable")[:count].tolist()
    )
