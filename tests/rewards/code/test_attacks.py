"""Attacks are held, with namespaces and without; and those that count as held get through where nothing stands in their way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from r3_openrlhf.rewards.code.run import Runner
from tests.rewards.code.attacks import ATTACKS, SECRET, attack, outside
from tests.rewards.code.processes import descendants


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
        left = descendants(runner._zygote.process.pid)
        assert left in ([], ["bwrap", "python"]), left


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_held(runner, name):
    result = attack(runner, name)
    assert result.is_held, result
    assert ATTACKS[name].how


@pytest.mark.parametrize("name", [name for name, known in ATTACKS.items() if known.outside])
def test_it_gets_through_outside(tmp_path, name, monkeypatch):
    """So each of these programs can show that a barrier is missing."""
    monkeypatch.setenv("R3_SECRET", SECRET)
    assert "THROUGH" in outside(name, tmp_path)


def _everywhere(*command):
    """What tests/rewards/code/everywhere.py prints where this command starts it."""
    places = [str(Path(__file__).parents[3]), str(Path(msgspec.__file__).parents[1])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    program = "-B -m tests.rewards.code.everywhere short"
    for python in (
        sys.executable,
        f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}",
    ):
        # by a shell: what starts it may still have rights that the user has not
        tried = [*command, "sh", "-c", f"{python} -c 'import msgspec'"]
        if subprocess.run(tried, capture_output=True, env=variables).returncode == 0:
            break
    else:
        pytest.skip("no interpreter can be started that way")
    done = subprocess.run(
        [*command, "sh", "-c", f"{python} {program}"],
        capture_output=True,
        text=True,
        env=variables,
        cwd="/",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    if python != sys.executable:  # which has no numpy
        result["wrong"] = [line for line in result["wrong"] if "numpy" not in line]
    return result


def test_another_user():
    result = _everywhere("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    assert (result["wrong"], result["got through"]) == ([], [])
    assert (result["user"], result["honest"] > 60, result["attacks"] > 60) == (
        65534,
        True,
        True,
    )


def test_a_machine_without_user_namespaces():
    none = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all"
    result = _everywhere("unshare", "-Ur", "sh", "-c", f'{none} "$@"', "sh")
    assert (result["wrong"], result["got through"]) == ([], [])
    assert result["barriers"] == {"namespaces": False, "landlock": True, "seccomp": True}
