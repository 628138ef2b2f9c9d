"""Did it help? On a run whose groups are written out."""

import json
import os

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.effect import effect_of
from tests.commands import r3


def row(
    step,
    uid,
    verdict,
    *,
    context="plain",
    recalled_from=None,
    advantage=0.0,
    ranked=False,
    group=0,
):
    return {
        "step": step,
        "uid": uid,
        "context": context,
        "group": group,
        "verdict": verdict,
        "recalled_from": recalled_from,
        "advantage": advantage,
        "ranked": ranked,
        "truncated": False,
        "num_tokens": 1,
    }


@pytest.fixture
def run(run):
    """Problem a: mixed, all wrong and repaired (with a reflection group, half right), all right. Problem b: ranked."""
    b = [
        row(1, "b", "wrong", advantage=0.5, ranked=True, group=1),
        row(1, "b", "wrong", advantage=-0.5, group=1),
    ]
    run.write_rollouts(
        1, [row(1, "a", "correct", advantage=1.0), row(1, "a", "wrong", advantage=-1.0), *b]
    )
    again = [row(2, "a", "wrong", advantage=-1.0), row(2, "a", "wrong", advantage=-1.0)]
    again.append(row(2, "a", "correct", recalled_from=1, advantage=2.0))
    again += [
        row(2, "a", verdict, context="reflection", group=1) for verdict in ("correct", "wrong")
    ]
    run.write_rollouts(2, again)
    run.write_rollouts(3, [row(3, "a", "correct"), row(3, "a", "correct")])
    return run


def test_what_a_run_did(run):
    """|advantage| sums to 2 + 1 + 4 = 7: recalled 2, ranked 0.5. Groups: a three times and once with an error shown, b once;
    collapsed: a twice, b."""
    found = effect_of(run)
    assert (found.groups, found.collapsed, found.recalled, found.ranked) == (5, 3, 1, 1)
    assert found.recalled_share == pytest.approx(2 / 7) and found.ranked_share == pytest.approx(
        0.5 / 7
    )
    assert (found.reflected, found.reflection_difference) == (1, 0.5)
    shown = r3("show", str(run.path), "--effect")
    first, second, *_ = shown.output.splitlines()
    assert (
        shown.exit_code == 0
        and first == "Not decided: the run evaluated no held-out problems (held_out.path)."
    )
    assert second.startswith("1 of 3 collapsed groups were repaired by replay, 1 more ")
    assert "29% of the update" in shown.output
    assert json.loads(r3("show", str(run.path), "--effect", "--json").output)["groups"] == 5


def test_a_file_that_was_replaced_within_a_moment_is_counted_anew(run):
    """Within the same tick of the clock of files."""
    assert effect_of(run).recalled == 1
    (file,) = run.rollouts.glob("*2.parquet")
    moment = file.stat().st_mtime_ns
    run.write_rollouts(2, [row(2, "a", "wrong", advantage=-1.0)])
    os.utime(file, ns=(moment, moment))
    assert effect_of(run).recalled == 0


def test_a_run_without_rollouts_is_refused(tmp_path):
    other = RunDirectory(tmp_path / "other")
    other.create(load_config("cpu_smoke", [f"run_dir={other.path}"]))
    with pytest.raises(R3Error, match="has no rollouts"):
        effect_of(other)


def test_held_out_accuracy_comes_first_with_its_interval(run):
    """Four problems, two responses each, 1 and then 6 of 8 right: +1/2, +1, +1/2, +1/2. Of four draws the +1 is three times or more
    in 5% of the resamples, four times in 0.4%: the upper end is (3 + 1/2) / 4."""
    right = {0: (1, 0, 0, 0), 6: (2, 2, 1, 1)}
    for step, counts in right.items():
        run.append_evaluation(
            {"step": step, "pass_at_1": sum(counts) / 8, "generated_tokens": step}
        )
        responses = [
            row(step, f"p{at}", "correct" if n < count else "wrong")
            for at, count in enumerate(counts)
            for n in (0, 1)
        ]
        run.write_held_out(step, responses)
    found = effect_of(run).held_out
    assert (found.accuracies, found.problems, found.low, found.high) == (
        (0.125, 0.75),
        4,
        0.5,
        0.875,
    )
    first = effect_of(run).sentences()[0]
    assert first.startswith(
        "Held-out accuracy from step 0 to 6: 0.125 -> 0.750, +62.5 points [+50.0, +87.5]."
    )
    assert "not decided: that needs a baseline" in first
