"""The first screen of several runs, and of a run before its first step."""

import json
import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from r3_openrlhf.comparison.arms import compare
from r3_openrlhf.comparison.intervals import estimate
from r3_openrlhf.comparison.runs import read_run
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.view.app import create_app
from r3_openrlhf.view.better import _verdict, sentences
from r3_openrlhf.view.library import Library
from tests.comparison.synthetic import write_run


def page_of(path, address="/"):
    client = TestClient(create_app(Library([path])), base_url="http://localhost")
    return client.get(address).text


def text_of(html):
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


def study(folder, gains):
    """Arms of some seeds: arm -> gain over 0.4 at the end, by seed. Returns their comparison."""
    runs = [
        read_run(
            write_run(
                folder / f"{arm}_{seed}", arm=arm, seed=seed, accuracies=(0.1, 0.2, 0.4 + gain)
            )
        )
        for arm, by_seed in {"grpo": [0.0, 0.02, -0.02, 0.0], **gains}.items()
        for seed, gain in enumerate(by_seed, start=1)
    ]
    return compare(runs)


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        (
            [0.1, 0.12, 0.08, 0.11],
            r"^r3 is better than grpo by 10\.2 points, 95% interval \+9.*, 4 pairs of seeds",
        ),
        (
            [-0.1, -0.08, -0.12, -0.1],
            r"^r3 is worse than grpo by 10\.0 points, 95% interval -1.* to -.*, 4 pairs",
        ),
        (
            [0.1, -0.1, 0.1, -0.1],
            r"^Not decided: r3 differs from grpo by \+0\.0 points, 95% interval -\d.* to \+\d",
        ),
        (
            [0.01, 0.0],
            r"^Not decided: r3 is 0\.5 points below grpo, by seed \+1\.0, -2\.0; 2 pairs of seeds cannot tell",
        ),
        (
            [0.01],
            r"^Not decided: r3 is 1\.0 points above grpo; 1 pair of seeds cannot tell, at least 3 can",
        ),
    ],
)
def test_the_sentence_by_hand(tmp_path, gains, said):
    (sentence,) = sentences(study(tmp_path, {"r3": gains}), [])
    assert re.search(said, sentence), sentence
    assert "held-out accuracy at 400 generated tokens: 0." in sentence


@given(st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=6))
def test_a_winner_is_named_only_outside_of_the_interval(gains):
    """The law: "better" or "worse" stands if and only if the whole interval is on that side of 0."""
    found = estimate(gains)
    assert found is not None
    verdict = _verdict("r3", "grpo", found)
    has_interval = found.low is not None
    assert ("r3 is better" in verdict) == (has_interval and found.low > 0)
    assert ("r3 is worse" in verdict) == (has_interval and found.high < 0)
    assert verdict.startswith("Not decided") != (
        "r3 is better" in verdict or "r3 is worse" in verdict
    )


def test_the_best_arm_comes_first_and_what_is_left_out_is_named(tmp_path):
    comparison = study(tmp_path, {"dapo": [0.01, 0.0, 0.02], "rloo": [0.2, 0.2, 0.21]})
    found = sentences(comparison, ["x has just begun"])
    assert [one.split()[0] for one in found] == ["rloo", "Not", "Left"]
    assert sentences(None, ["no"]) == ["Which run is better is not known: no"]


def test_the_first_screen_of_four_runs(tmp_path):
    """Arm, seed and health of each; one box for what all of them lack; the settings that differ above the pictures."""
    study(tmp_path, {"r3": [0.1, 0.12, 0.08, 0.11]})
    page = page_of(tmp_path)
    better, table = page.index('id="better"'), page.index("<table")
    assert better < table < page.index('id="charts"')
    assert "r3 is better than grpo by 10.2 points" in page
    assert "replay.enabled" in page[better:table]
    head = re.findall("<th[^>]*>(.*?)</th>", page[table:])[:6]
    assert [text_of(one) for one in head] == ["run", "state", "arm", "seed", "health", "steps"]
    (row,) = re.findall(r'<tr data-item data-live="run r3_2">(.*?)</tr>', page, re.S)
    assert re.search("finished r3 2 (✓ good|! watch it|✗ wrong)", text_of(row)), text_of(row)
    assert page.count("This run has no rollouts/") == 1


def test_two_runs_show_their_settings_above_the_runs(tmp_path):
    for arm in ("grpo", "r3"):
        write_run(tmp_path / arm, arm=arm)
    page = page_of(tmp_path)
    assert page.index('id="differences"') < page.index("Each run in one line")
    assert "Not decided: r3 is 0.0 points above grpo; 1 pair of seeds cannot tell" in page


PAGE = {
    "used": 60,
    "read": 64,
    "left_out": {"longer than 490 tokens": 4, "equal to an earlier one": 0},
    "steps": 20,
    "examples": [
        {
            "uid": "a",
            "prompt": "<user>\nWhat is 17 + 4?",
            "references": ["21"],
            "read_as": ["21"],
            "said": [["\\boxed{21}", "correct"]],
        }
    ],
    "findings": [{"sentence": "the template ends a turn with <b>", "refuses": False}],
    "sources": ["problem: problem, answer: answer"],
    "overview": ["prompt 59"],
    "rewards": [],
    "algorithm": ["r3: estimator group_norm"],
    "imported": [],
    "found": ["CPUs: 2 of the 64 of this machine"],
}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            json.dumps(PAGE),
            [
                "64 rows read, 60 used; left out: 4 longer",
                "What is 17 + 4?",
                "\\boxed{21}: correct",
                "CPUs: 2 of the 64",
                "with <b>",
            ],
        ),
        (json.dumps(PAGE | {"examples": [{}]}), ["first_page.json is damaged"]),
        (json.dumps(PAGE | {"left_out": []}), ["first_page.json is damaged"]),
        ("{", ["first_page.json"]),
        (None, []),
    ],
)
def test_before_its_first_step_a_run_shows_what_it_reads(tmp_path, written, said):
    """The page was empty although first_page.json was there."""
    run = RunDirectory(tmp_path / "run")
    run.create(load_config("cpu_smoke", [f"run_dir={run.path}"]))
    if written is not None:
        run.first_page.write_text(written)
    page = page_of(run.path, "/run")
    assert ("Before step 1: what the run reads" in page) == bool(said)
    assert all(part in text_of(page) for part in said)
    run.append_metrics({"step": 1, "reward_mean": 0.5})
    assert "Before step 1: what the run reads" not in page_of(run.path, "/run")
