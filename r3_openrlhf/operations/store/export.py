"""Rows of the store as a Parquet or JSON Lines file that `datasets` loads."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history import recall
from r3_openrlhf.method.history.codec import Codec
from r3_openrlhf.method.history.connection import reading, snapshot
from r3_openrlhf.method.history.records import StoredRollout

FORMATS = ("parquet", "jsonl")
_CHUNK = 64  # rows in memory at a time


def export(path: Path, output: Path, *, format: str, progress: Callable[[int], None] = lambda done: None) -> int:
    """Writes every recallable rollout of the newest step at the time of the call; returns their
    number.

    The file appears when it is complete. In JSON Lines a log-prob that is not finite becomes null;
    Parquet keeps every bit. HistoryError: `output` exists or cannot be written."""
    if format not in FORMATS:
        raise HistoryError(f"cannot export as '{format}'; use one of {', '.join(FORMATS)}")
    if output.exists():
        raise HistoryError(f"{output} exists already; remove it or choose another --output")
    if not output.parent.is_dir():
        raise HistoryError(f"cannot write {output}: its directory does not exist")
    partial = output.with_name(output.name + ".partial")
    write = _write_parquet if format == "parquet" else _write_jsonl
    try:
        rows = write(_records(path, progress), partial)
        os.replace(partial, output)
        return rows
    except OSError as error:
        raise HistoryError(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _records(path: Path, progress: Callable[[int], None]) -> Iterator[list[dict[str, Any]]]:
    """Chunks of rows, each a transaction: a run that writes meanwhile waits for one at most; what
    it evicts or adds does not matter, for rows carry the steps that wrote and evicted them."""
    codec, after, done = Codec(), 0, 0
    with reading(path, "export") as connection:
        (newest,) = connection.execute("SELECT max(step) FROM steps").fetchone()
        while True:
            with snapshot(connection):
                chunk = recall.read_between(connection, codec, after=after, limit=_CHUNK)
            if not chunk:
                return
            after = chunk[-1].row
            kept = [row for row in chunk if row.step <= newest and (row.evicted_at is None or row.evicted_at > newest)]
            done += len(kept)
            progress(done)
            if kept:
                yield [_record(row) for row in kept]


# column -> (its type in Parquet, its value)
_COLUMNS: dict[str, tuple[str, Callable[[StoredRollout], Any]]] = {
    "uid": ("string", lambda row: row.rollout.uid),
    "context": ("string", lambda row: row.rollout.context.value),
    "verdict": ("string", lambda row: row.rollout.verdict.value),
    "reward": ("float64", lambda row: row.rollout.reward),
    "step": ("int64", lambda row: row.step),
    "epoch": ("int64", lambda row: row.rollout.epoch),
    "policy_step": ("int64", lambda row: row.rollout.policy_step),
    "num_tokens": ("int64", lambda row: row.rollout.num_tokens),
    "truncated": ("bool_", lambda row: row.rollout.truncated),
    "finish_reason": ("string", lambda row: row.rollout.finish_reason),
    "reason": ("string", lambda row: row.rollout.reason),
    "entropy_peak": ("float64", lambda row: row.rollout.entropy and row.rollout.entropy.peak),
    "entropy_global": ("float64", lambda row: row.rollout.entropy and row.rollout.entropy.global_),
    "entropy_source": ("string", lambda row: row.rollout.entropy and row.rollout.entropy.source),
    "copies": ("int64", lambda row: row.copies),
    "prompt_hash": ("string", lambda row: row.prompt_hash),
    "prompt_ids": ("list int32", lambda row: row.rollout.prompt_ids),
    "response_ids": ("list int32", lambda row: row.rollout.response_ids),
    "response_logprobs": ("list float32", lambda row: row.rollout.response_logprobs),
}


def _record(stored: StoredRollout) -> dict[str, Any]:
    return {name: value(stored) for name, (_, value) in _COLUMNS.items()}


def _write_parquet(chunks: Iterator[list[dict[str, Any]]], output: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def kind(words: str) -> Any:
        inner = getattr(pa, words.removeprefix("list "))()
        return pa.list_(inner) if words.startswith("list ") else inner

    schema = pa.schema([(name, kind(words)) for name, (words, _) in _COLUMNS.items()])
    rows = 0
    with pq.ParquetWriter(output, schema, compression="zstd") as writer:
        for chunk in chunks:
            writer.write_batch(pa.RecordBatch.from_pylist(chunk, schema=schema))
            rows += len(chunk)
    return rows


def _write_jsonl(chunks: Iterator[list[dict[str, Any]]], output: Path) -> int:
    rows = 0
    with output.open("w", encoding="utf-8") as stream:
        for chunk in chunks:
            for record in chunk:
                for name in ("prompt_ids", "response_ids"):
                    record[name] = record[name].tolist()
                logprobs = record["response_logprobs"].tolist()
                record["response_logprobs"] = [value if math.isfinite(value) else None for value in logprobs]
                stream.write(json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n")
                rows += 1
    return rows
