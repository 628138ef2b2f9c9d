"""Several runs: small multiples, hidden runs, means of arms, the tables of `r3 compare`, and evaluations with their differences."""

import json
import re
import shutil
import statistics

import pytest

from r3_openrlhf.comparison.arms import compare
from r3_openrlhf.comparison.intervals import estimate
from r3_openrlhf.comparison.runs import read_run
from r3_openrlhf.comparison.table import table_rows
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.rollout_files import file_of
from r3_openrlhf.view.curves import arms_of
from tests.runs.records import rollout
from tests.view.charts import all_drawn
from tests.view.conftest import axe_faults, follow, serving
from tests.view.evaluations import write_evaluation
from tests.view.story import Story

RUNS = {"plain_1": (1, "plain"), "plain_2": (2, "plain"), "r3_1": (1, "r3"), "r3_2": (2, "r3")}


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """Two arms with two seeds each, of four steps, and two evaluations."""
    directory = tmp_path_factory.mktemp("arms")
    for name, (seed, arm) in RUNS.items():
        settings = (f"arm={arm}", f"replay.enabled={'true' if arm == 'r3' else 'false'}")
        with Story(directory / name, num_problems=12, seed=seed, settings=settings) as run:
            for _ in range(4):
                run.step()
    for name, skill, seed in (("base", 0.35, 1), ("trained", 0.65, 2)):
        write_evaluation(
            directory / "evaluations" / name, skill=skill, seed=seed, num_problems=12
        )
    return directory


@pytest.fixture(scope="module")
def many(arms, tmp_path_factory):
    with serving(arms) as address:
        yield address


def columns(name, steps, values, held_out=()):
    axis = {
        "steps": [step for step, _ in held_out],
        "tokens": [100 * step for step, _ in held_out],
    }
    series = {"fresh/reward": values, "held_out:pass_at_1": [value for _, value in held_out]}
    return {
        "name": name,
        "steps": steps,
        "tokens": [100 * n for n in steps],
        "held_out": axis,
        "series": series,
    }


def test_an_arm_is_the_mean_of_its_runs_with_students_interval():
    """Agrees with `estimate`; a step that one run does not have is the mean of the others, without an interval below three."""
    runs = [
        columns("a", [1, 2, 3], [0.1, 0.4, None], [(2, 0.5)]),
        columns("b", [1, 2], [0.3, 0.2], [(2, 0.7)]),
        columns("c", [1, 2, 3], [0.8, 0.1, 0.9]),
        columns("other", [1], [5.0]),
    ]
    arm, other = arms_of({"a": "arm", "b": "arm", "c": "arm", "other": "other"}, runs)
    assert (arm["name"], arm["runs"], arm["steps"], other["runs"]) == (
        "arm",
        ["a", "b", "c"],
        [1, 2, 3],
        ["other"],
    )
    for place, values in enumerate(([0.1, 0.3, 0.8], [0.4, 0.2, 0.1])):
        found = estimate(values)
        told = [arm[key]["fresh/reward"][place] for key in ("series", "low", "high")]
        assert told == pytest.approx([found.mean, found.low, found.high], rel=1e-4)
    assert [arm[key]["fresh/reward"][2] for key in ("series", "low", "high")] == [
        0.9,
        None,
        None,
    ]
    assert arm["series"]["held_out:pass_at_1"] == pytest.approx([0.6]) and arm["held_out"][
        "steps"
    ] == [2]
    assert other["series"]["fresh/reward"] == [5.0] and other["low"] == {}


def told(page, name):
    """What the chart of the reward says of a run or an arm, once it is drawn."""
    figure = page.locator(
        "figure", has=page.locator("figcaption", has_text=re.compile("^Reward"))
    ).first
    return float(figure.locator("li", has_text=name).text_content().split()[-1])


def test_runs_are_hidden_grouped_and_sorted(page, many, arms):
    page.goto(many)
    last = [
        json.loads((arms / name / "metrics.jsonl").read_text().splitlines()[-1])["reward_mean"]
        for name in RUNS
    ]
    assert [told(page, name) for name in RUNS] == pytest.approx(last, rel=5e-3)
    page.get_by_role("button", name="plain_1", exact=True).click()
    page.wait_for_url("**?hide=plain_1")
    page.reload()
    assert told(page, "plain_2") == pytest.approx(last[1], rel=5e-3)
    all_drawn(page)
    assert page.locator(".chart li", has_text="plain_1").count() == 0
    page.get_by_role("button", name="all", exact=True).click()
    page.get_by_role("button", name="mean of each arm").click()
    assert page.locator("#shown-runs button").all_text_contents()[:2] == [
        "plain (2 runs)",
        "r3 (2 runs)",
    ]
    # two runs have no interval, so that the picture has them: the mean of each arm and four thin lines
    assert "plain_1 reward from" in page.locator("figure", has_text="Reward").first.locator(
        "[role=img]"
    ).get_attribute("aria-label")
    means = [statistics.fmean(last[:2]), statistics.fmean(last[2:])]
    assert [told(page, name) for name in ("plain", "r3")] == pytest.approx(means, rel=5e-3)
    head = page.locator("table.sortable th", has_text="tokens sampled")
    for order, down in (("descending", True), ("ascending", False)):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == order
        cells = [
            int(t.replace(",", ""))
            for t in page.locator("table.sortable td:nth-child(8)").all_text_contents()
        ]
        assert cells == sorted(cells, reverse=down) and len(set(cells)) > 1


def test_two_runs_have_their_settings_curves_and_flipped_problems_in_one_place(page, tmp_path):
    """Of four responses a problem is right with three. Problem p falls, q rises, r stays; s has a half, which is not right."""
    right = {"one": {"p": 4, "q": 1, "r": 3, "s": 2}, "two": {"p": 0, "q": 3, "r": 4, "s": 0}}
    for number, (name, counts) in enumerate(right.items()):
        run = RunDirectory(tmp_path / name)
        run.create(load_config("cpu_smoke", [f"run_dir={run.path}", f"replay.k={number + 2}"]))
        run.append_metrics({"step": 1, "reward_mean": 0.5})
        for step in (0, 4 + number, 4):  # the newest of both is 4, where one has a later one
            verdicts = [(uid, n < count) for uid, count in counts.items() for n in range(4)]
            found = [
                rollout(step, uid=uid, verdict="correct" if good else "wrong")
                for uid, good in verdicts
            ]
            run.write_held_out(step, found if step == 4 else found[:4])
    with serving(tmp_path, page=page) as address:
        page.goto(f"{address}/one")
        follow(page, page.get_by_role("button", name="Compare"), "**/?run=one&run=two")
        rows = [
            row.locator("th, td").all_text_contents()
            for row in page.locator("#flipped tbody tr").all()
        ]
        assert rows == [["p", "100 %", "0 %"], ["q", "25 %", "75 %"]]
        assert (
            "After step 4, 2 of the 4 held-out problems"
            in page.locator("#pair p").first.text_content()
        )
        settings = [
            row.locator("th, td").all_text_contents()
            for row in page.locator("#differences tbody tr").all()
        ]
        assert ["replay.k", "2", "3"] in settings
        page.locator("figcaption", has_text="Reward").first.wait_for()
        assert axe_faults(page) == []
        file_of(tmp_path / "two" / "held_out", 4).write_bytes(b"no Parquet")
        page.reload()
        assert "step_000004.parquet is damaged" in page.locator("#pair p.note").text_content()
        shutil.rmtree(tmp_path / "two" / "held_out")
        page.reload()
        assert (
            page.locator("#pair p.note")
            .text_content()
            .startswith("Nothing to compare: both runs need held-out")
        )


def test_the_arms_are_compared_as_the_command_does(page, many, arms):
    page.goto(many)
    follow(page, page.get_by_role("link", name="Compare the arms"))
    follow(page, page.locator("nav a", has_text="r3"))
    expected = compare(
        [read_run(arms / name, unfinished=True) for name in RUNS], reference="r3"
    )
    shown = [
        row.locator("th, td").all_text_contents()
        for row in page.locator("#comparison tr").all()
    ]
    head, *rows = table_rows(expected)
    assert shown == [head, *rows[:4], head, *rows[4:]] and len(shown) > 20
    assert axe_faults(page) == []
    page.goto(f"{many}/compare?run=r3_1&run=r3_2&reference=nobody")
    assert "no run has the reference arm 'nobody'" in page.locator("p.note").text_content()


def test_evaluations_have_their_paired_difference(page, many, arms):
    """Share of trained less share of base, problem by problem."""

    def shares(name):
        lines = (arms / "evaluations" / name / "samples.jsonl").read_text().splitlines()
        return [
            statistics.fmean(r["verdict"] == "correct" for r in json.loads(line)["responses"])
            for line in lines
        ]

    found = estimate([b - a for a, b in zip(shares("base"), shares("trained"), strict=True)])
    said = f"{100 * found.mean:+.1f} {100 * found.low:+.1f} to {100 * found.high:+.1f}".replace(
        "-", "−"
    )
    page.goto(many)
    assert said in page.locator("tr", has_text="trained").first.text_content()
    follow(page, page.get_by_role("link", name="problems"), "**/compare/base/trained")
    assert said in " ".join(page.locator("main p").first.text_content().split())
