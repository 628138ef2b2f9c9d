"""`r3 report`: one page without scripts that says what the files say."""

import json
import re

import pytest

from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.effect import effect_of
from tests.commands import r3
from tests.view.conftest import axe_faults
from tests.view.story import Story


@pytest.fixture(scope="module")
def two(story, tmp_path_factory):
    """The story and another run on its problems, with other responses."""
    other = tmp_path_factory.mktemp("other") / "other"
    with Story(other, num_problems=20, seed=3) as run:
        for _ in range(6):
            run.step()
    return story, other


def test_the_report_of_two_runs(page, two, tmp_path):
    out = tmp_path / "made" / "report.html"
    done = r3("report", *map(str, two), "--out", str(out))
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{out}\n" and out.stat().st_size < 3_000_000
    page.goto(out.as_uri())
    assert page.locator("script, link, img, iframe, [src], a:not([href^='#'])").count() == 0
    said = page.locator("main > ul.plain li").all_text_contents()
    assert said == [
        text for run in two for text in effect_of(RunDirectory.open(run)).sentences()
    ]
    # the first and the last value of a curve, from the file
    lines = [json.loads(line) for line in (two[0] / "metrics.jsonl").read_text().splitlines()]
    told = (
        page.locator("figure", has_text="mean of a rollout")
        .locator("svg")
        .get_attribute("aria-label")
    )
    numbers = [
        float(text) for text in re.findall(r"story reward from ([\d.]+) to ([\d.]+)", told)[0]
    ]
    assert numbers == pytest.approx(
        [lines[0]["reward_mean"], lines[-1]["reward_mean"]], rel=5e-3
    )
    assert axe_faults(page) == []


def test_mistakes_are_one_sentence(two, tmp_path, monkeypatch):
    out = tmp_path / "report.html"
    out.write_text("mine")
    for arguments, sentence in (
        (
            [str(two[0]), "--out", str(out)],
            f"--out {out} exists; choose another file, or add --overwrite",
        ),
        (
            [str(tmp_path / "none"), "--out", "x.html"],
            f"{tmp_path / 'none'} does not exist; name run directories",
        ),
    ):
        done = r3("report", *arguments)
        assert done.exit_code == 1 and done.stderr.startswith(f"Error: {sentence}"), done.stderr
    assert out.read_text() == "mine"
