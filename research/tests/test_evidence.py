"""A file of evidence says about runs what their directories say; tables by hand."""

import dataclasses
import hashlib
import re

import pytest
import zstandard
from click.testing import CliRunner
from msgspec import structs

from r3_openrlhf.comparison.arms import compare
from r3_openrlhf.comparison.runs import read_run
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.commit import commit_of
from r3_openrlhf.runs.directory import RunDirectory
from research.__main__ import main
from research.evidence import (
    add,
    as_run,
    evidence_of,
    is_in,
    read,
    tokens_without_all_wrong,
    tuned,
    write,
)
from tests.comparison.synthetic import evaluation_of, metrics_of, write_run


@pytest.fixture
def runs(tmp_path):
    """Two arms x three seeds; the arms differ in a setting, the seeds in what came out."""
    found = []
    for seed in (1, 2, 3):
        found.append(
            write_run(
                tmp_path / f"grpo_{seed}", seed=seed, accuracies=(0.1, 0.2, 0.3 + seed / 20)
            )
        )
        found.append(
            write_run(
                tmp_path / f"r3_{seed}",
                "replay.k=4",
                arm="r3",
                seed=seed,
                accuracies=(0.1, 0.3 + seed / 30, 0.6),
            )
        )
    return found


@pytest.fixture
def kept(runs, tmp_path):
    """Their file of evidence."""
    file = tmp_path / "evidence" / "hard.jsonl.zst"
    write(file, [evidence_of(RunDirectory.open(run)) for run in runs])
    return file


def test_a_comparison_of_the_files_is_that_of_the_run_directories(runs, kept):
    """What both can say, to the last digit; means over steps are not kept."""
    short = compare([as_run(record) for record in read(kept)])
    whole = compare([read_run(run) for run in runs])
    lost = {
        "entropy",
        "response_length",
        "truncated",
        *(name for name in whole.arms[0].estimates if "per_step" in name),
    }
    assert (short.reference, short.equal_tokens, short.levels) == (
        whole.reference,
        whole.equal_tokens,
        whole.levels,
    )
    for mine, other in zip(short.arms, whole.arms, strict=True):
        assert mine.crossings == other.crossings
        for one, two in (
            (mine.estimates, other.estimates),
            (mine.differences, other.differences),
        ):
            compared = two.keys() - lost
            assert len(compared) > 10 or not two
            for quantity in compared:
                assert one[quantity] == two[quantity], quantity
    assert short.settings["replay.k"] == {"grpo": None, "r3": 4}  # None: the default


def test_sums_are_of_the_steps_up_to_each_evaluation(tmp_path):
    metrics = [metrics_of(step, trained_tokens=100.0 * step) for step in range(1, 5)]
    found = evidence_of(RunDirectory.open(write_run(tmp_path / "run", metrics=metrics)))
    assert found.curve == {
        "step": [0, 2, 4],
        "generated_tokens": [0, 200, 400],
        "pass_at_1": [0.1, 0.2, 0.4],
    }
    assert found.sums["trained_tokens"] == [0, 300, 1000]
    assert found.sums["time/step_s"] == [0, 1, 2]
    assert found.sums["r3/groups/none_correct"] == [0, 8, 16]


def test_arms_are_compared_at_equal_tokens_of_a_kind(tmp_path):
    """With a teacher a step trains on as much and reads 300 tokens more, a third of which counts."""
    records = []
    for arm, read_tokens in (("grpo", None), ("r3", 300.0)):
        metrics = [
            metrics_of(step, trained_tokens=100.0, teacher_tokens=read_tokens)
            for step in range(1, 5)
        ]
        run = write_run(tmp_path / arm, arm=arm, metrics=metrics)
        records.append(evidence_of(RunDirectory.open(run)))
    amounts = {
        equal: [
            as_run(record, equal=equal).evaluations[-1]["generated_tokens"]
            for record in records
        ]
        for equal in ("generated", "trained", "computed")
    }
    assert amounts == {
        "generated": [400, 400],
        "trained": [400, 400],
        "computed": [400, pytest.approx(800)],
    }
    file = tmp_path / "two.jsonl.zst"
    write(file, records)
    table = CliRunner().invoke(main, ["evidence", str(file), "--equal", "computed"]).output
    assert "all arms at 400 computed tokens" in table
    del records[0].sums["trained_tokens"]
    with pytest.raises(R3Error, match="grpo-1 did not count trained_tokens"):
        as_run(records[0], equal="computed")


def test_the_best_tuning_runs_choose(tmp_path):
    """By both seeds together, and by the way there as well as by the end."""
    ends = {
        "r3_c0.1_lr1e-3": (0.1, (0.3, 0.5)),
        "r3_c1_lr1e-3": (1.0, (0.6, 0.1)),
        "r3_more_c1_lr1e-3": (1.0, (0.9, 0.9)),
    }
    records = []
    for arm, (coef, of_seeds) in ends.items():
        for seed, end in enumerate(of_seeds, start=1):
            run = write_run(
                tmp_path / f"{arm}-{seed}",
                f"distill.coef={coef}",
                "train.learning_rate=1e-3",
                arm=arm,
                seed=seed,
                accuracies=(0.1, 0.2, end),
            )
            records.append(evidence_of(RunDirectory.open(run), tuning=True))
    records.append(structs.replace(records[-1], arm="r3_c1_lr1e-3", tuning=False))
    file = tmp_path / "tuning.jsonl.zst"
    write(file, records)
    assert tuned(file, "r3") == {"distill.coef": 0.1, "train.learning_rate": 1e-3}
    output = CliRunner().invoke(main, ["tuned", str(file), "--arm", "r3_more"]).output
    assert output == "distill.coef=1.0 train.learning_rate=0.001\n"
    with pytest.raises(R3Error, match="no tuning runs of grpo"):
        tuned(file, "grpo")


def test_seconds_of_a_run_of_the_stack_are_kept(tmp_path):
    metrics = [
        metrics_of(step, **{"time/step_s": None, "timing/step_total": 2.5})
        for step in range(1, 5)
    ]
    run = RunDirectory.open(write_run(tmp_path / "run", metrics=metrics))
    (arm,) = compare([as_run(evidence_of(run))]).arms
    assert arm.estimates["seconds"].mean == 10


def test_a_run_that_generated_more_counts_with_its_part_up_to_the_equal_tokens(tmp_path):
    """100 tokens a step; the other arm's 110: at T = 400 it is in step 4, which the record knows with step 3 alone."""
    records = []
    for arm, tokens in (("grpo", 100), ("r3", 110)):
        counts = [
            {"generated_tokens": tokens, "generated_tokens_total": step * tokens}
            for step in range(1, 5)
        ]
        metrics = [
            metrics_of(step, trained_tokens=1000.0, **counts[step - 1]) for step in range(1, 5)
        ]
        evaluations = [
            evaluation_of(step, 0.1, generated_tokens=step * tokens) for step in (0, 2, 4)
        ]
        run = write_run(tmp_path / arm, arm=arm, metrics=metrics, evaluations=evaluations)
        records.append(evidence_of(RunDirectory.open(run)))
    grpo, r3 = compare([as_run(record) for record in records]).arms
    assert grpo.estimates["trained_tokens"].mean == 4000
    assert r3.estimates["trained_tokens"].mean == pytest.approx(1000 * 400 / 110)
    assert r3.estimates["tokens_in_none_correct"].mean == pytest.approx(30 / 110)


def test_what_a_run_does_not_count_is_left_out_and_seconds_are_short(tmp_path):
    metrics = [
        metrics_of(step, **{"time/step_s": 1 / 3, "r3/tokens/prefix": None})
        for step in range(1, 5)
    ]
    metrics[3]["r3/tokens/reflection"] = None  # in one step nobody counted: nothing is added
    found = evidence_of(RunDirectory.open(write_run(tmp_path / "run", metrics=metrics)))
    assert found.sums["time/step_s"] == [0, 0.67, 1.33]
    assert found.sums["r3/tokens/reflection"] == [0, 20, 30]
    assert not {"r3/tokens/prefix", "time/sampling_s"} & found.sums.keys()


def test_only_held_out_problems_are_evidence(tmp_path):
    lines = [
        evaluation_of(0, 0.1),
        evaluation_of(1, 0.9, name="benchmark"),
        evaluation_of(2, 0.2),
    ]
    found = evidence_of(RunDirectory.open(write_run(tmp_path / "run", evaluations=lines)))
    assert found.curve["pass_at_1"] == [0.1, 0.2]
    with pytest.raises(
        R3Error, match="has no evaluations of held-out problems; train it with held_out.path="
    ):
        evidence_of(RunDirectory.open(write_run(tmp_path / "other", evaluations=lines[1:2])))


def test_the_problems_are_a_hash_of_their_lines_in_any_order(tmp_path):
    one, two = (
        write_run(tmp_path / name, problems=text)
        for name, text in (("one", "b\na\n"), ("two", "a\nb\n"))
    )
    found = [evidence_of(RunDirectory.open(run)) for run in (one, two)]
    assert [each.problems for each in found] == [hashlib.sha256(b"a\nb").hexdigest()] * 2
    assert found[0].commit == "1"  # of the code that ran


def test_a_file_is_small_and_holds_what_was_written_by_name(runs, kept, tmp_path):
    records = [evidence_of(RunDirectory.open(run)) for run in runs]
    assert kept.stat().st_size < 2000 and kept.stat().st_mode & 0o777 == 0o644
    assert [record.name for record in read(kept)] == [
        f"{arm}-{seed}" for arm in ("grpo", "r3") for seed in (1, 2, 3)
    ]
    assert sorted(read(kept), key=str) == sorted(records, key=str)
    assert (
        records[1].settings["replay.k"] == 4
        and not {"run_dir", "arm", "train.seed"} & records[1].settings.keys()
    )
    # no file half written
    assert [file.name for file in kept.parent.iterdir()] == ["hard.jsonl.zst"]
    assert read(tmp_path / "nothing") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(
        R3Error, match="x.jsonl.zst cannot be written: .*; choose another file for --evidence"
    ):
        write(tmp_path / "file" / "x.jsonl.zst", records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-30], "is no file of evidence"),
        (
            lambda text: text.replace('"pass_at_1":[0.1,', '"pass_at_1":['),
            "grpo-1 has lists of different lengths",
        ),
        (
            lambda text: text.replace('"pass_at_1"', '"pass"'),
            "lacks one of step, generated_tokens, pass_at_1",
        ),
        (lambda text: re.sub(r"\[[^]]*\]", "[]", text), "lists of different lengths"),
        (lambda text: text.replace('"seed"', '"sead"'), "is no file of evidence"),
    ],
)
def test_a_damaged_file_is_one_sentence(kept, change, message):
    text = (
        zstandard.ZstdDecompressor()
        .decompress(kept.read_bytes(), max_output_size=10**6)
        .decode()
    )
    kept.write_bytes(zstandard.compress(change(text).encode()))
    with pytest.raises(R3Error, match=message):
        read(kept)


def test_a_file_that_is_cut_or_not_compressed_is_one_sentence(kept):
    for content in (kept.read_bytes()[:-9], b"text"):
        kept.write_bytes(content)
        with pytest.raises(R3Error, match="is no file of evidence"):
            read(kept)


def test_a_run_that_has_not_ended_is_no_evidence(tmp_path):
    with pytest.raises(R3Error, match="has not finished, so it is no evidence"):
        evidence_of(RunDirectory.open(write_run(tmp_path / "run", finished=False)))


def test_evidence_of_other_settings_is_refused(runs, kept):
    records, same = read(kept), RunDirectory.open(runs[-1]).load_config()
    assert is_in(records, same, file=kept) and not is_in(records, same, file=kept, tuning=True)
    other = dataclasses.replace(same, replay=dataclasses.replace(same.replay, k=5))
    with pytest.raises(
        R3Error,
        match=r"r3-3 is a run with replay.k=4, and now it is 5; give the arm another name",
    ):
        is_in(records, other, file=kept)


def call(*arguments):
    return CliRunner().invoke(main, ["evidence", *map(str, arguments)])


def test_the_tables_by_hand(kept):
    """metrics_of: of ten groups five collapse and four are all wrong; of 100 tokens 38 are in such groups."""
    result = call(kept)
    assert result.exit_code == 0, result.output
    assert "50% of `grpo`'s groups collapse, 40% are all wrong." in result.stdout
    assert (
        "on 50 problems x 4 responses, 0.100 before training; all arms at 400 generated tokens."
        in result.stdout
    )
    assert (
        "If all-wrong groups were free, `grpo` would reach its final accuracy with 0.70 [0.70, 0.70] of"
        in result.stdout
    )
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("| `r3` | 3 |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2] == "0.600 [0.600, 0.600]" and cells[3].startswith("+0.200 [")
    assert cells[4].startswith("+0.133 [")  # of the areas
    # 0.325: three quarters of the gain
    assert cells[6].startswith(f"{200 * (0.325 - 0.1) / (11 / 30 - 0.1) / 400:.2f} [")
    assert cells[7] == "38%" and cells[8] == "1,200" and cells[9] == "2"
    # the mean curve of r3 is 0.1, 0.367, 0.6 at 0, 200 and 400 tokens; grpo ends at 0.4, with 400 tokens
    assert cells[5].startswith(f"{(200 + 200 * (0.4 - 11 / 30) / (0.6 - 11 / 30)) / 400:.2f} [")


def test_runs_of_the_stack_are_added(runs, tmp_path):
    (runs[0] / "code_state.txt").write_text(
        "# code state\ncommit abc, modified\n# code state\ncommit def\n"
    )
    file = tmp_path / "new" / "tail.jsonl.zst"
    result = call(file, *(word for run in runs for word in ("--add", run)))
    assert result.exit_code == 0, result.output
    assert "### tail" in result.stdout
    before = read(file)
    # of the code that ran
    assert [record.commit for record in before] == [
        "abc, modified, then def",
        "1",
        "1",
        "1",
        "1",
        "1",
    ]
    (runs[0] / "code_state.txt").unlink()
    # nobody wrote down which it was
    assert evidence_of(RunDirectory.open(runs[0])).commit == commit_of()
    assert call(file, "--add", runs[0]).exit_code == 0  # again: what is there stays
    assert read(file) == before
    unfinished = write_run(tmp_path / "grpo_9", seed=9, finished=False)
    result = call(file, "--add", unfinished)
    assert result.exit_code == 1 and "has not finished, so it is no evidence" in result.output
    result = call(file, "--add", tmp_path / "nothing")
    assert (
        result.exit_code == 1
        and "nothing" in result.output
        and "Traceback" not in result.output
    )


def test_tuning_runs_are_another_table(runs, kept):
    for run in runs:
        add(kept, RunDirectory.open(run), tuning=True)
    assert len(read(kept)) == 12
    add(kept, RunDirectory.open(runs[0]), tuning=True)
    assert len(read(kept)) == 12
    assert call(kept, "--tuning").stdout == call(kept).stdout


def test_no_evidence_is_one_sentence(tmp_path):
    result = call(tmp_path / "empty.jsonl.zst")
    assert result.exit_code == 1 and "there are no such runs in" in result.output


def test_what_the_all_wrong_groups_cost_by_hand(tmp_path):
    """70, 60 and 65% of the tokens are elsewhere: 0.65 -/+ 4.303 * 0.05 / sqrt(3)."""
    runs = []
    for seed, wrong in ((1, 30.0), (2, 40.0), (3, 35.0)):
        metrics = [
            metrics_of(step, **{"r3/tokens/none_correct": wrong}) for step in range(1, 5)
        ]
        runs.append(read_run(write_run(tmp_path / f"run_{seed}", seed=seed, metrics=metrics)))
    found = tokens_without_all_wrong(runs)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (0.65, 0.65 - 0.1242, 0.65 + 0.1242), abs=1e-4
    )
    assert tokens_without_all_wrong([]) is None
    del runs[1].metrics[2]["r3/tokens/none_correct"]
    assert tokens_without_all_wrong(runs) is None  # one step does not say


def test_arms_with_other_solutions_are_compared_and_other_problems_are_not(tmp_path):
    """Solutions belong to an arm; the world belongs to the problems."""
    file, key = tmp_path / "x.jsonl.zst", "data.reasoning_gym"
    solutions = {
        "grpo": {},
        "r3": {"solved": 0.25, "style": "own"},
        "r3_earned": {"solved": 1.0, "warm_up": 1e-3},
    }
    for arm in solutions:
        keep(file, arm=arm, seed=1)
    for drawn in (lambda arm: {"world": "walk"} | solutions[arm], lambda arm: {"world": arm}):
        write(
            file,
            [
                structs.replace(one, settings=one.settings | {key: drawn(one.arm)})
                for one in read(file)
            ],
        )
        assert ("cannot be compared" in call(file).output) == (drawn("r3") == {"world": "r3"})


def keep(file, **options):
    add(
        file,
        RunDirectory.open(
            write_run(file.parent / f"{options['arm']}_{options['seed']}", **options)
        ),
    )


def cells_of(output, arm):
    (row,) = [
        line
        for line in output.splitlines()
        if line.startswith(f"| `{arm}` |") and line.count("|") == 12
    ]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_a_regime_is_described_by_its_reference(tmp_path):
    """Of its 20 groups ten were dropped and five more collapse; of the ten that are left four are all wrong. One seed each."""
    dropped = [metrics_of(step, **{"r3/filter/dropped_groups": 10.0}) for step in range(1, 5)]
    others = [metrics_of(step, **{"r3/groups/collapsed_before": 0.0}) for step in range(1, 5)]
    keep(tmp_path / "x.jsonl.zst", arm="grpo", seed=1, metrics=dropped)
    keep(tmp_path / "x.jsonl.zst", arm="r3", seed=1, metrics=others, accuracies=(0.1, 0.3, 0.6))
    keep(
        tmp_path / "x.jsonl.zst",
        arm="r3_no_isr",
        seed=1,
        metrics=others,
        accuracies=(0.1, 0.2, 0.3),
    )
    result = call(tmp_path / "x.jsonl.zst")
    assert "75% of `grpo`'s groups collapse, 40% are all wrong." in result.stdout
    better, worse = (cells_of(result.stdout, arm) for arm in ("r3", "r3_no_isr"))
    # one seed: no interval anywhere, and no number of seeds
    assert (better[2], better[3], better[5], better[10]) == ("0.600", "+0.200", "0.67", "–")
    assert worse[4] == "-0.025"  # half of the area of a triangle of 0.1
    assert worse[5] == ">1.00"  # it is not there where its curve ends
    assert cells_of(result.stdout, "grpo")[3] == "–"


def test_more_seeds_than_anybody_has(tmp_path):
    """Differences of -1, 1, -1 and 1: a deviation of 1.15."""
    for seed in (1, 2, 3, 4):
        keep(
            tmp_path / "x.jsonl.zst",
            arm="grpo",
            seed=seed,
            accuracies=(0.0, 0.0, float(seed % 2)),
        )
        keep(
            tmp_path / "x.jsonl.zst",
            arm="r3",
            seed=seed,
            accuracies=(0.0, 0.0, float(seed % 2 == 0)),
        )
    assert cells_of(call(tmp_path / "x.jsonl.zst").stdout, "r3")[10] == ">10,000"


def test_chosen_arms_are_compared_up_to_their_own_last_tokens(tmp_path):
    file = tmp_path / "x.jsonl.zst"
    for arm, accuracies in (
        ("grpo", (0.1, 0.2, 0.4)),
        ("r3", (0.1, 0.3, 0.6)),
        ("r3_short", (0.1, 0.2)),
    ):
        keep(file, arm=arm, seed=1, accuracies=accuracies)
    assert "all arms at 200 generated" in call(file).stdout
    chosen = call(file, "--arms", "grpo,r3").stdout
    assert "all arms at 400 generated" in chosen and "r3_short" not in chosen
