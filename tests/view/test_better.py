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
from tests.view.evaluations import write_evaluation


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


def evaluated_twice(path, *, kept, alike=False):
    """A run whose held-out accuracy rises by 29.2 points; responses to `kept` problems are there of both
    evaluations, of which each (alike) or all but one were wrong and became right."""
    run = RunDirectory(write_run(path, accuracies=(0.125, 0.417), every_steps=4))
    rows = {"context": "plain", "group": 0, "truncated": False, "num_tokens": 1}
    step_row = {"uid": "a", "advantage": 0.0, "recalled_from": None, "ranked": False}
    run.write_rollouts(1, [rows | step_row | {"step": 1, "verdict": "wrong"}])
    for step, verdict in ((0, "wrong"), (4, "correct")):
        run.write_held_out(
            step,
            [
                rows
                | step_row
                | {
                    "step": step,
                    "uid": f"p{n}",
                    "verdict": "wrong" if n == 0 and not alike else verdict,
                }
                for n in range(kept)
            ],
        )
    return run


@pytest.mark.parametrize(
    ("kept", "alike", "why"),
    [
        (
            0,
            False,
            "responses to 0 problems are kept of both evaluations, and an interval needs 3",
        ),
        (
            2,
            False,
            "responses to 2 problems are kept of both evaluations, and an interval needs 3",
        ),
        (6, True, "all 6 problems changed alike"),
        (6, False, None),
    ],
)
def test_held_out_accuracy_has_one_statement_with_its_doubt(tmp_path, kept, alike, why):
    """One box said "not decided", and the sentence below it "+29.2 points"."""
    run = evaluated_twice(tmp_path / "run", kept=kept, alike=alike)
    page = text_of(page_of(run.path, "/run?counted"))
    decided = "Held-out accuracy from step 0 to 4: 0.125 -> 0.417, +29.2 points ["
    assert (decided in page) == (why is None)
    assert ("rises: held-out accuracy 0.125 → 0.417" in page) == (why is None)
    box = f"not decided: held-out accuracy 0.125 → 0.417, without an interval ({why})"
    line = f"Not decided: held-out accuracy from step 0 to 4: 0.125 -> 0.417, +29.2 points, without an interval ({why})."
    assert (box in page) == (line in page) == (why is not None), page[:2000]


def test_what_cannot_be_compared_says_so_at_its_link(tmp_path):
    """Runs without an evaluation of held-out problems; the page of the arms begins with the verdict."""
    for arm in ("grpo", "r3"):
        write_run(tmp_path / arm, arm=arm, evaluations=[])
    assert "Compare the arms not possible yet, for the reason at" in text_of(page_of(tmp_path))
    alone = text_of(page_of(tmp_path, "/grpo"))
    assert "but not which is better: this run has no evaluation of held-out problems" in alone
    study(tmp_path / "study", {"r3": [0.1, 0.12, 0.08, 0.11]})
    page = page_of(tmp_path / "study", "/compare")
    assert page.index("r3 is better than grpo by 10.2 points") < page.index("<table")
    assert "not possible yet" not in page_of(tmp_path / "study")


def test_evaluations_of_other_problems_say_so_at_their_links(tmp_path):
    write_evaluation(tmp_path / "base", skill=0.4, seed=0, num_problems=4)
    write_evaluation(tmp_path / "same", skill=0.6, seed=1, num_problems=4)
    write_evaluation(tmp_path / "other", skill=0.6, seed=1, num_problems=4)
    samples = tmp_path / "other" / "samples.jsonl"
    samples.write_text(samples.read_text().replace('"math500"', '"aime"'))
    rows = re.findall(r"<tr data-item.*?</tr>", page_of(tmp_path), re.S)
    said = {text_of(one).split()[0]: "no shared problem" in text_of(one) for one in rows}
    assert said == {"base": False, "other": True, "same": False}
    links = text_of(page_of(tmp_path, "/base")).partition("Compare with ")[2]
    assert links.startswith("other (no shared problem) , same ")


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
    later = page_of(run.path, "/run/files")
    # code_state.txt is on this page, too: the checkout's own changes
    shown = later.partition('<h2 id="first-page">')[2].partition("</dl>")[0]
    assert bool(shown) == bool(said)
    assert all(part in text_of(shown) for part in said)
