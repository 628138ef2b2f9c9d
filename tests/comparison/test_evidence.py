"""Evidence files say about runs what the run directories say; tables by hand; a study skips what they have."""

import dataclasses

import pytest
from click.testing import CliRunner

from r3_openrlhf.cli import main
from r3_openrlhf.comparison.arms import compare
from r3_openrlhf.comparison.evidence import as_run
from r3_openrlhf.comparison.runs import read_run
from r3_openrlhf.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.evidence import evidence_of, is_there, read_evidence, write_evidence
from tests.comparison.synthetic import metrics_of, write_run


@pytest.fixture
def runs(tmp_path):
    """Two arms x three seeds; the arms differ in a setting, the seeds in what came out."""
    found = []
    for seed in (1, 2, 3):
        found.append(write_run(tmp_path / f"grpo_{seed}", seed=seed, accuracies=(0.1, 0.2, 0.3 + seed / 20)))
        found.append(
            write_run(
                tmp_path / f"r3_{seed}", "replay.k=4", arm="r3", seed=seed, accuracies=(0.1, 0.3 + seed / 30, 0.6)
            )
        )
    return found


@pytest.fixture
def regime(runs, tmp_path):
    for run in runs:
        write_evidence(evidence_of(RunDirectory.open(run)), tmp_path / "evidence" / "hard")
    return tmp_path / "evidence" / "hard"


def test_a_comparison_of_the_files_is_that_of_the_run_directories(runs, regime):
    """What both can say, to the last digit; means over steps are not kept."""
    kept = compare([as_run(read_evidence(path), path) for path in sorted(regime.glob("*.json"))])
    whole = compare([read_run(run) for run in runs])
    lost = {
        "entropy",
        "response_length",
        "truncated",
        *(name for name in whole.arms[0].estimates if "per_step" in name),
    }
    assert (kept.reference, kept.equal_tokens, kept.levels) == (whole.reference, whole.equal_tokens, whole.levels)
    for mine, other in zip(kept.arms, whole.arms, strict=True):
        assert mine.crossings == other.crossings and mine.tokens_to_target == other.tokens_to_target
        for one, two in ((mine.estimates, other.estimates), (mine.differences, other.differences)):
            compared = two.keys() - lost
            assert len(compared) > 10 or not two
            for quantity in compared:
                assert one[quantity] == two[quantity], quantity
    assert kept.settings["replay.k"] == {"grpo": None, "r3": 4}  # None: the default


def test_sums_are_of_the_steps_up_to_each_evaluation(tmp_path):
    metrics = [metrics_of(step, trained_tokens=100.0 * step) for step in range(1, 5)]
    found = evidence_of(RunDirectory.open(write_run(tmp_path / "run", metrics=metrics)))
    assert found.curve == {"step": [0, 2, 4], "generated_tokens": [0, 200, 400], "pass_at_1": [0.1, 0.2, 0.4]}
    assert found.sums["trained_tokens"] == [0, 300, 1000]
    assert found.sums["time/step_s"] == [0, 1, 2]
    assert found.sums["r3/groups/none_correct"] == [0, 8, 16]


def test_a_file_is_small_and_comes_back_as_it_was(tmp_path):
    found = evidence_of(RunDirectory.open(write_run(tmp_path / "run", "replay.k=3", arm="r3", seed=7)))
    path = write_evidence(found, tmp_path / "kept")
    assert path.name == "r3-7.json" and path.stat().st_size < 4000
    assert read_evidence(path) == found
    assert found.settings["replay.k"] == 3 and not {"run_dir", "arm", "train.seed"} & found.settings.keys()
    assert [file.name for file in path.parent.iterdir()] == ["r3-7.json"]  # no file half written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-30], "is no evidence of a run"),
        (lambda text: text.replace('"seed": 7', '"seed": 8'), "holds seed 8 of arm r3; name it r3-8.json"),
        (lambda text: text.replace('"pass_at_1": [0.1, ', '"pass_at_1": ['), "lists of different lengths"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "is no evidence of a run"),
        (lambda text: text.replace('"seed"', '"sead"'), "is no evidence of a run"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path, change, message):
    path = write_evidence(
        evidence_of(RunDirectory.open(write_run(tmp_path / "run", arm="r3", seed=7))), tmp_path / "kept"
    )
    path.write_text(change(path.read_text()))
    with pytest.raises(R3Error, match=message):
        read_evidence(path)


def test_a_run_that_has_not_ended_is_no_evidence(tmp_path):
    with pytest.raises(R3Error, match="has not finished, so it is no evidence"):
        evidence_of(RunDirectory.open(write_run(tmp_path / "run", finished=False)))


def test_evidence_of_other_settings_is_refused(tmp_path):
    run = RunDirectory.open(write_run(tmp_path / "run", "replay.k=3", arm="r3", seed=7))
    write_evidence(evidence_of(run), tmp_path / "kept")
    assert is_there(tmp_path / "kept", run.load_config())
    other = dataclasses.replace(run.load_config())
    other.replay = dataclasses.replace(other.replay, k=5)
    with pytest.raises(
        R3Error, match=r"r3-7.json is of a run with replay.k=3, and now it is 5; give the arm another name"
    ):
        is_there(tmp_path / "kept", other)
    other.train = dataclasses.replace(other.train, seed=8)
    assert not is_there(tmp_path / "kept", other)


def call(*arguments):
    return CliRunner().invoke(main, ["evidence", *map(str, arguments)])


def test_the_tables_by_hand(regime, tmp_path):
    """metrics_of: of ten groups five collapse and four are all wrong; of 100 tokens 38 are in such groups."""
    result = call(tmp_path / "evidence", "--figure", tmp_path / "deep" / "map.png")
    assert result.exit_code == 0, result.output
    assert "50% of `grpo`'s groups collapse, 40% are all wrong." in result.stdout
    assert "on 50 problems x 4 responses, 0.100 before training; all arms at 400 generated tokens." in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("| `r3` | 3 |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2] == "0.600 [0.600, 0.600]" and cells[3].startswith("+0.200 [")
    assert cells[7] == "38%" and cells[8] == "1,200" and cells[9] == "2"
    # the mean curve of r3 is 0.1, 0.367, 0.6 at 0, 200 and 400 tokens; grpo ends at 0.4, with 400 tokens
    assert cells[5].startswith(f"{(200 + 200 * (0.4 - 11 / 30) / (0.6 - 11 / 30)) / 400:.2f} [")
    # differences of 0.25, 0.2 and 0.15: a deviation of 0.05; drawing: sqrt(2) * sqrt(0.4 * 0.6 / 200) = 0.049
    assert "| hard | `r3` | 3 | 0.050 | 0.049 | 27 | 4 |" in result.stdout
    assert (tmp_path / "deep" / "map.png").stat().st_size > 5000


def test_regimes_are_directories_and_the_map_orders_them_by_collapsed_groups(runs, regime, tmp_path):
    easy = tmp_path / "evidence" / "easy"
    for seed in (1, 2):
        metrics = [
            metrics_of(
                step, **{"r3/groups/mixed": 9.0, "r3/groups/none_correct": 0.0, "r3/groups/collapsed_before": 1.0}
            )
            for step in range(1, 5)
        ]
        for arm in ("grpo", "r3_no_ccr"):
            run = write_run(tmp_path / f"easy_{arm}_{seed}", arm=arm, seed=seed, metrics=metrics)
            write_evidence(evidence_of(RunDirectory.open(run)), easy)
    result = call(tmp_path / "evidence")
    assert "| arm | easy: 10% collapse | hard: 50% collapse |" in result.stdout
    assert "| `r3_no_ccr` | +0.000 [+0.000, +0.000], 2 seeds | – |" in result.stdout


def test_no_evidence_is_one_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    result = call(tmp_path / "empty")
    assert result.exit_code == 1 and "there is no evidence in" in result.output
