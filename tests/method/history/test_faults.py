"""What can happen to a file: one sentence each, and nothing that was committed is lost."""

import os
import resource
import sqlite3

import numpy as np
import pytest

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.operations.store.verification import verify
from tests.method.history.children import in_child

from .samples import dump, make_rollout

rng = np.random.default_rng(0)


def big_step(num=40, tokens=4000):
    return [
        make_rollout(
            f"p{n}",
            ids=rng.integers(0, 10**6, tokens),
            logprobs=-np.abs(rng.standard_normal(tokens)),
        )
        for n in range(num)
    ]


@pytest.fixture
def written(tmp_path):
    """A closed store with three steps."""
    path = tmp_path / "history.sqlite"
    with HistoryStore.open(path) as store:
        for step in (1, 2, 3):
            store.commit_step(step, 1, [make_rollout(ids=[step, n] * 200) for n in range(8)])
    return path


def test_a_full_disk(written):
    """RLIMIT_FSIZE: the kernel refuses to let the file, or its journal, grow."""
    before = dump(written)

    def commit():
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (written.stat().st_size + 200_000, resource.RLIM_INFINITY)
        )
        store = HistoryStore.open(written)
        try:
            store.commit_step(4, 1, big_step())
        except HistoryError as error:
            assert store.last_step == 3
            store.commit_step(5, 1, [make_rollout()])  # a small one still fits
            store.close()
            return str(error)

    sentence = in_child(commit)
    assert "cannot commit step 4" in sentence and "nothing earlier is lost" in sentence
    assert verify(written).findings == []
    with HistoryStore.open(written) as store:
        assert store.last_step == 5
        store.roll_back(3)
    assert dump(written) == before


def test_a_full_disk_as_sqlite_reports_it(tmp_path):
    with HistoryStore.open(tmp_path / "history.sqlite") as store:
        store.commit_step(1, 1, [make_rollout()])
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages + 10}")
        with pytest.raises(
            HistoryError,
            match="cannot commit step 2 to .*: the disk is full; .* free space and resume",
        ):
            store.commit_step(2, 1, big_step())
        assert store.last_step == 1
    assert verify(tmp_path / "history.sqlite").findings == []


def sql(statement):
    def damage(path):
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()

    return damage


def another_program(path):
    path.unlink()
    sql("CREATE TABLE t (x)")(path)


def no_file(path):
    path.unlink()
    path.mkdir()


DAMAGE = {  # to a sound store -> the sentence for a reader, a writer and `r3 history verify`
    "cut by a hundredth": (
        lambda path: os.truncate(path, int(path.stat().st_size * 0.99)),
        "is damaged or is no history store",
    ),
    "cut in half": (
        lambda path: os.truncate(path, path.stat().st_size // 2),
        "is damaged or is no history store",
    ),
    "a beginning": (
        lambda path: os.truncate(path, path.stat().st_size // 20),
        "is damaged or is no history store",
    ),
    "garbage": (
        lambda path: path.write_bytes(rng.bytes(20_000)),
        "is damaged or is no history store",
    ),
    "another program's": (another_program, "is an SQLite file of another program"),
    "an older schema": (
        sql("PRAGMA user_version = 3"),
        "has schema 3, and this r3_openrlhf reads the schemas 9 and 10: use the",
    ),
    "a newer schema": (
        sql("PRAGMA user_version = 99"),
        "has schema 99, and this r3_openrlhf reads the schemas 9 and 10: use the",
    ),
    "a directory": (no_file, "cannot open|there is no history store at"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_one_sentence(written, kind):
    damage, sentence = DAMAGE[kind]
    damage(written)
    for use in (HistoryStore.open, lambda path: HistoryStore.open(path, writer=False), verify):
        with pytest.raises(HistoryError, match=sentence):
            use(written)


def test_no_file_and_an_empty_one(tmp_path):
    empty, nowhere = tmp_path / "history.sqlite", tmp_path / "nowhere" / "history.sqlite"
    empty.touch()
    with pytest.raises(HistoryError, match="is empty: no step was written to it"):
        HistoryStore.open(empty, writer=False)
    HistoryStore.open(empty).close()
    with pytest.raises(HistoryError, match="cannot create .*: its directory does not exist"):
        HistoryStore.open(nowhere)
    with pytest.raises(HistoryError, match="there is no history store at"):
        HistoryStore.open(nowhere, writer=False)


def test_garbage_inside_the_file_is_found(written):
    """Every page but the first is overwritten in turn; verify never calls the result sound."""
    whole = written.read_bytes()
    for page in range(1, len(whole) // 4096):
        written.write_bytes(whole[: page * 4096] + rng.bytes(4096) + whole[(page + 1) * 4096 :])
        try:
            findings = verify(written).findings
        except HistoryError as error:
            findings = [str(error)]
        assert findings, f"page {page}"


def as_somebody_else(function):
    """In a child; as user 65534 when we are root, whom permissions do not stop."""

    def run():
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        return function()

    return in_child(run)


@pytest.fixture
def read_only(written):
    """The directory of the store, reachable but not writable."""
    directory = written.parent
    above = [
        path
        for path in directory.parents
        if path.stat().st_uid == os.geteuid() and str(path).startswith("/tmp/")
    ]
    modes = {path: path.stat().st_mode for path in [*above, directory, written]}
    for path in above:
        path.chmod(modes[path] | 0o055)
    for path in directory.iterdir():
        path.chmod(0o444)
    directory.chmod(0o555)
    yield written
    for path, mode in modes.items():
        path.chmod(mode)


def test_a_directory_that_cannot_be_written(read_only):
    answer = as_somebody_else(lambda: HistoryStore.open(read_only).close())
    assert (
        "cannot write the lock file" in answer["error"]
        and "Permission denied" in answer["error"]
    )
    answer = as_somebody_else(
        lambda: HistoryStore.open(read_only.with_name("new.sqlite")).close()
    )
    assert "Permission denied" in answer["error"]


def test_somebody_else_can_read(read_only):
    def read():
        assert not os.access(read_only.parent, os.W_OK)
        with HistoryStore.open(read_only, writer=False) as store:
            found = store.recall("p", Verdict.WRONG, k=99, step=3, max_policy_lag=99)
            return [store.last_step, len(found), verify(read_only).findings]

    assert as_somebody_else(read) == [3, 24, []]
