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
    """Writes every recallable rollout of the newest step at the time of the call; returns their number.

    The file appears under its name when it is complete. In JSON Lines a log-prob that is not finite becomes null;
    Parquet keeps every bit. Raises HistoryError when `output` exists or cannot be written.
    """
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
    """Chunks of rows. Each chunk is its own transaction, so a run that writes meanwhile waits for one at most; what
    it evicts or adds meanwhile does not matter, because rows carry the steps that wrote and evicted them."""
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


def _record(stored: StoredRollout) -> dict[str, Any]:
    rollout, entropy = stored.rollout, stored.rollout.entropy
    return {
        "uid": rollout.uid,
        "context": rollout.context.value,
        "verdict": rollout.verdict.value,
        "reward": rollout.reward,
        "step": stored.step,
        "epoch": rollout.epoch,
        "policy_step": rollout.policy_step,
        "num_tokens": rollout.num_tokens,
        "truncated": rollout.truncated,
        "finish_reason": rollout.finish_reason,
        "reason": rollout.reason,
        "entropy_peak": entropy.peak if entropy else None,
        "entropy_global": entropy.global_ if entropy else None,
        "entropy_source": entropy.source if entropy else None,
        "copies": stored.copies,
        "prompt_hash": stored.prompt_hash,
        "prompt_ids": rollout.prompt_ids,
        "response_ids": rollout.response_ids,
        "response_logprobs": rollout.response_logprobs,
    }


def _write_parquet(chunks: Iterator[list[dict[str, Any]]], output: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("uid", "context", "verdict")),
            ("reward", pa.float64()),
            *((name, pa.int64()) for name in ("step", "epoch", "policy_step", "num_tokens")),
            ("truncated", pa.bool_()),
            *((name, pa.string()) for name in ("finish_reason", "reason")),
            *((name, pa.float64()) for name in ("entropy_peak", "entropy_global")),
            ("entropy_source", pa.string()),
            ("copies", pa.int64()),
            ("prompt_hash", pa.string()),
            *((name, pa.list_(pa.int32())) for name in ("prompt_ids", "response_ids")),
            ("response_logprobs", pa.list_(pa.float32())),
        ]
    )
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
