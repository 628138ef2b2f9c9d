"""A place for stores whose durability is not what is tested: in memory where the system has such a file system."""

import tempfile
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def quick_path():
    with tempfile.TemporaryDirectory(
        dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    ) as directory:
        yield Path(directory)
