"""The plots show what they are given: every arm in its colour, another picture for other numbers."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
from PIL import Image, ImageColor

from r3_openrlhf.comparison.arms import compare
from r3_openrlhf.comparison.plots import COLOURS, plot
from r3_openrlhf.comparison.runs import read_run
from tests.comparison.synthetic import write_run


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch):
    """By its clock every legend takes seconds to place, of which matplotlib warns where nobody chose a place."""
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=itertools.count(step=2).__next__))


def colours_of(file) -> Counter:
    with Image.open(file) as image:
        pixels = image.convert("RGB")
        return Counter({colour: count for count, colour in pixels.getcolors(maxcolors=pixels.width * pixels.height)})


def write_lab(folder):
    paths = []
    for seed in (1, 2):
        ends = 0.3 + seed / 100, 0.6 + seed / 100
        paths.append(write_run(folder / f"grpo_{seed}", seed=seed, accuracies=(0.1, 0.2, ends[0])))
        paths.append(write_run(folder / f"r3_{seed}", arm="r3", seed=seed, accuracies=(0.1, 0.3, ends[1])))
    return [read_run(path) for path in paths]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_lab(tmp_path_factory.mktemp("lab"))


def test_every_plot_is_there_and_shows_every_arm(runs, tmp_path):
    names = plot(runs, compare(runs), tmp_path)
    assert {"accuracy_tokens.png", "accuracy_steps.png"} == set(names) == {file.name for file in tmp_path.iterdir()}
    for name in names:
        colours = colours_of(tmp_path / name)
        assert len(colours) > 20
        assert colours[ImageColor.getrgb(COLOURS[0])] > 200, name
        assert colours[(0, 0, 0)] > 200, name


def test_equal_numbers_give_equal_files_and_others_do_not(runs, tmp_path):
    for folder, target in (("one", None), ("same", None), ("other", 0.9)):
        (tmp_path / folder).mkdir()
        plot(runs, compare(runs, target=target), tmp_path / folder)
    one, same, other = (
        (tmp_path / folder / "accuracy_tokens.png").read_bytes() for folder in ("one", "same", "other")
    )
    assert one == same != other
