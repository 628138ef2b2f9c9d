"""What the pages are made of, without a browser."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.groups import ABSENT, RecallFate
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import Context
from r3_openrlhf.problems.label import Label
from r3_openrlhf.runs import group_report, report
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.step_groups import groups_of
from r3_openrlhf.view.app import create_app
from r3_openrlhf.view.group_page import group_page, step_page, tokens_page
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.problem_page import problem_page
from r3_openrlhf.view.rendering import environment, json_block, render, signed
from r3_openrlhf.view.responses import of_group, ranked_points, reward_parts
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.tokens import TokenTexts, TokenValues, peak_tokens, token_values
from tests.view.story import Story

REPOSITORY = Path(__file__).parents[2]


def row(**changes):
    return {
        "uid": "u",
        "context": "plain",
        "group_replay": None,
        "group_ranking": None,
        "ranking_reward": None,
        "verdict": "wrong",
        "reason": "wrong",
        "reward": 0.0,
        "outcome_reward": 0.0,
        "ranked": False,
        "advantage": 0.0,
        "recalled_from": None,
        "truncated": False,
        "num_tokens": 10,
        "entropy_peak": None,
        "entropy_global": None,
    } | changes


# ── groups ──


def test_a_row_from_elsewhere_names_its_origin_wherever_it_is_shown(tmp_path):
    with Story(tmp_path / "run", num_problems=12) as story:
        label, run = story.labels[0], story.run
        story.skill[label.uid] = 99.0
        success, _ = story.sample(label, Context.PLAIN, story.prompt(label.problem), 0)
        story.history.commit_step(
            0, 1, [replace(success, context=Context.IMPORTED, origin="teacher T")]
        )
        story.skill[label.uid] = -99.0
        story.step()
        story.asked = lambda: [(label, Context.HINT, story.prompt(label.problem))]
        story.step()
    run.first_page.write_text(
        json.dumps({"imported": ["1 success (teacher T)", "correct: its text"]})
    )
    library, group = Library([run.path]), ("run", 1, "plain", label.uid)
    pages = [
        group_page(library, *group),
        tokens_page(library, *group, 8),
        problem_page(library, "run", label.uid),
    ]
    pages += [
        group_report.group_page(run, uid=label.uid, step=1, width=99),
        *report.summary(run)["begun_with"],
    ]
    assert (
        all("teacher T" in page and "step 0" not in page for page in pages) and len(pages) == 5
    )
    for page in (step_page(library, "run", 2), problem_page(library, "run", label.uid)):
        # else its successes are a solved problem's
        assert '<span class="tag">hint</span>' in page


def test_a_group_by_hand():
    """Two right, one wrong and cut, one ungraded, one recalled from four steps ago; another group with half the mass."""
    rows = [
        row(verdict="correct", advantage=1.0, num_tokens=4),
        row(verdict="correct", advantage=0.5, num_tokens=8),
        row(truncated=True, advantage=-1.0, num_tokens=24),
        row(verdict="ungraded", advantage=None, reward=None, num_tokens=4),
        row(recalled_from=3, advantage=-0.5, num_tokens=100),
        row(uid="v", advantage=-1.0),
        row(uid="v", advantage=0.5),
    ]
    first, second = groups_of(rows, step=7)
    counts = (
        first.num_correct,
        first.num_wrong,
        first.num_ungraded,
        first.num_cut,
        first.num_recalled,
    )
    assert counts == (2, 1, 1, 1, 1)
    assert (first.oldest, first.shortest_correct, first.mean_tokens) == (4, 4, 10.0)
    assert (first.state, second.state, first.fate) == ("mixed", "all wrong", None)
    assert (first.mass, first.recalled_mass, first.share) == (3.0, 0.5, pytest.approx(2 / 3))
    assert (second.mass, second.share) == (1.5, pytest.approx(1 / 3))


def test_a_recalled_row_is_in_the_group_that_it_joined():
    """A reflection group recalls what the plain prompt gave; an ungraded row stands with its own."""
    rows = [
        row(group=1, verdict="correct"),
        row(group=1),
        row(group=None, verdict="ungraded", reward=None, advantage=None),
        row(group=2, context="reflection"),
        row(group=2, context="reflection"),
        row(group=2, verdict="correct", recalled_from=2, context="plain"),
    ]
    plain, reflection = groups_of(rows, step=5)
    assert (plain.num_correct, plain.num_wrong, plain.num_ungraded, plain.num_recalled) == (
        1,
        1,
        1,
        0,
    )
    counts = (reflection.num_wrong, reflection.num_recalled, reflection.oldest)
    assert (reflection.context, counts) == (Context.REFLECTION, (2, 1, 3))


def test_fates_are_those_that_the_step_wrote():
    """The first that holds; an ungraded row, which is in no group, says nothing."""
    ungraded = row(verdict="ungraded", reward=None, advantage=None)
    reflection = [row(context="reflection"), row(context="reflection")]
    for replay, ranking, more, fate in (
        ("recalled", "ranked", reflection, "recalled"),
        ("never_sampled", "ranked", reflection, "ranked"),
        ("never_sampled", "too_few", reflection, "reflected"),
        ("too_old", "too_few", [], "too old"),
        ("off", "off", [], "off"),
        ("not_collapsed", "not_all_wrong", reflection, None),
    ):
        own = row(group_replay=replay, group_ranking=ranking)
        assert groups_of([ungraded, own, own, *more], step=7)[0].fate == fate


@pytest.mark.parametrize(
    ("state", "lacks"), [("all right", "wrong"), ("all wrong", "right"), (None, "opposite")]
)
def test_a_fate_names_the_verdict_that_the_group_lacks(state, lacks):
    fate = environment().get_template("macros.html").module.fate
    texts = {
        name: re.sub("<[^>]*>", "", fate(name.replace("_", " "), state))
        for name in map(str, RecallFate)
    }
    assert all(f" {lacks} " in f" {texts[name]} " for name in ABSENT) and len(
        set(texts.values())
    ) == len(texts)


def test_what_is_counted_is_what_the_steps_show(story):
    run = RunReader(story, name="story")
    counts = run.counts()
    assert list(counts) == run.steps()
    for line in run.metrics():
        step, found = line["step"], counts[line["step"]]
        fates = Counter(
            f"fate:{group.fate}" for group in groups_of(run.rows(step), step=step) if group.fate
        )
        assert fates == {key: value for key, value in found.items() if key.startswith("fate:")}
        assert sum(fates.values()) == line["r3/groups/collapsed_before"]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, [("verdict", 0.0)]),
        (
            {"verdict": "correct", "outcome_reward": 1.75, "reward": 1.75},
            [("verdict", 1.0), ("length", 0.75)],
        ),
        (
            {"ranked": True, "ranking_reward": 0.25, "reward": 0.25},
            [("verdict", 0.0), ("ranking", 0.25)],
        ),
        (
            {"ranking_reward": 0.25, "reward": -0.25},
            [("verdict", 0.0), ("ranking", 0.25), ("centring", -0.5)],
        ),
        (
            {"verdict": "correct", "outcome_reward": 1.0, "reward": 0.5},
            [("verdict", 1.0), ("penalty on length", -0.5)],
        ),
        ({"verdict": "ungraded", "outcome_reward": None, "reward": None}, []),
    ],
)
def test_a_reward_is_the_sum_of_its_parts(changes, parts):
    assert reward_parts(row(**changes)) == parts
    assert reward_parts(row(outcome_reward=-0.5, reward=-0.5), returned=True) == [
        ("returned", -0.5)
    ]
    partial = row(outcome_reward=0.5, ranking_reward=0.25, reward=0.75)
    assert reward_parts(partial, returned=True) == [("returned", 0.5), ("ranking", 0.25)]


def test_the_pairs_of_the_worked_example():
    """METHOD section 9: peak [2, 1.5, 1, .5], global [.3, .2, .4, .1]."""
    peaks, globals_ = [2, 1.5, 1, 0.5], [0.3, 0.2, 0.4, 0.1]
    rows = [
        row(ranked=True, entropy_peak=p, entropy_global=g)
        for p, g in zip(peaks, globals_, strict=True)
    ]
    points = ranked_points([row(), *rows])
    assert {row: dominates for row, (_, _, dominates) in points.items()} == {
        1: [3],
        2: [3],
        3: [],
        4: [],
    }


# ── tokens ──


def test_pieces_are_the_text(story):
    texts = TokenTexts(story / "final_model" / "tokenizer.json")
    for text in ("plain words", "ünïcödé 数学 🙂🙃", "\\frac{1}{2} <|end|>", "a\r\n\tb"):
        ids = texts.tokenizer.encode(text, add_special_tokens=False).ids
        pieces = texts.pieces(ids)
        assert len(pieces) == len(ids) and "".join(pieces) == text
    smile = texts.tokenizer.encode("🙂", add_special_tokens=False).ids
    assert texts.pieces(smile) == [""] * (len(smile) - 1) + ["🙂"]
    assert texts.pieces(smile[:-1])[-1] == "\ufffd"  # cut within a character


def test_a_copy_without_history_and_tokenizer_has_what_its_files_have(story, tmp_path):
    """Ranked rows have entropies and recalled ones ratios, with their pieces of text; the others say why not."""
    shutil.copytree(
        story,
        tmp_path / "bare",
        ignore=shutil.ignore_patterns("history.sqlite*", "final_model"),
    )
    run, kept = RunReader(tmp_path / "bare", name="bare"), 0
    for group in run.groups(7):
        reads = (run.rows_with_text, run.token_columns)
        rows, columns = (of_group(run, 7, group, read(7, group.uid)) for read in reads)
        values, why = token_values(run, rows, columns, step=7, texts=None)
        for row, own in zip(rows, values, strict=True):
            if not row["ranked"] and row["recalled_from"] is None:
                assert own is None and why
                continue
            kept += 1
            assert own.ids is None and "".join(own.pieces) == row["text"]
            assert (own.entropies is not None) == row["ranked"]
            assert (own.policy_logprobs is not None) == (row["recalled_from"] is not None)
    assert kept > 0


def test_peak_tokens_of_the_worked_example_and_how_numbers_are_written():
    """METHOD section 9: of ten tokens the two with entropies 2 and 1."""
    entropies = np.array([0.1, 0, 2, 0.3, 1, 0, 0.2, 0.4, 0, 0], dtype=np.float16)
    assert peak_tokens(entropies, peak_fraction=0.2) == [2, 4]
    assert peak_tokens(entropies, peak_fraction=0.01) == [2]
    values = TokenValues(
        pieces=["a", "b", "c"], logprobs=np.array([-0.12346, 0.0, -12.0], dtype=np.float32)
    )
    assert values.as_json(0, None)["logprob"] == [-1235, 0, -120000]  # ten thousandths


def test_a_taught_row_has_what_its_teacher_adds_to_each_token():
    policy, teacher = np.array([-1.0, -2.0], np.float16), np.array([-0.5, -4.0], np.float16)
    values = TokenValues(pieces=["a", "b"], policy_logprobs=policy, teacher_logprobs=teacher)
    assert values.as_json(0, None)["teacher"] == [5000, -20000]
    assert "teacher" not in TokenValues(pieces=["a", "b"], policy_logprobs=policy).as_json(
        0, None
    )


# ── runs ──


def test_a_run_directory_that_lacks_a_part_says_so(story, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(story / "config.yaml", bare)
    assert RunReader(bare, name="bare").why_no_rollouts() is None  # nothing yet
    shutil.copy(story / "metrics.jsonl", bare)
    assert "the lab keeps the curves" in RunReader(bare, name="bare").why_no_rollouts()
    shutil.copytree(story / "rollouts", bare / "rollouts")
    run = RunReader(bare, name="bare")
    rows = run.rows_with_text(7, run.rows(7)[0]["uid"])
    values, why = token_values(run, rows, [{}] * len(rows), step=7, texts=None)
    assert values == [None] * len(rows) and "no history.sqlite" in why
    assert run.problem(rows[0]["uid"]) is None
    label = Label(
        uid=rows[0]["uid"],
        problem="1+1",
        references=["2"],
        task="math",
        source="sums",
        row={"a": 1},
    )
    (bare / "data").mkdir()
    run.directory.data.write_text(
        json.dumps({"label": label.to_json(), "input": "1+1?"}) + "\n"
    )
    assert run.problem(label.uid).label.references == ["2"] and run.faults() == []


def test_names_tell_runs_apart(story, tmp_path):
    for parent in ("a", "b"):
        (tmp_path / parent / "run").mkdir(parents=True)
        shutil.copy(story / "config.yaml", tmp_path / parent / "run")
    (tmp_path / "static").mkdir()
    shutil.copy(story / "config.yaml", tmp_path / "static")  # a name that addresses need
    library = Library([tmp_path])
    assert list(library.runs) == ["run", "b-run", f"{tmp_path.name}-static"]
    assert library.runs["b-run"].path == tmp_path / "b" / "run"
    with pytest.raises(R3Error, match="does not exist"):
        Library([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(R3Error, match="there is no run in"):
        Library([tmp_path / "empty"])


# ── pages ──


def test_what_is_not_there_yet_is_a_sentence(tmp_path):
    """A run that has just begun next to one seed of an arm, which has a step and held-out problems and no rollouts."""
    for name in ("begun", "seed"):
        run = RunDirectory(tmp_path / name)
        run.create(load_config("cpu_smoke", [f"run_dir={run.path}", f"arm={name}"]))
    run.append_metrics({"step": 1, "reward_mean": 0.5, "generated_tokens_total": 100})
    same = {
        "num_problems": 3,
        "n_samples": 1,
        "temperature": 1.0,
        "max_new_tokens": 9,
        "name": "held_out",
    }
    for step in (0, 1):
        run.append_evaluation(
            {"step": step, "pass_at_1": 0.5, "generated_tokens": 100 * step} | same
        )
    client = TestClient(create_app(Library([tmp_path])), base_url="http://localhost")
    for page, sentences in {
        "/begun": ("before its first step", "There are no numbers to draw yet.", "not started"),
        "/begun/effect": ("This run has no rollouts.",),
        "/begun/problems": ("This run has sampled nothing yet.",),
        "/begun/files": ("No phase is known",),
        "/seed": (
            "without an interval (responses to 0 problems are kept",
            "the run logs nothing of it",
        ),
        "/seed/problems": ("This run has no rollouts",),
        "/compare": (
            "begun has no evaluations of held-out problems",
            "seed (reference)",
            '<td class="r">0.500</td>',
        ),
        "/compare?run=begun": ("1 run, as", "begun has no evaluations of held-out problems"),
        "/?run=begun&run=seed": ("Nothing to compare: both runs need held-out problems",),
    }.items():
        text = client.get(page).text
        assert [sentence for sentence in sentences if sentence not in text] == [], page


SCALARS = st.none() | st.text() | st.integers()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_in_a_page_cannot_end_its_block(value):
    text = json_block(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)


def test_everything_is_escaped_and_numbers_are_signed():
    assert "&lt;script&gt;1&lt;/script&gt; ?" in render(
        "message.html", message="<script>1</script> \ud800"
    )
    assert [signed(value, 2) for value in (1.5, -1.5, 0.0, -0.001, None)] == [
        "+1.50",
        "−1.50",
        "0.00",
        "0.00",
        "–",
    ]


@pytest.mark.skipif(
    shutil.which("npm") is None, reason="there is no npm to build the assets with"
)
def test_the_assets_are_the_published_files():
    command = [sys.executable, "tools/viewer_assets.py", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    if "npm error" in done.stderr and re.search(
        r"network|npm error code E(429|5\d\d)", done.stderr
    ):
        pytest.skip("npm reaches no registry, or one that refuses for now")
    assert done.returncode == 0, done.stderr
