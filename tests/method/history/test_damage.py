"""Damage is found: by SQLite where a column, a reference or a table is wrong, by `verify` where only we can know. No command ends
in a traceback. And a store that is not the checkpoint's is noticed by what the checkpoint remembers of it."""

import contextlib
import itertools
import shutil
import sqlite3
import tomllib
from pathlib import Path

import pytest

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import HistoryError, InvalidValue
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.history.witness import check_checkpoint, record_of
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.operations.store.verification import verify
from r3_openrlhf.runs import checkpoint_record
from tests.commands import r3

from .samples import make_rollout

TABLES = [
    "meta",
    "steps",
    "problems",
    "counters",
    "counters_before",
    "gone",
    "continuations",
    "prompts",
    "responses",
    "rollouts",
    "logprobs",
    "trajectories",
    "states",
]
# in range of nothing
WRONG = {
    "INTEGER": [-7, 2**62],
    "REAL": [float("inf")],
    "TEXT": [],
    "BLOB": [b""],
}
DAMAGE = tomllib.loads(Path(__file__).with_name("damage.toml").read_text())["damage"]
OF_ANOTHER_TYPE = {
    "INTEGER": ["text", b"\0", 0.5],
    "REAL": ["text", b"\0"],
    "TEXT": [b"\0"],
    "BLOB": ["text", 7],
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run directory with five steps, evicted rows, duplicates, both contexts, an ungraded rollout, entropies, a floor."""
    run = tmp_path_factory.mktemp("sound")
    limits = HistorySettings(max_per_problem_and_verdict=2)
    with HistoryStore.open(run / "history.sqlite", limits=limits) as store:
        for step in range(1, 6):
            rollouts = [
                make_rollout(
                    uid, ids=[step, n], policy_step=step, entropy=(2.0, 1.0), state=(1, 0.5)
                )
                for uid in "pq"
                for n in range(2)
            ]
            rollouts += [
                rollouts[0],
                make_rollout(verdict=Verdict.UNGRADED),
                make_rollout("p", ids=[9]),
            ]
            rollouts += [
                make_rollout(
                    "p",
                    ids=[step, 5],
                    verdict=Verdict.CORRECT,
                    context=Context.REFLECTION,
                    prompt=[4],
                ),
                make_rollout(
                    "q", ids=[step, 7], context=Context.PREFIX, prompt=[7], prefix_tokens=1
                ),
            ]
            rollouts += [make_rollout("r", ids=[step, n, 1], turns=(1, 2)) for n in range(2)]
            store.commit_step(step, 1, rollouts)
        store.set_rollback_floor(3)
    return run


def said(*arguments):
    """Of a command that must not end in a traceback."""
    result = r3(*arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        arguments,
        result.exc_info,
    )
    if result.exit_code:
        assert "Traceback" not in result.output and "unexpected" not in result.output
    return result


def every_command(run_dir):
    said("history", "stats", run_dir)
    said("history", "stats", run_dir, "--json")
    said("history", "show", run_dir, "p")
    said("history", "show", run_dir, "p", "--json")
    return said("history", "verify", run_dir)


def keys_of(connection, table):
    """(condition, [values, ...]): names each row of a table."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
    condition = " AND ".join(f"{column} IS ?" for column in columns)
    return condition, connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()


@contextlib.contextmanager
def damaged(run_dir, sound):
    """A connection to a copy of the sound store, which writes what CHECK constraints forbid."""
    shutil.copy(sound / "history.sqlite", run_dir)
    connection = sqlite3.connect(run_dir / "history.sqlite")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@pytest.mark.parametrize("table", TABLES)
def test_every_column_refuses_values_of_another_type_and_those_out_of_range_are_found(
    table, sound, quick_path
):
    with damaged(quick_path, sound) as connection:
        columns = {
            name: kind
            for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")
        }
        condition, keys = keys_of(connection, table)
        for column, kind in columns.items():
            for key, value in itertools.product(keys[-1:], OF_ANOTHER_TYPE[kind]):
                with pytest.raises(
                    sqlite3.IntegrityError, match="cannot store|datatype mismatch"
                ):
                    connection.execute(
                        f"UPDATE {table} SET {column} = ? WHERE {condition}", (value, *key)
                    )
    for column, kind in columns.items():
        for key, value in itertools.product(keys[-1:], WRONG[kind]):
            with damaged(quick_path, sound) as connection:
                connection.execute(
                    f"UPDATE {table} SET {column} = ? WHERE {condition}", (value, *key)
                )
            result = every_command(quick_path)
            assert result.exit_code == 1, (column, key, value, result.output)


@pytest.mark.parametrize("table", TABLES)
def test_a_lost_row_is_found(table, sound, quick_path):
    """But for what only a roll-back reads: a row of counters_before that is not there is one that was never written,
    and a store without a floor is one that nothing was removed from. And for states and trajectories: a response without one is the normal case."""
    with damaged(quick_path, sound) as connection:
        condition, keys = keys_of(connection, table)
    assert keys
    for key in keys:
        with damaged(quick_path, sound) as connection:
            connection.execute(f"DELETE FROM {table} WHERE {condition}", key)
        result = every_command(quick_path)
        if table not in ("counters_before", "states", "trajectories") and key != ("floor",):
            assert result.exit_code == 1, (table, key, result.output)


@pytest.mark.parametrize("name", [*TABLES, "rollouts_live", "rollouts_response"])
def test_a_missing_table_or_index_is_found(name, sound, quick_path):
    with damaged(quick_path, sound) as connection:
        connection.execute(
            f"DROP {'INDEX' if name.startswith('rollouts_') else 'TABLE'} {name}"
        )
    result = every_command(quick_path)
    assert result.exit_code == 1 and f"{name} is missing" in result.output


@pytest.mark.parametrize(("damage", "finding"), DAMAGE)
def test_each_kind_of_damage_is_named(sound, quick_path, damage, finding):
    with damaged(quick_path, sound) as connection:
        connection.execute(damage)
    findings = verify(quick_path / "history.sqlite").findings
    assert any(finding in line for line in findings), findings


def test_a_flipped_bit_in_an_array_is_found(sound, quick_path):
    with damaged(quick_path, sound) as connection:
        row, data = connection.execute(
            "SELECT rollout, data FROM logprobs ORDER BY rollout DESC LIMIT 1"
        ).fetchone()
        data = data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]
        connection.execute("UPDATE logprobs SET data = ? WHERE rollout = ?", (data, row))
    assert [
        f"row {row} cannot be read" in line
        for line in verify(quick_path / "history.sqlite").findings
    ] == [True]


def test_the_file_is_left_alone_while_a_run_writes(sound, quick_path):
    shutil.copy(sound / "history.sqlite", quick_path)
    with HistoryStore.open(quick_path / "history.sqlite"):
        result = verify(quick_path / "history.sqlite")
    assert (
        result.findings == []
        and len(result.skipped) == 1
        and "may be writing" in result.skipped[0]
    )


# ── what cannot be committed ──

BAD_NUMBERS = [float("nan"), float("inf"), 2**63, 10**30, 1e308, -1, 0.5, None, "1", b"1"]


@pytest.mark.parametrize(("field", "value"), itertools.product(("step", "epoch"), BAD_NUMBERS))
def test_a_commit_takes_no_step_that_it_could_not_give_back(field, value, quick_path):
    """Fields of rollouts: tests/method/test_handed_over.py."""
    with HistoryStore.open(quick_path / "history.sqlite") as store:
        store.commit_step(1, 1, [make_rollout()])
        with pytest.raises(InvalidValue, match="use a whole number from 0 to 2..53"):
            store.commit_step(
                **{"step": 2, "epoch": 1, field: value}, rollouts=[make_rollout(ids=[8])]
            )
        assert store.last_step == 1  # nothing of it is there
    assert verify(quick_path / "history.sqlite").findings == []


@pytest.mark.parametrize("value", [float("nan"), 2**63, None, "1", 0.5])
def test_no_step_that_is_no_number_is_taken(value, quick_path):
    with HistoryStore.open(quick_path / "history.sqlite") as store:
        store.commit_step(1, 1, [make_rollout()])
        for method in (store.roll_back, store.set_rollback_floor):
            with pytest.raises(InvalidValue, match="use a whole number from 0 to 2..53"):
                method(value)
        far = store.recall("p", Verdict.WRONG, k=10**23, step=5, max_policy_lag=10**23)
        assert len(far) == 1


# ── the history behind the checkpoint ──


@pytest.fixture
def run_with_checkpoints(quick_path):
    """Ten steps, a checkpoint after every second one."""
    store = HistoryStore.open(
        quick_path / "history.sqlite", limits=HistorySettings(max_per_problem_and_verdict=3)
    )
    for step in range(1, 11):
        store.commit_step(
            step,
            1,
            [
                make_rollout(uid, ids=[step, n], policy_step=step)
                for uid in "pq"
                for n in range(2)
            ],
        )
        if step % 2 == 0:
            folder_of(quick_path, step).mkdir(parents=True)
            folder_of(quick_path, step).with_name("latest").write_text(f"global_step{step}")
            checkpoint_record.write(
                folder_of(quick_path, step),
                step=step,
                config=R3Config(run_dir=str(quick_path)),
                history=record_of(quick_path / "history.sqlite", step),
            )
    yield quick_path, store
    store.close()


def folder_of(run, step):
    return run / "checkpoints" / "_actor" / f"global_step{step}"


def check(run, step):
    record = checkpoint_record.read(folder_of(run, step))
    check_checkpoint(run / "history.sqlite", record and record.history, step=step)


def test_a_record_is_the_same_whenever_it_is_taken(run_with_checkpoints):
    """While later steps evict, after a roll-back, above the floor: law."""
    run, store = run_with_checkpoints
    records = {
        step: checkpoint_record.read(folder_of(run, step)).history for step in (2, 4, 6, 8, 10)
    }
    assert records[10].rows == 6
    store.set_rollback_floor(4)
    for step in (4, 6, 8, 10):
        assert record_of(run / "history.sqlite", step) == records[step]
        check(run, step)
    assert verify(run / "history.sqlite").findings == []
    store.roll_back(6)
    assert record_of(run / "history.sqlite", 6) == records[6]
    folder_of(run, 6).with_name("latest").write_text("global_step6")
    assert verify(run / "history.sqlite").findings == []


def test_a_lost_or_older_store_is_noticed(run_with_checkpoints):
    run, store = run_with_checkpoints
    check(run, 10)
    store.roll_back(8)
    store.close()
    check(run, 8)
    with pytest.raises(
        HistoryError, match="checkpoint of step 10: it ends with step 8; .*checkpoint.force"
    ):
        check(run, 10)
    (run / "history.sqlite").write_bytes(b"")
    with pytest.raises(HistoryError, match="checkpoint of step 10: .* is empty"):
        check(run, 10)
    (run / "history.sqlite").unlink()
    with pytest.raises(HistoryError, match="checkpoint of step 10: there is no history store"):
        check(run, 10)


def test_a_checkpoint_without_a_record_compares_the_step(run_with_checkpoints):
    run, _ = run_with_checkpoints
    (folder_of(run, 10) / "r3.json").unlink()
    check(run, 10)
    with pytest.raises(HistoryError, match="it ends with step 10"):
        check(run, 12)


def test_a_damaged_record_is_a_finding(run_with_checkpoints):
    run, _ = run_with_checkpoints
    (folder_of(run, 10) / "r3.json").write_text("{")
    result = r3("history", "verify", str(run))
    assert (
        result.exit_code == 1
        and "r3.json is damaged" in result.output
        and "Traceback" not in result.output
    )
