"""The plots show what they are given: every arm in its colour, another picture for other numbers, nothing unmeasured."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
from PIL import Image, ImageColor

from r3_openrlhf.comparison.arms import compare
from r3_openrlhf.comparison.plots import COLOURS, plot
from r3_openrlhf.comparison.runs import read_run
from tests.comparison.synthetic import metrics_of, write_run

AVERAGED = {"groups.png", "entropy.png", "response_length.png", "truncation.png"}
ALL = {"accuracy_tokens.png", "accuracy_steps.png", *AVERAGED}
MEASURED = {"r3/groups/none_correct": 1.0, "r3/groups/collapsed_after": 1.0, "fresh/entropy": 0.3}
MEASURED |= {"response_length_mean": 20.0, "truncated_rate": 0.1}


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch):
    """By its clock every legend takes seconds to place, of which matplotlib warns where nobody chose a place."""
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=itertools.count(step=2).__next__))


def colours_of(file) -> Counter:
    with Image.open(file) as image:
        pixels = image.convert("RGB")
        return Counter({colour: count for count, colour in pixels.getcolors(maxcolors=pixels.width * pixels.height)})


def write_lab(folder, **r3):
    paths = []
    for seed in (1, 2):
        measured = MEASURED | {"r3/groups/all_correct": 2.0 + seed} | r3
        metrics = [metrics_of(step, **measured) for step in range(1, 5)]
        ends = 0.3 + seed / 100, 0.6 + seed / 100
        paths.append(write_run(folder / f"grpo_{seed}", seed=seed, accuracies=(0.1, 0.2, ends[0])))
        r3_run = dict(arm="r3", seed=seed, accuracies=(0.1, 0.3, ends[1]), metrics=metrics)
        paths.append(write_run(folder / f"r3_{seed}", **r3_run))
    return [read_run(path) for path in paths]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_lab(tmp_path_factory.mktemp("lab"))


def test_every_plot_is_there_and_shows_every_arm(runs, tmp_path):
    names = plot(runs, compare(runs), tmp_path, window=2)
    assert set(names) == ALL == {file.name for file in tmp_path.iterdir()}
    for name in names:
        colours = colours_of(tmp_path / name)
        assert len(colours) > 20
        assert colours[ImageColor.getrgb(COLOURS[0])] > 200, name
        assert colours[(0, 0, 0)] > 200, name


def test_equal_numbers_give_equal_files_and_others_do_not(runs, tmp_path):
    for folder, window in (("one", 2), ("same", 2), ("other", 1)):
        (tmp_path / folder).mkdir()
        plot(runs, compare(runs), tmp_path / folder, window=window)
    for name in ALL:
        content = [(tmp_path / folder / name).read_bytes() for folder in ("one", "same", "other")]
        assert content[0] == content[1]
        assert (content[0] != content[2]) == (name in AVERAGED)


def test_dropped_groups_have_a_panel_where_groups_are_dropped(tmp_path):
    for name, dropped in (("none", 0.0), ("some", 3.0)):
        runs = write_lab(tmp_path / name / "lab", **{"r3/filter/dropped_groups": dropped})
        plot(runs, compare(runs), tmp_path / name, window=1)
    with Image.open(tmp_path / "none" / "groups.png") as none, Image.open(tmp_path / "some" / "groups.png") as some:
        assert none.width * 4 == some.width * 3


def test_what_no_run_has_measured_has_no_plot(tmp_path):
    bare = [{"step": step, "generated_tokens_total": 100 * step} for step in (1, 2)]
    run = read_run(write_run(tmp_path / "run", accuracies=(0.1, 0.2), metrics=bare))
    names = plot([run], compare([run], target=0.9), tmp_path, window=10)
    assert names == ["accuracy_tokens.png", "accuracy_steps.png"]


def test_an_arm_that_has_not_measured_it_is_left_out(tmp_path):
    runs = write_lab(tmp_path / "lab", **{"fresh/entropy": None})
    plot(runs, compare(runs), tmp_path, window=1)
    assert ImageColor.getrgb(COLOURS[0]) not in colours_of(tmp_path / "entropy.png")
    assert ImageColor.getrgb(COLOURS[0]) in colours_of(tmp_path / "truncation.png")
