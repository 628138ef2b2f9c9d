"""Choosing stored rollouts and reading them back.

The choice is core.replay's, among candidates known by a hash of their content, with a generator
seeded by hash(seed, step, uid, verdict): the same on every machine, for every order in which the
rows arrived."""

import json
import random
import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from r3_openrlhf.method.core import replay
from r3_openrlhf.method.core.groups import RecallFate
from r3_openrlhf.method.errors import HistoryError, R3Error
from r3_openrlhf.method.history.codec import Codec, digest
from r3_openrlhf.method.history.drafts import CONTEXT_CODES, CONTEXTS, VERDICT_CODES, VERDICTS
from r3_openrlhf.method.history.experts import read_experts
from r3_openrlhf.method.history.records import RecallRequest, StoredRollout
from r3_openrlhf.method.history.trajectories import read_turns
from r3_openrlhf.method.types import EntropyStatistics, Rollout

_AGE = "iif(r.context = 3, 9007199254740992, r.policy_step)"  # imported rows have no age limit
# in the store as in a Rollout
_SAME = (
    "reward",
    "finish_reason",
    "reason",
    "epoch",
    "policy_step",
    "origin",
)
_ROW = (
    f"SELECT {', '.join(f'r.{name}' for name in _SAME)}, "
    "r.id, r.step, r.copies, r.evicted_at, p.uid, r.context, r.verdict, r.truncated, r.entropy_peak, r.entropy_global, "
    "r.entropy_source, r.num_tokens, a.ids, l.data, l.given, l.pieces, q.id, q.num_tokens, q.ids "
    "FROM rollouts r JOIN problems p ON p.id = r.problem JOIN responses a ON a.id = r.response "
    "JOIN prompts q ON q.id = r.prompt JOIN logprobs l ON l.rollout = r.id WHERE r.id = ?"
)


def choose(
    connection: sqlite3.Connection, codec: Codec, request: RecallRequest, *, seed: int
) -> list[int]:
    """Ids of the rows that answer a request, at most k, each with another response.

    Of rows with one response (and, in an environment, one way through its turns), from several
    prompts or steps, the candidate is the newest from the plain prompt, else the newest."""
    of_request, values = _matching(request)
    # however far the lag reaches
    oldest = max(0, int(request.step) - int(request.max_policy_lag))
    rows = connection.execute(
        "SELECT r.response, t.digest, l.data, l.given, r.id, r.policy_step, r.reward, r.num_tokens, r.content, "
        "r.entropy_global, r.context = 3 FROM rollouts r "
        "JOIN logprobs l ON l.rollout = r.id LEFT JOIN trajectories t ON t.rollout = r.id "
        f"WHERE {of_request} AND r.evicted_at IS NULL AND {_AGE} >= ? "
        "ORDER BY r.context DESC, r.policy_step, r.content",  # the last of equal ones stays
        (*values, oldest),
    )
    has_places = request.imported_k is not None
    newest = {
        (response, turns, has_places and is_imported): (is_imported, *row)
        for response, turns, *row, is_imported in rows
    }
    own: list[replay.Candidate] = []
    imported: list[replay.Candidate] = []
    for row in newest.values():
        is_imported, data, given, row_id, policy_step, reward, num_tokens, key, entropy = row
        candidate = replay.Candidate(
            row=row_id,
            policy_step=policy_step,
            reward=reward,
            num_tokens=num_tokens,
            key=key,
            entropy=entropy,
            logprob=_mean_logprob(codec, data, given, length=num_tokens),
        )
        part = imported if has_places and is_imported else own
        part.append(candidate)
    imported_k = request.imported_k or 0
    choice = digest(
        str(seed).encode(),
        str(int(request.step)).encode(),
        request.uid.encode(),
        request.verdict.value.encode(),
    )
    rng = random.Random(int.from_bytes(choice, "big"))
    try:
        chosen: list[replay.Candidate] = []
        for part, places in ((imported, imported_k), (own, request.k - imported_k)):
            if places > 0:
                chosen += replay.choose(part, k=places, order=request.order, rng=rng)
    except R3Error:
        raise
    except Exception as error:  # of an order that a user has written
        raise HistoryError(
            f"replay.order {request.order} failed on {len(newest)} candidates of problem '{request.uid}': "
            f"{type(error).__name__}: {error}"
        ) from error
    return [candidate.row for candidate in chosen]


def _mean_logprob(
    codec: Codec, data: bytes | None, given: str | None, *, length: int
) -> float | None:
    """Compute the mean over the sampled tokens; None where no log-probs are known."""
    if data is None:
        return None
    sampled_T = np.ones(length, bool)
    for begin, end in json.loads(given) if given else ():
        sampled_T[begin:end] = False
    return float(
        codec.unpack(data, np.float32, length=length)[sampled_T].mean(dtype=np.float64)
    )


def _matching(request: RecallRequest) -> tuple[str, tuple[Any, ...]]:
    """Return the rows of a request, as a condition with its values."""
    codes = sorted(CONTEXT_CODES[context] for context in request.contexts)
    marks = ", ".join("?" * len(codes))
    condition = f"problem = (SELECT id FROM problems WHERE uid = ?) AND verdict = ? AND context IN ({marks})"
    return condition, (request.uid, VERDICT_CODES[request.verdict], *codes)


def absence(connection: sqlite3.Connection, request: RecallRequest) -> RecallFate | None:
    """Say why no row answers a request, for any k; None: some row does."""
    of_request, values = _matching(request)
    (newest,) = connection.execute(
        f"SELECT max({_AGE}) FROM rollouts r WHERE {of_request} AND evicted_at IS NULL", values
    ).fetchone()
    if newest is not None:
        return (
            RecallFate.TOO_OLD
            if newest < int(request.step) - int(request.max_policy_lag)
            else None
        )
    (sampled,) = connection.execute(
        f"SELECT sum(count) FROM counters WHERE {of_request}", values
    ).fetchone()
    return RecallFate.EVICTED if sampled else RecallFate.NEVER_SAMPLED


def read(
    connection: sqlite3.Connection, codec: Codec, rows: Sequence[int]
) -> list[StoredRollout]:
    """Read the rows with these ids, in this order; ids that are gone are left out."""
    prompts: dict[int, np.ndarray] = {}  # rows of a group share one array
    found = (connection.execute(_ROW, (row,)).fetchone() for row in rows)
    return [
        _stored(connection, codec, values, prompts) for values in found if values is not None
    ]


def _stored(
    connection: sqlite3.Connection,
    codec: Codec,
    found: tuple[Any, ...],
    prompts: dict[int, np.ndarray],
) -> StoredRollout:
    row, step, copies, evicted_at, uid, context, verdict, truncated, peak, global_ = found[
        len(_SAME) :
    ][:10]
    source, num_tokens, ids, logprobs, given, pieces, prompt, prompt_tokens, prompt_ids = found[
        len(_SAME) + 10 :
    ]
    if prompt not in prompts:
        prompts[prompt] = codec.unpack(prompt_ids, np.int32, length=prompt_tokens)
    known = logprobs is not None
    rollout = Rollout(
        **dict(zip(_SAME, found, strict=False)),
        uid=uid,
        context=CONTEXTS[context],
        prompt_ids=prompts[prompt],
        response_ids=codec.unpack(ids, np.int32, length=num_tokens),
        response_logprobs=codec.unpack(logprobs, np.float32, length=num_tokens)
        if known
        else np.zeros(0, np.float32),
        verdict=VERDICTS[verdict],
        truncated=bool(truncated),
        entropy=None
        if source is None
        else EntropyStatistics(peak=peak, global_=global_, source=source),
        given=tuple(map(tuple, json.loads(given))) if given else (),
        pieces=tuple(map(tuple, json.loads(pieces))) if pieces else (),
        turns=read_turns(connection, codec, row),
        experts=read_experts(connection, codec, row),
    )
    return StoredRollout(
        row=row, step=step, copies=copies, evicted_at=evicted_at, rollout=rollout
    )
