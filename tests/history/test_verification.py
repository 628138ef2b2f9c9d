"""verify finds what is wrong, and says where."""

import sqlite3

import pytest

from r3_openrlhf.history import HistoryLimits, HistoryStore
from r3_openrlhf.history.verification import verify
from r3_openrlhf.types import Verdict

from .samples import make_rollout


@pytest.fixture
def store(tmp_path):
    """Two problems, five steps, evicted rows, duplicates, an ungraded rollout, a floor."""
    path = tmp_path / "history.sqlite"
    with HistoryStore.open(path, limits=HistoryLimits(max_per_problem_and_verdict=2), journal="delete") as opened:
        for step in range(1, 6):
            rollouts = [make_rollout(uid, ids=[step, n], policy_step=step) for uid in "pq" for n in range(2)]
            rollouts += [rollouts[0], make_rollout(verdict=Verdict.UNGRADED), make_rollout("p", ids=[9])]
            opened.commit_step(step, 1, rollouts, state={"step": step})
        opened.set_rollback_floor(3)
    return path


def test_a_sound_store(store):
    result = verify(store)
    assert result.ok and result.skipped == []
    assert (result.problems, result.steps) == (2, 5)


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("UPDATE counters SET count = count + 1 WHERE verdict = 1 AND problem = 1", "problem p counts"),
        ("UPDATE counters SET reward_sum = reward_sum + 0.5 WHERE verdict = 1 AND problem = 2", "problem q counts"),
        ("DELETE FROM counters WHERE verdict = 2", "problem p counts (0, 0.0) plain ungraded"),
        ("UPDATE gone SET count = count - 1 WHERE step = -1 AND verdict = 1 AND problem = 1", "problem p counts"),
        ("DELETE FROM rollouts WHERE id = (SELECT max(id) FROM rollouts)", "which does not exist"),
        ("DELETE FROM logprobs WHERE rollout = (SELECT max(id) FROM rollouts)", "lacks its problem, prompt, response"),
        ("DELETE FROM prompts WHERE id = 1", "lacks its problem, prompt, response"),
        ("INSERT INTO responses VALUES (999, 1, x'00', 1, x'00')", "response 999 belongs to no row"),
        ("INSERT INTO prompts VALUES (999, 1, x'00', 1, x'00')", "prompt 999 belongs to no row"),
        ("UPDATE rollouts SET evicted_at = 2 WHERE evicted_at = 4", "says that step 2 evicted it"),
        ("UPDATE rollouts SET evicted_at = 77 WHERE evicted_at = 4", "says that step 77 evicted it"),
        ("DELETE FROM steps WHERE step = 5", "belongs to step 5, which was not committed"),
        ("UPDATE rollouts SET copies = 0 WHERE id = (SELECT max(id) FROM rollouts)", "but counts 0 copies"),
        ("UPDATE steps SET num_rollouts = 8 WHERE step = 4", "step 4 had 8 rollouts, 7 are accounted for"),
        ("UPDATE steps SET num_rows = 0 WHERE step = 5", "step 5 wrote 0 rows"),
        ("UPDATE steps SET last_prompt = 777 WHERE step = 4", "step 4 gave out larger ids than step 5"),
        ("UPDATE rollouts SET evicted_at = NULL WHERE evicted_at = 5", "recallable rows of the same content"),
        ("UPDATE rollouts SET bytes = bytes + 1 WHERE id = (SELECT max(id) FROM rollouts)", "the byte count is"),
        ("UPDATE rollouts SET verdict = 0 WHERE id = (SELECT max(id) FROM rollouts)", "is not the content that its hash"),
        ("UPDATE rollouts SET num_tokens = 7 WHERE id = (SELECT max(id) FROM rollouts)", "8 bytes instead of 28"),
        ("UPDATE responses SET digest = x'00' WHERE id = (SELECT max(id) FROM responses)", "is not what its hash names"),
        ("UPDATE prompts SET digest = x'00'", "prompt 1 is not what its hash names"),
        ("UPDATE logprobs SET data = CAST(x'28b52ffd' || data AS BLOB)", "log-probs of row"),
        ("UPDATE steps SET state = x'00' WHERE step = 5", "state of step 5"),
        ("DROP INDEX rollouts_evicted; CREATE INDEX rollouts_evicted ON rollouts (id) WHERE 0; "
         "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE INDEX rollouts_evicted ON rollouts "
         "(evicted_at) WHERE evicted_at IS NOT NULL' WHERE name = 'rollouts_evicted'", "rollouts_evicted"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_is_found(store, damage, finding):
    connection = sqlite3.connect(store)
    connection.executescript(damage)
    connection.close()
    findings = verify(store).findings
    assert any(finding in line for line in findings), findings


def test_a_flipped_bit_in_an_array_is_found(store):
    connection = sqlite3.connect(store)
    row, data = connection.execute("SELECT rollout, data FROM logprobs ORDER BY rollout DESC LIMIT 1").fetchone()
    connection.execute(
        "UPDATE logprobs SET data = ? WHERE rollout = ?", (data[:-6] + bytes([data[-6] ^ 1]) + data[-5:], row)
    )
    connection.commit()
    connection.close()
    assert [f"log-probs of row {row}" in line for line in verify(store).findings] == [True]


def test_pages_are_left_alone_while_a_run_writes_with_a_rollback_journal(store):
    with HistoryStore.open(store, journal="delete"):
        result = verify(store)
    assert result.ok and len(result.skipped) == 1 and "may be writing" in result.skipped[0]
    with HistoryStore.open(store, journal="wal"):
        assert verify(store).skipped == []
