"""Every column of the store, damaged in every way that its type does not forbid: verify finds it, no command ends in a
traceback. And a store that lost its newest steps is noticed by what the checkpoint remembers of it."""

import itertools
import shutil
import sqlite3

import pytest
from click.testing import CliRunner

from r3_openrlhf.cli import main
from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history import HistoryLimits, HistoryStore
from r3_openrlhf.history.column_rules import COLUMNS
from r3_openrlhf.history.verification import verify
from r3_openrlhf.history.witness import append_record, check_checkpoint, read_records
from r3_openrlhf.types import Context, Verdict

from .samples import make_rollout


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run directory with five steps, evicted rows, duplicates, both contexts, an ungraded rollout, entropies, a floor."""
    run = tmp_path_factory.mktemp("sound")
    limits = HistoryLimits(max_per_problem_and_verdict=2)
    with HistoryStore.open(run / "history.sqlite", limits=limits, journal="delete") as store:
        for step in range(1, 6):
            rollouts = [
                make_rollout(uid, ids=[step, n], policy_step=step, entropy=(2.0, 1.0))
                for uid in "pq"
                for n in range(2)
            ]
            rollouts += [rollouts[0], make_rollout(verdict=Verdict.UNGRADED), make_rollout("p", ids=[9])]
            rollouts += [
                make_rollout("p", ids=[step, 5], verdict=Verdict.CORRECT, context=Context.REFLECTION, prompt=[4]),
                make_rollout("q", ids=[step, 7], context=Context.PREFIX, prompt=[7], prefix_tokens=1),
            ]
            rollouts += [make_rollout("r", ids=[step, n, 1], turns=(1, 2)) for n in range(2)]
            store.commit_step(step, 1, rollouts, state={"step": step})
        store.set_rollback_floor(3)
    return run


def said(*arguments):
    """Of a command that must not end in a traceback."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exc_info)
    if result.exit_code:
        assert "Traceback" not in result.output and "unexpected" not in result.output
    return result


def every_command(run_dir):
    output = run_dir / "export.jsonl"
    said("history", "stats", run_dir)
    said("history", "stats", run_dir, "--json")
    said("history", "show", run_dir, "p")
    said("history", "show", run_dir, "p", "--json")
    said("history", "export", run_dir, "--format", "jsonl", "--output", output)
    output.unlink(missing_ok=True)
    said("history", "export", run_dir, "--output", output)
    output.unlink(missing_ok=True)
    return said("history", "verify", run_dir)


COLUMN_NAMES = [(table, column) for table, columns in COLUMNS.items() for column in columns]
WRONG = {
    "INTEGER": ["text", b"\0", -7, 2**62, 0.5],
    "REAL": ["text", b"\0", float("inf")],
    "TEXT": [b"\0"],
    "BLOB": ["text", 7, b""],
    "": ["text", b"\0", -7, 0.5],  # meta.value
}


def keys_of(connection, table):
    """(condition, [values, ...]): names each row of a table."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
    condition = " AND ".join(f"{column} IS ?" for column in columns)
    return condition, connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()


def damage(run_dir, sound, sql, parameters=()):
    """A copy of the sound store with one change; False when SQLite itself refuses it, or nothing changes."""
    shutil.copy(sound / "history.sqlite", run_dir)
    connection = sqlite3.connect(run_dir / "history.sqlite")
    try:
        with connection:
            return connection.execute(sql, parameters).rowcount > 0
    except sqlite3.IntegrityError:
        return False
    finally:
        connection.close()


@pytest.mark.parametrize(("table", "column"), [*COLUMN_NAMES, ("meta", "value")])
def test_a_value_of_a_wrong_type_is_found_and_ends_in_no_traceback(table, column, sound, quick_path):
    connection = sqlite3.connect(sound / "history.sqlite")
    kinds = {name: kind for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")}
    condition, keys = keys_of(connection, table)
    keys = [
        key
        for key in keys
        if connection.execute(f"SELECT {column} FROM {table} WHERE {condition}", key).fetchone()[0] is not None
    ]
    connection.close()
    values = WRONG[kinds[column]] + ([99] if column in ("context", "verdict", "truncated") else [])
    tried = 0
    for key, value in itertools.product(keys if table == "meta" else keys[-1:], values):
        if damage(quick_path, sound, f"UPDATE {table} SET {column} = ? WHERE {condition}", (value, *key)):
            tried += 1
            result = every_command(quick_path)
            assert result.exit_code == 1, (table, column, key, value, result.output)
    assert tried > 0


@pytest.mark.parametrize("table", [*COLUMNS, "meta"])
def test_a_lost_row_is_found(table, sound, quick_path):
    """But for what only a roll-back reads: a row of counters_before that is not there is one that was never written,
    and a store without a floor is one that nothing was removed from."""
    connection = sqlite3.connect(sound / "history.sqlite")
    condition, keys = keys_of(connection, table)
    connection.close()
    assert keys
    for key in keys:
        assert damage(quick_path, sound, f"DELETE FROM {table} WHERE {condition}", key)
        result = every_command(quick_path)
        if table != "counters_before" and key != ("floor",):
            assert result.exit_code == 1, (table, key, result.output)


@pytest.mark.parametrize("name", [*COLUMNS, "meta", "rollouts_live", "rollouts_age"])
def test_a_missing_table_or_index_is_found(name, sound, quick_path):
    shutil.copy(sound / "history.sqlite", quick_path)
    connection = sqlite3.connect(quick_path / "history.sqlite")
    connection.execute(f"DROP {'INDEX' if name.startswith('rollouts_') else 'TABLE'} {name}")
    connection.close()
    result = every_command(quick_path)
    assert result.exit_code == 1 and f"{name} is missing" in result.output


# ── what cannot be committed ──

BAD_NUMBERS = [float("nan"), float("inf"), 2**63, 10**30, 1e308, -1, 0.5, None, "1", b"1"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *itertools.product(("step", "epoch", "policy_step", "rollout.epoch"), BAD_NUMBERS),
        *itertools.product(("reward", "entropy"), [float("nan"), float("inf"), 10**400, "1", b"1"]),
        ("reward", 1e308),
        ("reward", 2**63),
        *itertools.product(("uid", "finish_reason", "reason"), [None, 1, b"p"]),
        *itertools.product(("context", "verdict"), [None, "no such", 0]),
        *itertools.product(("prompt_ids", "response_ids", "response_logprobs"), [None, 7, "text", [[1, 2, 3]], ["a", "b", "c"]]),
        ("truncated", None),
    ],
)  # fmt: skip
def test_a_commit_takes_no_value_that_it_could_not_give_back(field, value, quick_path):
    with HistoryStore.open(quick_path / "history.sqlite") as store:
        store.commit_step(1, 1, [make_rollout()])
        rollout = make_rollout(ids=[1, 2, 3], entropy=(value, 1.0) if field == "entropy" else (2.0, 1.0))
        step = {"step": 2, "epoch": 1}
        if field in step:
            step[field] = value
        elif field != "entropy":
            setattr(rollout, field.removeprefix("rollout."), value)
        with pytest.raises(HistoryError) as refusal:
            store.commit_step(step["step"], step["epoch"], [make_rollout(ids=[8]), rollout])
        assert "\n" not in str(refusal.value) and "what cannot be there" not in str(refusal.value)
        assert store.last_step == 1  # nothing of it is there
        store.commit_step(2, 1, [make_rollout(ids=[8])])
    assert verify(quick_path / "history.sqlite").ok


@pytest.mark.parametrize("value", [float("nan"), 2**63, None, "1", 0.5])
def test_no_step_that_is_no_number_is_taken(value, quick_path):
    with HistoryStore.open(quick_path / "history.sqlite") as store:
        store.commit_step(1, 1, [make_rollout()])
        for method in (store.roll_back, store.set_rollback_floor, store.state_of, store.record):
            with pytest.raises(HistoryError, match="takes whole numbers"):
                method(value)
        far = store.recall("p", Verdict.WRONG, k=10**23, step=5, max_policy_lag=10**23)
        assert len(far) == 1


# ── the history behind the checkpoint ──


@pytest.fixture
def run_with_checkpoints(quick_path):
    """Ten steps, a checkpoint after every second one; journal: WAL, as on a local disk."""
    store = HistoryStore.open(
        quick_path / "history.sqlite", limits=HistoryLimits(max_per_problem_and_verdict=3), journal="wal"
    )
    (quick_path / "checkpoints").mkdir()
    for step in range(1, 11):
        store.commit_step(
            step, 1, [make_rollout(uid, ids=[step, n], policy_step=step) for uid in "pq" for n in range(2)]
        )
        if step % 2 == 0:
            append_record(quick_path / "checkpoints" / "history.jsonl", store.record(step))
    yield quick_path, store
    store.close()


def check(run, step):
    check_checkpoint(run / "history.sqlite", run / "checkpoints", step=step)


def test_a_record_is_the_same_whenever_it_is_taken(run_with_checkpoints):
    """While later steps evict, after a roll-back, above the floor: law."""
    run, store = run_with_checkpoints
    records = {record.step: record for record in read_records(run / "checkpoints" / "history.jsonl")}
    assert sorted(records) == [2, 4, 6, 8, 10] and records[10].rows == 6
    store.set_rollback_floor(4)
    for step in (4, 6, 8, 10):
        assert store.record(step) == records[step]
        check(run, step)
    assert verify(run / "history.sqlite").ok
    store.roll_back(6)
    assert store.record(6) == records[6]
    store.commit_step(7, 1, [make_rollout("p", ids=[77])])
    append_record(run / "checkpoints" / "history.jsonl", store.record(7))
    assert [record.step for record in read_records(run / "checkpoints" / "history.jsonl")] == [2, 4, 6, 7]
    assert verify(run / "history.sqlite").ok


def copy_without(run, copy, *, drop):
    """The files as they are on disk while the writer is alive, as a crash leaves them, without some."""
    shutil.copytree(run, copy)
    for name in drop:
        (copy / name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "drop", [["history.sqlite", "history.sqlite-wal"], ["history.sqlite-wal", "history.sqlite-shm"]]
)
def test_a_lost_file_is_noticed(drop, run_with_checkpoints, tmp_path):
    run, _ = run_with_checkpoints
    copy_without(run, tmp_path / "copy", drop=[])
    check(tmp_path / "copy", 10)
    copy_without(run, tmp_path / "lost", drop=drop)
    with pytest.raises(HistoryError, match="checkpoint of step 10: it is (empty|not there).*accept_lost_history"):
        check(tmp_path / "lost", 10)


def test_a_damaged_wal_that_loses_committed_steps_is_noticed(run_with_checkpoints, tmp_path):
    """SQLite reads such a file as sound, as an earlier state of it: at every cut either all ten steps are there, or the
    record says that they are not."""
    run, _ = run_with_checkpoints
    size = (run / "history.sqlite-wal").stat().st_size
    lost = 0
    for cut in range(0, size, size // 40):
        copy = tmp_path / f"cut{cut}"
        copy_without(run, copy, drop=["history.sqlite-shm"])
        with (copy / "history.sqlite-wal").open("r+b") as log:
            log.seek(cut)
            log.write(b"\xff" * 16)
        try:
            check(copy, 10)
        except HistoryError:
            lost += 1
            result = CliRunner().invoke(main, ["history", "verify", str(copy)])
            assert result.exit_code == 1 and "Traceback" not in result.output
        else:
            with HistoryStore.open(copy / "history.sqlite", writer=False) as store:
                assert store.last_step == 10
        shutil.rmtree(copy)
    assert lost > 20


def test_another_run_s_store_is_noticed(run_with_checkpoints, tmp_path):
    run, store = run_with_checkpoints
    store.close()
    with HistoryStore.open(tmp_path / "history.sqlite", limits=HistoryLimits(max_per_problem_and_verdict=3)) as other:
        for step in range(1, 11):
            other.commit_step(
                step, 1, [make_rollout(uid, ids=[step, 7, n], policy_step=step) for uid in "pq" for n in range(2)]
            )
    for name in ("history.sqlite", "history.sqlite-wal", "history.sqlite-shm"):
        (run / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "history.sqlite", run)
    with pytest.raises(HistoryError, match="its rows of then are others"):
        check(run, 10)
    findings = verify(run / "history.sqlite").findings
    assert len(findings) == 1 and "checkpoint of step 10" in findings[0]


def test_a_checkpoint_without_a_record_compares_the_step(run_with_checkpoints):
    run, _ = run_with_checkpoints
    (run / "checkpoints" / "history.jsonl").unlink()
    check(run, 10)
    with pytest.raises(HistoryError, match="it ends with step 10"):
        check(run, 12)


@pytest.mark.parametrize(
    "line", ["", "null", "{}", "[1]", '{"step": "1", "rows": 1, "digest": "a"}', "\udcff", "[" * 9999]
)
def test_a_damaged_record_is_one_sentence(line, run_with_checkpoints):
    run, _ = run_with_checkpoints
    file = run / "checkpoints" / "history.jsonl"
    file.write_bytes(file.read_bytes() + (line or "{").encode(errors="surrogateescape") + b"\n")
    with pytest.raises(HistoryError, match="line 6 is no record of the history store"):
        check(run, 10)
    result = CliRunner().invoke(main, ["history", "verify", str(run)])
    assert result.exit_code == 1 and "Traceback" not in result.output
