"""Journal by file system, from mount tables written by hand."""

from pathlib import Path

import pytest

from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history import HistoryStore
from r3_openrlhf.history.filesystem import LOCAL_TYPES, choose_journal, file_system_type
from r3_openrlhf.history.inspection import statistics

TABLE = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 22 0:35 / /home rw,relatime shared:2 - nfs4 filer:/home rw,vers=4.2
41 22 0:36 / /scratch rw shared:3 master:1 - lustre mgs@tcp:/scratch rw,flock
42 41 0:37 / /scratch/local rw - xfs /dev/sdb1 rw
43 22 0:38 / /with\\040space rw - tmpfs tmpfs rw
44 22 0:39 / /twice rw - ext4 /dev/sdc1 rw
45 44 0:40 / /twice rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/run.sqlite", "ext4"),
        ("/home/me/runs/a/history.sqlite", "nfs4"),
        ("/homeless", "ext4"),  # a prefix of the text, not of the path
        ("/scratch/x", "lustre"),
        ("/scratch/local/x", "xfs"),
        ("/with space/x", "tmpfs"),
        ("/twice/x", "fuse.sshfs"),
    ],
)
def test_the_longest_mount_point_decides(path, kind):
    assert file_system_type(Path(path), mountinfo=TABLE) == kind


def test_only_known_local_file_systems_get_the_wal():
    assert {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "9p", "fuse.sshfs", None}.isdisjoint(LOCAL_TYPES)


def test_auto_asks_the_real_mount_table(tmp_path):
    assert choose_journal(tmp_path) == ("wal" if file_system_type(tmp_path) in LOCAL_TYPES else "delete")


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_the_journal_asked_for_is_used(tmp_path, journal):
    path = tmp_path / "history.sqlite"
    with HistoryStore.open(path, journal=journal):
        assert statistics(path)["journal"] == journal


def test_a_store_changes_its_journal_when_it_moves(tmp_path):
    path = tmp_path / "history.sqlite"
    for journal in ("wal", "delete", "wal"):
        with HistoryStore.open(path, journal=journal) as store:
            store.commit_step((store.last_step or 0) + 1, 1, [])
            assert statistics(path)["journal"] == journal


def test_an_unknown_journal_is_named():
    with pytest.raises(HistoryError, match="'off'; use one of auto, wal, delete"):
        HistoryStore.open(":memory:", journal="off")
