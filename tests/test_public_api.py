"""`import r3_openrlhf` is a library: names that load when they are used, and a loop that is not ours."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import r3_openrlhf

REPOSITORY = Path(__file__).parents[1]
OWN_LOOP = REPOSITORY / "examples" / "own_loop.py"


def test_every_public_name_is_there_and_is_the_one_of_its_home():
    from r3_openrlhf.method.core import mixed_batch, ranking

    for name in r3_openrlhf.__all__:
        assert getattr(r3_openrlhf, name) is not None and name in dir(r3_openrlhf)
    assert r3_openrlhf.MixedBatch is mixed_batch.MixedBatch
    assert r3_openrlhf.ranking_rewards is ranking.ranking_rewards
    with pytest.raises(AttributeError, match="no attribute 'MixdBatch'"):
        r3_openrlhf.MixdBatch  # noqa: B018


def test_importing_the_package_loads_nothing_else():
    code = "import sys; before = set(sys.modules); import r3_openrlhf; print(*sorted(m for m in set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert not {"torch", "numpy", "omegaconf", "r3_openrlhf.method.core", "r3_openrlhf.config"} & set(
        loaded.stdout.split()
    )


@pytest.fixture(scope="module")
def own_loop():
    import torch

    threads = torch.get_num_threads()
    spec = importlib.util.spec_from_file_location("own_loop", OWN_LOOP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    torch.set_num_threads(threads)


def mean(lines, name):
    return sum(line[name] for line in lines) / len(lines)


def test_the_own_loop_learns_recalls_reflects_and_ranks(own_loop):
    """Chance is about 0.01; the same seed gives the same run. Reflection begins with the second epoch, step 6."""
    lines = own_loop.train(60)
    assert mean(lines[:10], "accuracy") < 0.03 < 0.05 < mean(lines[-10:], "accuracy")
    assert sum(line["r3/replay/recalled"] for line in lines) > 20
    assert sum(line["r3/ranking/rows"] for line in lines) > 20
    assert [line["r3/reflection/groups"] for line in lines[:5]] == [0] * 5
    assert [line["r3/reflection/before_first_epoch"] for line in lines[:6]] == [20.0] * 5 + [0.0]
    assert mean(lines[5:], "r3/reflection/groups") > 0.9  # one of 20 problems a step, at most
    assert all(line["r3/grading/ungraded"] == 0 for line in lines)
    assert own_loop.train(8) == lines[:8]


def test_the_own_loop_is_short_and_needs_no_stack():
    text = OWN_LOOP.read_text()
    assert len(text.splitlines()) <= 150 and not re.search("r3_openrlhf.stack|import openrlhf|R3Config", text)
