"""Other ways to keep the same history, each doing as much of the work as it can.

All take the same calls: commit a step durably, recall k rollouts per problem by verdict and age, roll back. None of
them keeps counters beyond eviction, merges duplicates, brings evicted rows back, or notices a second writer.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
import struct
from collections import deque
from pathlib import Path

from r3_openrlhf.method.history.codec import Codec
from r3_openrlhf.method.history.records import RecallRequest
from r3_openrlhf.method.types import Rollout, Verdict

CAP = 32
_VERDICTS = list(Verdict)


class Lmdb:
    """LMDB, one environment: key (problem, verdict, step, serial), value the rollout's arrays packed with our codec."""

    name = "lmdb"

    def __init__(self, path: Path) -> None:
        import lmdb

        self.path = path
        self._environment = lmdb.open(str(path), map_size=1 << 40, max_dbs=3, subdir=False)
        self._rows = self._environment.open_db(b"rows")
        self._steps = self._environment.open_db(b"steps")
        self._codec = Codec()

    def commit(self, step: int, rollouts: list[Rollout]) -> None:
        keys = []
        with self._environment.begin(write=True) as transaction:
            for serial, rollout in enumerate(rollouts):
                prefix = self._prefix(rollout.uid, rollout.verdict)
                meta = (rollout.policy_step, rollout.reward, rollout.truncated, rollout.num_tokens)
                value = pickle.dumps(
                    (meta, self._codec.pack(rollout.response_ids), self._codec.pack(rollout.response_logprobs))
                )
                keys.append(prefix + struct.pack(">II", step, serial))
                transaction.put(keys[-1], value, db=self._rows)
            for prefix in {key[:-8] for key in keys}:
                kept = self._keys(transaction, prefix)
                for key in kept[: max(0, len(kept) - CAP)]:
                    transaction.delete(key, db=self._rows)
            transaction.put(struct.pack(">I", step), pickle.dumps(keys), db=self._steps)

    def recall(self, requests: list[RecallRequest]) -> list[list[tuple]]:
        rng = random.Random(requests[0].step)
        answers = []
        with self._environment.begin() as transaction:
            for request in requests:
                oldest = request.step - request.max_policy_lag
                keys = self._keys(transaction, self._prefix(request.uid, request.verdict))
                fresh = [key for key in keys if struct.unpack(">I", key[-8:-4])[0] >= oldest]
                answers.append([self._read(transaction, key) for key in rng.sample(fresh, min(request.k, len(fresh)))])
        return answers

    def roll_back(self, step: int) -> None:
        with self._environment.begin(write=True) as transaction:
            cursor = transaction.cursor(db=self._steps)
            if cursor.set_range(struct.pack(">I", step + 1)):
                for key, packed in list(cursor):
                    for row in pickle.loads(packed):
                        transaction.delete(row, db=self._rows)
                    transaction.delete(key, db=self._steps)

    def close(self) -> None:
        self._environment.close()

    def _prefix(self, uid: str, verdict: Verdict) -> bytes:
        return uid.encode() + b"\0" + bytes([_VERDICTS.index(verdict)])

    def _keys(self, transaction, prefix: bytes) -> list[bytes]:
        cursor = transaction.cursor(db=self._rows)
        if not cursor.set_range(prefix):
            return []
        return list(itertools.takewhile(lambda key: key.startswith(prefix), cursor.iternext(values=False)))

    def _read(self, transaction, key: bytes) -> tuple:
        import numpy as np

        meta, ids, logprobs = pickle.loads(transaction.get(key, db=self._rows))
        return (
            meta,
            self._codec.unpack(ids, np.int32, length=meta[3]),
            self._codec.unpack(logprobs, np.float32, length=meta[3]),
        )


class PickledDeques:
    """What public replay code does: a dict of deques in memory, pickled whole to be durable."""

    name = "pickled deques"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[tuple[str, Verdict], deque] = {}
        if path.exists():
            with path.open("rb") as stream:
                self._rows = pickle.load(stream)

    def commit(self, step: int, rollouts: list[Rollout], save: bool = True) -> None:
        for rollout in rollouts:
            self._rows.setdefault((rollout.uid, rollout.verdict), deque(maxlen=CAP)).append((step, rollout))
        if save:
            self.save()

    def save(self) -> None:
        partial = self.path.with_name(self.path.name + ".partial")
        with partial.open("wb") as stream:
            pickle.dump(self._rows, stream, protocol=pickle.HIGHEST_PROTOCOL)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self.path)

    def recall(self, requests: list[RecallRequest]) -> list[list[Rollout]]:
        rng = random.Random(requests[0].step)
        answers = []
        for request in requests:
            oldest = request.step - request.max_policy_lag
            rows = self._rows.get((request.uid, request.verdict), ())
            fresh = [rollout for _, rollout in rows if rollout.policy_step >= oldest]
            answers.append(rng.sample(fresh, min(request.k, len(fresh))))
        return answers

    def roll_back(self, step: int) -> None:
        for key, rows in self._rows.items():
            self._rows[key] = deque((row for row in rows if row[0] <= step), maxlen=CAP)
        self.save()

    def close(self) -> None:
        self._rows.clear()


class TorchRLMemmap:
    """TorchRL's LazyMemmapStorage: fixed-size rows [width] on disk; the index by problem is a dict beside it."""

    name = "torchrl memmap"

    def __init__(self, path: Path, *, capacity: int, width: int) -> None:
        from torchrl.data import LazyMemmapStorage

        self.path = path
        self._width = width
        self._storage = LazyMemmapStorage(capacity, scratch_dir=str(path), existsok=True)
        self._index: dict[tuple[str, Verdict], deque] = {}
        self._rows = 0

    def commit(self, step: int, rollouts: list[Rollout]) -> None:
        import torch
        from tensordict import TensorDict

        chunk = 256
        for start in range(0, len(rollouts), chunk):
            part = rollouts[start : start + chunk]
            tokens = torch.zeros(len(part), self._width, dtype=torch.int32)
            logprobs = torch.zeros(len(part), self._width)
            for place, rollout in enumerate(part):
                tokens[place, : rollout.num_tokens] = torch.from_numpy(rollout.response_ids)
                logprobs[place, : rollout.num_tokens] = torch.from_numpy(rollout.response_logprobs)
                rows = self._index.setdefault((rollout.uid, rollout.verdict), deque(maxlen=CAP))
                rows.append((step, self._rows + place, rollout.num_tokens))
            self._storage.set(
                range(self._rows, self._rows + len(part)),
                TensorDict({"ids": tokens, "logprobs": logprobs}, batch_size=[len(part)]),
            )
            self._rows += len(part)
        os.sync()  # its memory maps offer no flush of their own

    def recall(self, requests: list[RecallRequest]) -> list[list[tuple]]:
        rng = random.Random(requests[0].step)
        answers = []
        for request in requests:
            oldest = request.step - request.max_policy_lag
            rows = self._index.get((request.uid, request.verdict), ())
            fresh = [row for row in rows if row[0] >= oldest]
            answer = []
            for _, place, length in rng.sample(fresh, min(request.k, len(fresh))):
                row = self._storage.get(place)
                answer.append((row["ids"][:length].clone(), row["logprobs"][:length].clone()))
            answers.append(answer)
        return answers

    def roll_back(self, step: int) -> None:
        for key, rows in self._index.items():
            self._index[key] = deque((row for row in rows if row[0] <= step), maxlen=CAP)

    def close(self) -> None:
        self._index.clear()
