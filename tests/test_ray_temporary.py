"""Contract with the installed Ray: where it keeps its files. tests/stack/test_doors.py measures how long their paths are."""

import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.machine.ray_temporary import private_directory, ray_temporary, sweep

pytestmark = pytest.mark.stack


def test_it_is_the_directory_that_ray_chooses(monkeypatch):
    utils = pytest.importorskip("ray._common.utils")
    for variables in (
        {},
        {"TMPDIR": "/a"},
        {"RAY_TMPDIR": "/b"},
        {"TMPDIR": "/a", "RAY_TMPDIR": "/b"},
    ):
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert str(ray_temporary()) == utils.get_default_system_temp_dir()


def test_a_private_directory_is_open_to_its_user_alone_and_goes_with_its_block(tmp_path):
    with (
        private_directory(tmp_path / "new") as first,
        private_directory(tmp_path / "new") as second,
    ):
        assert first != second and first.is_dir()
        assert first.parent.stat().st_mode & 0o777 == 0o700
        assert sweep(tmp_path / "new") == []
    assert list((tmp_path / "new").iterdir()) == []


def test_what_a_killed_process_has_left_is_swept(tmp_path):
    program = (
        "import os, pathlib, sys\n"
        "from r3_openrlhf.machine.ray_temporary import private_directory\n"
        "with private_directory(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=Path(__file__).parents[1])
    (left,) = tmp_path.iterdir()
    assert sweep(tmp_path) == [str(left)] and not left.exists()
