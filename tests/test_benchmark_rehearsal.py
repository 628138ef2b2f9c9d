"""The rehearsal's population and its report; the whole of it runs as `python benchmarks/rehearsal.py`."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def rehearsal():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import rehearsal

        yield rehearsal
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_population_has_the_mean_that_was_asked_for_and_improves(rehearsal):
    population = rehearsal.Population(2000, mean_tokens=4096, longest=8192)
    rng = np.random.default_rng(3)
    first = [population.draw(rng, problem, epoch=1) for problem in range(2000)]
    last = [population.draw(rng, problem, epoch=3) for problem in range(2000)]
    lengths = np.array([length for length, _ in first])
    assert lengths.mean() == pytest.approx(4096, rel=0.05)
    assert lengths.max() == 8192 and not any(right for length, right in first if length == 8192)
    assert sum(right for _, right in last) > sum(right for _, right in first) + 100
    again = rehearsal.Population(2000, mean_tokens=4096, longest=8192)
    assert again.median == population.median and (again.log_odds == population.log_odds).all()


def _line(step: int, epoch: float, **numbers: float) -> dict:
    seconds = dict(wall_s=2.0, controller_cpu_s=1.0, own_wall_s=0.5, own_cpu_s=0.25)
    sizes = dict(rss=100 + step, object_store=7 * step, disk=10 * step, history=5 * step)
    return {"step": step, "epoch": epoch, **seconds, **sizes, "generated_tokens": 50.0, **numbers}


def test_the_report_by_hand(rehearsal):
    """Epoch 2: of three collapsed groups one has a recall, one was never sampled, one has lost its rows: half of those known."""
    second = {
        "r3/replay/hits": 1.0,
        "r3/replay/misses": 2.0,
        "r3/history/never_sampled": 1.0,
        "r3/replay/recalled": 2.0,
    }
    lines = [_line(1, 1.0), _line(2, 2.0, **second), _line(3, 2.0, wall_s=4.0)]
    found = rehearsal.report(lines, 12.5)
    assert (found["num_steps"], found["wall_s"], found["own_cpu_s"], found["resumed_s"]) == (3, 2.0, 0.25, 12.5)
    assert (found["rss_at_end"], found["object_store_max"], found["disk_at_end"]) == (103, 21, 30)
    first, second = found["epochs"]
    assert (first["epoch"], first["coverage"], first["steps"]) == (1, None, 1)
    assert (second["coverage"], second["replay/recalled"], second["steps"]) == (0.5, 2.0, 2)
