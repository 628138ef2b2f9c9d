"""The store against a model of it in plain Python that keeps a copy of itself for every step."""

import copy
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history import HistoryStore, RecallRequest
from r3_openrlhf.method.history.codec import digest
from r3_openrlhf.method.history.drafts import CONTEXT_CODES, merge_duplicates
from r3_openrlhf.method.history.recall import read
from r3_openrlhf.method.history.trajectories import encoded_turns
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.operations.store.verification import verify

from .conftest import SHARED_MEMORY
from .samples import counts, dump, make_rollout, values

UIDS = "abc"
GRADED = (Verdict.CORRECT, Verdict.WRONG)


# Few different values, so that duplicates, full buckets and ties are the normal case. Rewards add up exactly.
def rollout_of(*arguments, context, ids, played, **options):
    """One that began behind a prefix was given all but its last token. Every token of a trajectory is a turn."""
    given = max(0, len(ids) - 1) if context is Context.PREFIX else 0
    turns = [1] * len(ids) if played and ids else None
    state = (
        (1, 0.5 + ids[0])
        if len(ids) == 2 and ids[1] and options["verdict"] is Verdict.WRONG
        else None
    )
    made = make_rollout(
        *arguments,
        context=context,
        ids=ids,
        prefix_tokens=given,
        turns=turns,
        state=state,
        **options,
    )
    if context is Context.IMPORTED:
        made.response_logprobs = made.response_logprobs[: len(ids) * ids[0]]  # some unknown
    return made


rollouts_ = st.lists(
    st.builds(
        rollout_of,
        st.sampled_from(UIDS),
        ids=st.lists(st.integers(0, 2), min_size=1, max_size=2),
        verdict=st.sampled_from(
            [Verdict.CORRECT, Verdict.WRONG, Verdict.WRONG, Verdict.UNGRADED]
        ),
        context=st.sampled_from(Context),
        played=st.booleans(),
        prompt=st.sampled_from([(7,), (8,)]),
        policy_step=st.integers(0, 6),
        truncated=st.booleans(),
        entropy=st.sampled_from([None, (2.0, 0.5)]),
    ),
    max_size=12,
)


def content(rollout):
    return merge_duplicates([rollout])[0].content


class Model:
    """One dictionary of live rows, one of counters. Evicts one row at a time, the plainest way."""

    def __init__(self, limits):
        self.limits = limits
        self.steps = []
        self.rows = {}  # (uid, content) -> (rollout, step, copies)
        self.tallies = {}
        self.continuations = {}  # (uid, prefix) -> [tries, successes]
        self.first_steps = {}  # of rows with a state

    def commit(self, step, rollouts):
        self.steps.append(step)
        fresh = {}
        for rollout in rollouts:
            count, total = self.tallies.get(
                (rollout.uid, rollout.context, rollout.verdict), (0, 0.0)
            )
            key = rollout.uid, rollout.context, rollout.verdict
            self.tallies[key] = count + 1, total + (rollout.reward or 0.0)
            if rollout.prefix_tokens and rollout.verdict is not Verdict.UNGRADED:
                prefix = (
                    rollout.uid,
                    tuple(rollout.response_ids[: rollout.prefix_tokens].tolist()),
                )
                tries, successes = self.continuations.get(prefix, (0, 0))
                self.continuations[prefix] = (
                    tries + 1,
                    successes + (rollout.verdict is Verdict.CORRECT),
                )
            if rollout.verdict is not Verdict.UNGRADED:
                fresh.setdefault((rollout.uid, content(rollout)), []).append(rollout)
        for key, same in fresh.items():
            kept = max(same, key=lambda r: (r.policy_step, r.truncated, r.entropy is not None))
            copies = len(same) + (self.rows[key][2] if key in self.rows else 0)
            self.rows[key] = kept, step, copies
            if any(rollout.state for rollout in same):
                self.first_steps.setdefault(key, step)
        limits = self.limits
        for uid in UIDS:
            for verdict in GRADED:
                for imported in (False, True):
                    while (
                        len(
                            bucket := self.bucket(uid, verdict, states=False, imported=imported)
                        )
                        > limits.max_per_problem_and_verdict
                    ):
                        del self.rows[min(bucket, key=self.leaves_first)]
                while (
                    len(bucket := self.bucket(uid, verdict, states=True))
                    > limits.max_states_per_problem
                ):
                    leaves = min(bucket, key=self.state_leaves_first)
                    del self.rows[leaves], self.first_steps[leaves]

    def bucket(self, uid, verdict, *, states, imported=None):
        of_set = [
            key
            for key, (rollout, _, _) in self.rows.items()
            if key[0] == uid
            and rollout.verdict is verdict
            and imported in (None, rollout.context is Context.IMPORTED)
        ]
        return [key for key in of_set if (key in self.first_steps) == states]

    def state_leaves_first(self, key):
        return -self.first_steps[key], key[1]

    def leaves_first(self, key):
        rollout, step, _ = self.rows[key]
        return rollout.context is Context.PLAIN, step, key[1]


class StoreAgainstModel(RuleBasedStateMachine):
    @initialize(cap=st.integers(1, 4), max_states=st.integers(1, 3))
    def start(self, cap, max_states):
        self.directory = Path(
            tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
        )
        self.limits = HistorySettings(
            max_per_problem_and_verdict=cap, max_states_per_problem=max_states
        )
        self.store = self.open("store")
        self.model = Model(self.limits)
        self.snapshots = {}  # step -> the model as it was
        self.surviving = []  # what a run that was never rolled back would have called
        self.floor = None

    def open(self, name):
        return HistoryStore.open(self.directory / name, limits=self.limits)

    def newest(self):
        return self.model.steps[-1] if self.model.steps else None

    @rule(rollouts=rollouts_, gap=st.integers(1, 2))
    def commit(self, rollouts, gap):
        step = (self.newest() or 0) + gap
        self.store.commit_step(step, 1, rollouts)
        self.model.commit(step, rollouts)
        self.snapshots[step] = copy.deepcopy(self.model)
        self.surviving.append(("commit", step, rollouts))

    @precondition(lambda self: self.model.steps)
    @rule(data=st.data())
    def raise_the_floor(self, data):
        step = data.draw(st.sampled_from(self.model.steps))
        self.store.set_rollback_floor(step)
        if self.floor is None or step > self.floor:
            self.floor = step
        self.surviving.append(("floor", step))

    @precondition(lambda self: self.model.steps)
    @rule(data=st.data())
    def roll_back(self, data):
        step = data.draw(st.sampled_from([0, *self.model.steps]))
        if self.floor is not None and 0 < step < self.floor:
            with pytest.raises(HistoryError, match="cannot roll"):
                self.store.roll_back(step)
            return
        self.store.roll_back(step)
        if step == 0:
            self.floor = None
            self.surviving = []
            self.model = Model(self.limits)
        else:
            self.surviving = [
                call for call in self.surviving if call[0] == "floor" or call[1] <= step
            ]
            self.model = copy.deepcopy(self.snapshots[step])

    @rule()
    def reopen(self):
        self.store.close()
        self.store = self.open("store")

    @rule(
        uid=st.sampled_from(UIDS),
        verdict=st.sampled_from(GRADED),
        k=st.integers(1, 5),
        step=st.integers(0, 12),
        lag=st.integers(0, 8),
        order=st.sampled_from(["uniform", "newest"]),
        contexts=st.sampled_from([(Context.PLAIN,), (Context.REFLECTION,), tuple(Context)]),
    )
    def recall(self, uid, verdict, k, step, lag, order, contexts):
        request = RecallRequest(
            uid=uid,
            verdict=verdict,
            k=k,
            step=step,
            max_policy_lag=lag,
            order=order,
            contexts=contexts,
        )
        found = self.store.answer(request)
        assert [stored.row for stored in found] == [
            stored.row for stored in self.store.answer(request)
        ]
        allowed = [
            rollout
            for rollout, _, _ in self.model.rows.values()
            if rollout.uid == uid
            and rollout.verdict is verdict
            and rollout.context in contexts
            and (step - rollout.policy_step <= lag or rollout.context is Context.IMPORTED)
        ]
        answers = [values(stored.rollout) for stored in found]
        kept = {}  # of equal responses and turns one: the newest of a plain prompt, else the newest
        for rollout in sorted(
            allowed, key=lambda r: (-CONTEXT_CODES[r.context], r.policy_step, content(r))
        ):
            turns = None if rollout.turns is None else encoded_turns(rollout)
            kept[rollout.response_ids.tobytes(), turns] = rollout
        assert len(answers) == min(k, len(kept))
        assert len(set(answers)) == len(answers)
        assert set(answers) <= {values(rollout) for rollout in kept.values()}
        if order == "newest":
            ages = sorted((rollout.policy_step for rollout in kept.values()), reverse=True)
            assert [stored.rollout.policy_step for stored in found] == ages[:k]

    @invariant()
    def everything_is_what_the_model_says(self):
        assert self.store.last_step == self.newest()
        for uid in UIDS:
            assert {(uid, *key): found for key, found in counts(self.store, uid).items()} == {
                key: value for key, value in self.model.tallies.items() if key[0] == uid
            }
            known = {
                state: one
                for (of, state), one in self.store.continuations().items()
                if of == uid
            }
            assert known == {
                digest(np.array(ids, dtype=np.int32).tobytes()): counts
                for (of, ids), counts in self.model.continuations.items()
                if of == uid
            }
        with self.store._reading() as connection:
            ids = [row for (row,) in connection.execute("SELECT id FROM rollouts ORDER BY id")]
            rows = read(connection, self.store._codec, ids)
        live = [row for row in rows if row.evicted_at is None]
        # own rows, imported ones and those of states
        most = 2 * self.limits.max_per_problem_and_verdict + self.limits.max_states_per_problem
        buckets = Counter((row.rollout.uid, row.rollout.verdict) for row in live)
        assert max(buckets.values(), default=0) <= most
        stored = {
            (s.rollout.uid, content(s.rollout)): (values(s.rollout), s.step, s.copies)
            for s in live
        }
        states = self.store.states(step=self.newest() or 0)
        begun = [
            one.rollout.response_ids[:1].tolist()
            for one in self.store.rollouts([one.row for one in states])
        ]
        found = [
            (one.uid, one.value, one.age, ids) for one, ids in zip(states, begun, strict=True)
        ]
        oldest = {}  # of each state, the step in which it was cut first
        for key, step in self.model.first_steps.items():
            state = key[0], int(self.model.rows[key][0].response_ids[0])
            oldest[state] = min(step, oldest.get(state, step))
        assert sorted(found) == sorted(
            (uid, 0.5 + first, self.newest() - step, [first])
            for (uid, first), step in oldest.items()
        )
        assert stored == {
            key: (values(rollout), step, copies)
            for key, (rollout, step, copies) in self.model.rows.items()
        }

    def teardown(self):
        if not hasattr(self, "store"):
            return
        self.store.close()
        try:
            assert verify(self.directory / "store").findings == []
            with self.open("never rolled back") as other:
                for call, step, *rollouts in self.surviving:
                    if call == "commit":
                        other.commit_step(step, 1, rollouts[0])
                    elif step <= (other.last_step or 0):
                        other.set_rollback_floor(step)
                # floors that were raised from a step that is forgotten
                for (
                    call,
                    step,
                    *_,
                ) in self.surviving:
                    if call == "floor":
                        other.set_rollback_floor(step)
            assert dump(self.directory / "store") == dump(self.directory / "never rolled back")
        finally:
            shutil.rmtree(self.directory)


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
