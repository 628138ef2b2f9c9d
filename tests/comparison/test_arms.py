"""What is said about arms, worked by hand from run directories; and that the order of the runs says nothing."""

import itertools
import json
from pathlib import Path

import pytest
from pytest import approx

from r3_openrlhf.comparison.arms import compare
from r3_openrlhf.comparison.intervals import SeedEstimate
from r3_openrlhf.comparison.runs import read_run
from r3_openrlhf.comparison.table import comparison_table, table_rows
from r3_openrlhf.method.errors import R3Error
from tests.comparison.synthetic import evaluation_of, metrics_of, write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Evaluated at these generated tokens:

                 0    200   300   400   600
        grpo 1   0.1  0.2         0.4
        grpo 2   0.1  0.3         0.5
        r3 1     0.1        0.4
        r3 2     0.2        0.5         0.5

    All runs reached 300. Behind that r3's second run logs values that must not count there.
    """
    lab = tmp_path_factory.mktemp("lab")
    wild = {
        "r3/groups/none_correct": 1000.0,
        "r3/groups/collapsed_before": 1000.0,
        "fresh/entropy": 1000.0,
    }
    metrics = [metrics_of(step, **(wild if step > 3 else {})) for step in range(1, 7)]
    paths = [
        write_run(lab / "grpo_1", seed=1, accuracies=(0.1, 0.2, 0.4)),
        write_run(lab / "grpo_2", seed=2, accuracies=(0.1, 0.3, 0.5)),
        write_run(lab / "r3_1", arm="r3", seed=1, accuracies=(0.1, 0.4), every_steps=3),
        write_run(
            lab / "r3_2",
            arm="r3",
            seed=2,
            accuracies=(0.2, 0.5, 0.5),
            every_steps=3,
            metrics=metrics,
        ),
    ]
    return [read_run(path) for path in paths]


def estimate_of(comparison, arm, quantity):
    return next(found for found in comparison.arms if found.name == arm).estimates[quantity]


def test_accuracy_at_equal_generated_tokens(runs):
    """At 300 grpo is half way between 200 and 400: 0.3 and 0.4; r3 has been evaluated there: 0.4 and 0.5."""
    comparison = compare(runs)
    assert (comparison.equal_tokens, comparison.start_tokens) == (300, 0)
    assert comparison.limited_by.endswith("r3_1")
    assert [arm.name for arm in comparison.arms] == ["grpo", "r3"]
    assert estimate_of(comparison, "grpo", "accuracy_at_equal_tokens").mean == approx(0.35)
    found = estimate_of(comparison, "r3", "accuracy_at_equal_tokens")
    assert found.mean == approx(0.45)
    assert found.values == approx((0.4, 0.5)) and found.low is None  # two seeds


def test_differences_are_paired_by_seed(runs):
    """The seeds lie 0.1 apart in both arms, so the difference is 0.1 in both."""
    grpo, r3 = compare(runs).arms
    assert grpo.differences == {}
    found = r3.differences["accuracy_at_equal_tokens"]
    assert (found.mean, found.values, found.num) == (approx(0.1), approx((0.1, 0.1)), 2)
    assert r3.differences["final_accuracy"].mean == approx(0.0)


def test_the_area_under_the_curve_ends_at_the_equal_tokens(runs):
    """grpo 1: 200 * 0.15 + 100 * 0.25 = 55; grpo 2: 200 * 0.2 + 100 * 0.35 = 75. r3: means of straight lines."""
    comparison = compare(runs)
    assert estimate_of(comparison, "grpo", "mean_accuracy").mean == approx((55 + 75) / 2 / 300)
    assert [run.values["mean_accuracy"] for run in comparison.arms[1].runs] == approx(
        [0.25, 0.35]
    )


def test_groups_and_tokens_are_counted_up_to_the_equal_tokens(runs):
    """Of ten groups one is all correct and four are all wrong; three of these five stay collapsed
    after replay. Shares of all generated tokens, and what the updates cost, over three steps; of
    the entropy the last quarter, which is the third."""
    comparison = compare(runs)
    expected = json.loads(Path(__file__).with_name("quantities.json").read_text())
    for arm, quantity in itertools.product(("grpo", "r3"), expected):
        found = estimate_of(comparison, arm, quantity).mean
        assert found == approx(expected[quantity]), (arm, quantity)


def test_groups_that_dynamic_sampling_dropped_were_sampled(tmp_path):
    """Eight mixed groups are trained on; for them twelve collapsed ones were dropped: 8 of 20 are effective."""
    kept = {
        "all_correct": 0.0,
        "none_correct": 0.0,
        "mixed": 8.0,
        "collapsed_before": 0.0,
        "collapsed_after": 0.0,
    }
    groups = {f"r3/groups/{key}": value for key, value in kept.items()}
    more = {"r3/filter/dropped_groups": 12.0, "warm_start_tokens_total": 7.0}
    metrics = [metrics_of(step, **groups, **more) for step in (1, 2, 3, 4)]
    comparison = compare([read_run(write_run(tmp_path / "dapo", arm="dapo", metrics=metrics))])
    for quantity in ("effective_before", "effective_after"):
        assert estimate_of(comparison, "dapo", quantity).mean == approx(0.4)
    assert estimate_of(comparison, "dapo", "dropped_per_step").mean == approx(12)
    assert estimate_of(comparison, "dapo", "warm_start_tokens").mean == 7
    # no run collected any
    assert not any("for successes" in row[0] for row in table_rows(comparison))


def test_a_run_that_does_not_count_its_tokens_says_nothing_of_them(tmp_path, runs):
    old = [
        {key: v for key, v in metrics_of(s).items() if "tokens/" not in key}
        for s in range(1, 5)
    ]
    for line in old[:2]:
        del line["trained_tokens"]
    dapo = read_run(write_run(tmp_path / "dapo", arm="dapo", metrics=old))
    comparison = compare([*runs, dapo])
    for quantity in ("tokens_in_mixed", "tokens_elsewhere", "trained_tokens"):
        assert estimate_of(comparison, "dapo", quantity) is None
    assert estimate_of(comparison, "dapo", "seconds").mean == approx(1.5)


def test_the_mean_curve_is_asked_for_half_and_all_of_the_references_gain(runs):
    """grpo's mean goes from 0.1 to 0.45: levels 0.275, 0.3625, 0.45. r3's mean is 0.15 at 0 and 0.45 at 300, where its first
    run ends; grpo's whole runs have 400 tokens. grpo's own mean is 0.25 at 200 and 0.45 at 400."""
    comparison = compare(runs)
    assert comparison.target_accuracy == approx(0.45) and not comparison.target_is_given
    # whatever the other arms' final accuracies
    assert compare(runs[:3]).target_accuracy == approx(0.45)
    assert comparison.levels == approx([0.275, 0.3625, 0.45])
    grpo, r3 = comparison.arms
    assert [found.tokens for found in r3.crossings] == approx([125, 212.5, 300])
    assert [found.ratio for found in r3.crossings] == approx([125 / 400, 212.5 / 400, 0.75])
    assert [found.ratio for found in grpo.crossings] == approx([225 / 400, 312.5 / 400, 1.0])
    assert r3.crossings[2].limit == approx(0.75)
    given = compare(runs, target=0.4)
    assert given.target_is_given and all(
        arm.crossings[0].ratio is None for arm in compare(runs, target=0.9).arms
    )
    assert given.levels == [0.4] and [
        found.ratio for found in given.arms[1].crossings
    ] == approx([250 / 400])


def test_what_an_arm_does_not_log_is_missing_and_not_zero(tmp_path, runs):
    """No step of dapo knows its entropy, and its first step does not know its groups."""
    bare = [
        {"step": 1, "generated_tokens_total": 100},
        {**metrics_of(2), "fresh/entropy": None},
    ]
    evaluations = [evaluation_of(0, 0.1), evaluation_of(3, 0.2)]
    dapo = read_run(
        write_run(tmp_path / "dapo", arm="dapo", metrics=bare, evaluations=evaluations)
    )
    comparison = compare([*runs, dapo])
    assert estimate_of(comparison, "dapo", "entropy") is None
    assert comparison.arms[1].differences["entropy"] is None
    assert estimate_of(comparison, "dapo", "effective_before") == SeedEstimate(
        0.5, None, None, 1
    )
    (row,) = [
        line
        for line in comparison_table(comparison).splitlines()
        if line.startswith("| entropy")
    ]
    assert row.split("|")[3].strip() == "–"


def test_the_reference(tmp_path, runs):
    assert compare(runs, reference="r3").arms[0].name == "r3"
    only_r3 = [run for run in runs if run.arm == "r3"]
    assert compare(only_r3).reference == "r3"
    with pytest.raises(
        R3Error, match=r"no run has the reference arm 'zzz' \(--reference\); known: grpo, r3"
    ):
        compare(runs, reference="zzz")
    dapo = read_run(write_run(tmp_path / "dapo", arm="dapo"))
    sentence = r"no run has the reference arm 'grpo' \(--reference\); did you mean dapo\?"
    with pytest.raises(R3Error, match=sentence):
        compare([*only_r3, dapo])


def test_curves_without_a_stretch_in_common_are_refused(tmp_path, runs):
    late = [evaluation_of(3, 0.3), evaluation_of(6, 0.4)]
    dapo = read_run(write_run(tmp_path / "dapo", arm="dapo", evaluations=late))
    with pytest.raises(
        R3Error, match="r3_1 end at 300 tokens and those of .*dapo begin at 300"
    ):
        compare([*runs, dapo])


def test_what_a_reader_must_know(tmp_path, runs):
    assert not any("same seeds" in note or "Unfinished" in note for note in compare(runs).notes)
    evaluations = [evaluation_of(0, 0.1, num_ungraded=3), evaluation_of(4, 0.3, num_ungraded=2)]
    path = write_run(
        tmp_path / "odd",
        arm="dapo",
        seed=9,
        evaluations=evaluations,
        problems=None,
        finished=False,
    )
    (path / "code_state.txt").write_text("other code")
    (path / "model_commit.txt").write_text("abc\n")
    (path / "data" / "problems.commits.json").write_text('{"org/set": "def"}')
    notes = "\n".join(compare([*runs, read_run(path, unfinished=True)]).notes)
    for note in (
        "do not have the same seeds",
        f"Unfinished, taken as far as they are: {path}.",
        "r3_2 continued to 600",
        "could not be graded, all runs together: 5.",
        f"Without data/problems.jsonl, so that only their settings say which problems they were trained on: {path}.",
        "made by 2 different states of the code",
        f"different commits of the model tiny: abc in {path}, unknown in ",
        f"different commits of the data set org/set: def in {path}, unknown in ",
    ):
        assert note in notes


def test_the_order_of_the_runs_does_not_matter(runs):
    expected = compare(runs)
    for order in itertools.permutations(runs):
        assert compare(order) == expected


def test_the_table(runs):
    """The cells that were worked by hand above, as they are printed."""
    lines = (
        line.split("|")
        for line in comparison_table(compare(runs)).splitlines()
        if line.startswith("|")
    )
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in lines}
    assert rows[""] == ["grpo (reference)", "r3"]
    assert rows["seeds"] == ["2: 1, 2", "2: 1, 2"]
    assert rows["held-out accuracy at 300 generated tokens"] == [
        "0.350 (each: 0.300, 0.400)",
        "0.450 (each: 0.400, 0.500)",
    ]
    final = "tokens at which the mean curve has 0.450 (grpo's final accuracy), over grpo's whole runs"
    assert rows[final] == ["1.00", "0.75"]
    assert rows["generated tokens in mixed groups"] == ["50.0% (each: 50.0%, 50.0%)"] * 2
    assert rows["– in reflection groups"] == ["10.0% (each: 10.0%, 10.0%)"] * 2
    assert (
        rows["effective groups (not collapsed) of all sampled, after replay"]
        == ["70.0% (each: 70.0%, 70.0%)"] * 2
    )
