"""The tables of a run, from files written by hand."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.group_report import (
    group_page,
    group_records,
    group_rollouts,
    step_groups,
    step_page,
    tab_separated,
)
from r3_openrlhf.runs.report import summary, summary_table


def text_of(renderable) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(renderable, crop=False)
    return capture.get()


def row_of(text: str, name: str) -> list[str]:
    """The words behind `name` in its row."""
    line = next(line for line in text.splitlines() if name in line)
    return line.split(name)[1].replace("│", " ").replace("┃", " ").split()


def metrics_of(step, **changes):
    return {
        "step": step,
        "r3/groups/all_correct": 1.0,
        "r3/groups/none_correct": 3.0,
        "r3/groups/mixed": 4.0,
        "r3/groups/collapsed_before": 4.0,
        "r3/groups/collapsed_after": 1.0,
        "r3/replay/recalled": 5.0,
        "r3/reflection/groups": 2.0,
        "r3/ranking/groups": 1.0,
        "r3/grading/ungraded": 0.0,
        "reward_mean": 0.1 * step,
        "r3/entropy/estimate": 1.0 / step,
        "response_length_mean": 20.0,
        "truncated_rate": 0.5,
        "timing/generation": 2.0,
        "timing/ppo_train": 3.0,
        "timing/step_total": 10.0,
        "r3/time/added_s": 0.1,
    } | changes


def rollout_of(uid, verdict, **changes):
    return {
        "step": 3,
        "uid": uid,
        "context": "plain",
        "verdict": verdict,
        "reason": verdict,
        "ranked": False,
        "recalled_from": None,
        "reward": 1.5 if verdict == "correct" else 0.0,
        "advantage": 1.0 if verdict == "correct" else -0.5,
        "truncated": False,
        "num_tokens": 7,
        "text": f"the answer of {uid}",
    } | changes


def test_the_summary_adds_counts_up_and_compares_the_first_with_the_last_quarter(run):
    for step in range(1, 9):
        run.append_metrics(metrics_of(step, generated_tokens_total=1234567.0 * step))
    for step, accuracy in ((0, 0.25), (1, None), (2, 0.5)):
        run.append_evaluation(
            {"step": step, "n_samples": 4, "pass_at_1": accuracy, "pass_at_n": accuracy}
        )
    counts = {
        "num_problems": 90,
        "num_dropped_overlong": 7,
        "num_duplicates": 3,
        "num_unusable": 2,
    }
    run.data_counts.write_text(json.dumps(counts))
    text = text_of(summary_table(run))
    assert "run: 8 steps" in text
    # steps 1, 2 and 7, 8: (.1 + .2) / 2 and (.7 + .8) / 2
    expected = Path(__file__).with_name("summary_rows.json").read_text()
    for name, words in json.loads(expected).items():
        assert row_of(text, name) == words.split()
    assert f"In {run.path}\n" in text


def test_a_level_that_was_not_finite_is_left_out_of_the_mean(run):
    run.append_metrics(metrics_of(1, reward_mean=float("nan")))
    text = text_of(summary_table(run))
    assert "│   reward" not in text and "│   tokens per response" in text
    assert row_of(text, "mean of a step") == ["first", "->", "last"]


@pytest.mark.parametrize("steps", [1, 9999])
def test_the_summary_fits_80_columns(run, steps):
    """With numbers as long as those of a run of weeks, 128 groups a step; nothing is folded to make it fit, and a path is
    never broken, whatever its length."""
    groups = {key: 128.0 for key in metrics_of(1) if key.startswith("r3/groups")}
    more = {
        "accuracy": 0.5,
        "r3/sync/abs_logprob_gap": 0.001,
        "timing/broadcast": 1.0,
        "timing/make_experience": 1.0,
    }
    with run.metrics.open("a") as file:
        for step in range(1, steps + 1):
            tokens = {"generated_tokens_total": 1e8 * step}
            file.write(
                json.dumps(
                    metrics_of(step, **groups, **tokens, **more, **{"timing/step_total": 1e4})
                )
                + "\n"
            )
    counts = ("num_problems", "num_dropped_overlong", "num_duplicates", "num_unusable")
    run.data_counts.write_text(json.dumps(dict.fromkeys(counts, 1_000_000)))
    shown = []
    for width in (80, 200):
        console = Console(width=width)
        with console.capture() as capture:
            console.print(summary_table(run), crop=False)
        shown.append([line.rstrip() for line in capture.get().splitlines()])
    assert shown[0] == shown[1]
    place = shown[0].index(f"In {run.path}")
    assert max(len(line) for line in shown[0][:place] + shown[0][place + 1 :]) <= 80


def test_the_summary_for_machines_is_the_one_for_people(run):
    for step in range(1, 9):
        run.append_metrics(metrics_of(step, reward_mean=None if step == 8 else 0.1 * step))
    run.append_evaluation({"step": 0, "n_samples": 4, "pass_at_1": 0.25, "pass_at_n": 0.5})
    numbers = json.loads(json.dumps(summary(run)))
    assert (
        numbers["run_dir"] == str(run.path)
        and numbers["steps"] == 8
        and numbers["finished"] is False
    )
    assert (
        numbers["totals"]["r3/replay/recalled"] == 40
        and numbers["totals"]["r3/groups/collapsed_after"] == 8
    )
    # of one step
    assert numbers["steps_per_mean"] == 2 and numbers["last"]["fresh/reward"] == pytest.approx(
        0.7
    )
    assert (
        numbers["first_evaluation"] == numbers["last_evaluation"] == run.read_evaluations()[0]
    )
    assert numbers["seconds_per_step"]["timing/generation"] == 2.0
    assert "timing/make_experience" not in numbers["seconds_per_step"]  # absence is not zero


def test_a_step_lists_its_groups(run):
    run.write_rollouts(4, [rollout_of("aaa", "wrong", step=4)])
    rows = [
        rollout_of("aaa", "correct"),
        rollout_of("aaa", "wrong"),
        rollout_of("aaa", "correct", recalled_from=1),
    ]
    rows += [rollout_of("bbb", "wrong", context="reflection", reward=0.25, ranked=True)]
    run.write_rollouts(3, [*rows, rollout_of("ccc", "ungraded", reward=None, advantage=None)])
    run.data.parent.mkdir(exist_ok=True)
    label = {"uid": "aaa", "problem": "What is " + "1 + " * 100 + "1?", "task": "math"}
    label["references"] = ["101", "one hundred and one"]
    run.data.write_text(json.dumps({"label": json.dumps(label)}) + "\n")
    lines = step_page(run, step=3, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    numbers = [line.split() for line in lines if not line.startswith("  ")][3:]
    expected = [
        "aaa plain 1 1 1 0 1.000 2.500",
        "bbb reflection 0 1 0 1 0.250 0.500",
        "ccc plain 0 0 0 0 - 0.000",
    ]
    assert numbers == [line.split() for line in expected]
    assert (
        lines[4].startswith("  What is 1 + 1")
        and lines[5].endswith(" ...")
        and not lines[6].startswith("  ")
    )
    heads, first, *others = (
        line.split("\t") for line in tab_separated(step_groups(run, step=3)).splitlines()
    )
    found = dict(zip(heads, first, strict=True))
    assert (found["problem"], found["references"]) == (
        label["problem"],
        "101 | one hundred and one",
    )
    assert [len(line) for line in others] == [len(heads)] * 2
    run.append_metrics({"step": 4})
    with pytest.raises(R3Error, match="has no rollouts of step 9; its steps are 4 to 4"):
        step_groups(run, step=9)


def test_one_group_shows_where_each_row_comes_from(run):
    rows = [
        rollout_of("abc", "wrong", truncated=True, reward=0.25, ranked=True, text="a " * 1000),
        rollout_of(
            "abc",
            "correct",
            recalled_from=1,
            text="[red]not markup[/red]\x1b]0;title\x07\n\tnext",
        ),
        rollout_of("abc", "ungraded", reason="timeout", reward=None, advantage=None),
    ]
    run.write_rollouts(3, [*rows, rollout_of("xyz", "wrong")])
    text = group_page(run, uid="ab", step=3, width=80)
    assert text.startswith("problem abc\n") and "xyz" not in text and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    wrong, correct, ungraded = (part.splitlines() for part in text.split("\n\n")[1:])
    assert wrong[0] == "step 3, plain: wrong, reward 0.250 (ranked), advantage -0.500, 7 tokens"
    assert wrong[1] == "  (truncated)" and len(wrong) == 2 + 6 and wrong[-1].endswith(" ...")
    words = "step 3, plain: correct, recalled from step 1, reward 1.500, advantage +1.000, 7"
    assert correct[:2] == [words, "  tokens"]
    assert correct[2:] == ["  [red]not markup[/red]\\x1b]0;title\\x07 next"]
    assert ungraded[0] == "step 3, plain: ungraded (timeout), 7 tokens"
    heads, *records = (
        line.split("\t")
        for line in tab_separated(group_records(run, uid="ab", step=3)).splitlines()
    )
    assert [record[heads.index("verdict")] for record in records] == [
        "wrong",
        "correct",
        "ungraded",
    ]
    assert (
        records[0][-1] == " ".join("a" * 1000)
        and records[1][heads.index("recalled_from")] == "1"
    )


def test_mistakes_are_one_sentence(run):
    with pytest.raises(R3Error, match="no finished step yet; its log is .*train.log"):
        summary_table(run)
    run.write_rollouts(3, [rollout_of("abc", "wrong"), rollout_of("abd", "wrong")])
    with pytest.raises(R3Error, match="has no rollouts of problem q; `r3 show .* --step N`"):
        group_rollouts(run, uid="q", step=None)
    with pytest.raises(
        R3Error, match="ab is the beginning of 2 problems in .*: abc, abd; write more of it"
    ):
        group_rollouts(run, uid="ab", step=None)
    run.data.parent.mkdir(exist_ok=True)
    for label in ("[", "[]", "{}"):
        run.data.write_text(json.dumps({"label": label}) + "\n")
        with pytest.raises(
            R3Error, match="problems.jsonl, line 1 is damaged: .*; restore the file from a copy"
        ):
            step_groups(run, step=3)
