"""Attacks are held, with namespaces and without; and those that count as held get through where nothing stands in their way."""

from pathlib import Path

import pytest

from r3_openrlhf.rewards.code.run import Runner
from tests.rewards.code.attacks import ATTACKS, SECRET, attack, outside


@pytest.fixture(scope="module", params=["bubblewrap", "none"])
def runner(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("R3_SECRET", SECRET)
        yield from _runner(request)


def _runner(request):
    with Runner(namespaces=request.param) as runner:
        try:
            runner.start()
        except OSError as error:
            pytest.skip(str(error))
        yield runner
        left = descendants(runner._zygote.pid)
        assert left in ([], ["bwrap", "python"]), left


def descendants(pid: int) -> list[str]:
    """The names of the processes below one."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(child) for file in files for child in file.read_text().split()]
    return [Path(f"/proc/{child}/comm").read_text().strip() for child in below] + [
        name for child in below for name in descendants(child)
    ]


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_held(runner, name):
    found = attack(runner, name)
    assert found.is_held, found
    assert ATTACKS[name].how


@pytest.mark.parametrize("name", [name for name, one in ATTACKS.items() if one.outside])
def test_it_gets_through_outside(tmp_path, name, monkeypatch):
    """So each of these programs can show that a barrier is missing."""
    monkeypatch.setenv("R3_SECRET", SECRET)
    assert "THROUGH" in outside(name, tmp_path)
