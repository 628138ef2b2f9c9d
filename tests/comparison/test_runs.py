"""Which directories are runs, and every reason why runs are not compared, each in its sentence."""

import dataclasses
import json
from pathlib import Path

import pytest

from r3_openrlhf.comparison.runs import (
    check_comparable,
    find_runs,
    read_run,
    settings_that_differ,
)
from r3_openrlhf.method.errors import R3Error
from tests.comparison.synthetic import evaluation_of, metrics_of, write_run

# ── finding and reading ──


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """grpo, seeds 1 and 2, one of them deeper; a directory without a run."""
    lab = tmp_path_factory.mktemp("lab")
    write_run(lab / "grpo_1", seed=1)
    write_run(lab / "more" / "grpo_2", seed=2)
    (lab / "model").mkdir()
    (lab / "grpo_1" / "checkpoints" / "copy").mkdir(parents=True)
    (lab / "grpo_1" / "checkpoints" / "copy" / "config.yaml").write_text(
        "what lies inside a run is no run"
    )
    return lab


def test_runs_are_found_by_name_and_in_directories_and_never_twice(lab):
    expected = [lab / "grpo_1", lab / "more" / "grpo_2"]
    assert find_runs([lab]) == (expected, [])
    assert find_runs([lab, lab / "grpo_1", f"{lab}/more/../grpo_1"]) == (expected, [])
    assert find_runs(sorted(lab.iterdir())) == (expected, [lab / "model"])


def test_a_path_that_is_not_there_and_paths_without_any_run(lab):
    with pytest.raises(R3Error, match="nowhere does not exist; name run directories"):
        find_runs([lab, lab / "nowhere"])
    with pytest.raises(
        R3Error, match="there is no run in .*model; a run directory has a config.yaml"
    ):
        find_runs([lab / "model"])


def test_a_run_is_read(lab):
    run = read_run(lab / "more" / "grpo_2")
    assert (run.arm, run.seed, run.finished) == ("grpo", 2, True)
    assert (run.by_tokens.xs, run.by_tokens.ys) == ((0, 200, 400), (0.1, 0.2, 0.4))
    assert run.settings["data.path"] == "reasoning_gym:basic_arithmetic"


def test_an_arm_is_named_by_its_key_else_by_its_algorithm(tmp_path):
    names = [
        read_run(write_run(tmp_path / "a", "replay.enabled=false", arm="r3_no_ccr")).arm,
        read_run(write_run(tmp_path / "b", "arm=null", arm="grpo")).arm,
    ]
    assert names == ["r3_no_ccr", "grpo"]


def test_a_step_that_was_done_again_counts_as_it_was_the_last_time(tmp_path):
    again = [evaluation_of(2, 0.9), evaluation_of(0, 0.1), evaluation_of(2, 0.3)]
    other = evaluation_of(1, 0.7, name="another_benchmark")
    run = read_run(write_run(tmp_path / "run", evaluations=[*again, other]))
    assert run.by_tokens.ys == (0.1, 0.3)


def test_problems_that_are_drawn_with_the_seed_of_the_run(tmp_path):
    """Each seed has problems of its own, the arms of one seed the same ones."""

    def run(arm, seed, problems):
        seen = [
            evaluation_of(0, 0.1, problems_sha256=problems),
            evaluation_of(2, 0.2, problems_sha256=problems),
        ]
        drawn = f"data.reasoning_gym.seed={seed}"
        path, kinds = tmp_path / f"{arm}{seed}{problems}", {"arm": arm, "seed": seed}
        return read_run(write_run(path, drawn, evaluations=seen, problems=problems, **kinds))

    runs = [run(arm, seed, f"of {seed}") for arm in ("grpo", "r3") for seed in (1, 2)]
    check_comparable(runs)
    sentence = "problems_sha256 in evaluations.jsonl is of 2 in the first and others in the se"
    with pytest.raises(R3Error, match=sentence):
        check_comparable([*runs[:3], run("r3", 2, "others")])
    # seed 3 has the problems of another
    with pytest.raises(R3Error, match="data.reasoning_gym is"):
        check_comparable(
            [*runs, run("grpo", 4, "of 4"), dataclasses.replace(run("r3", 4, "of 5"), seed=5)]
        )


# ── a run that is not taken ──

REFUSALS = json.loads(Path(__file__).with_name("refusals.json").read_text())


def refused(kind, reason):
    """Return the options of `write_run` for this refusal, and its sentence."""
    options, sentence = REFUSALS[kind][reason].values()
    written = {"evaluations": evaluation_of, "metrics": metrics_of}
    for key in written.keys() & options.keys():
        options = options | {key: [written[key](**line) for line in options[key]]}
    return options, sentence


@pytest.mark.parametrize("reason", REFUSALS["alone"])
def test_a_run_that_cannot_be_taken(tmp_path, reason):
    options, sentence = refused("alone", reason)
    with pytest.raises(R3Error) as error:
        read_run(write_run(tmp_path / "run", **options))
    assert sentence in str(error.value) and "\n" not in str(error.value)


# ── runs that are not compared with each other: grpo, seed 1, as it is, and another one ──


@pytest.fixture(scope="module")
def grpo(tmp_path_factory):
    return read_run(write_run(tmp_path_factory.mktemp("grpo") / "grpo_1"))


@pytest.mark.parametrize("reason", REFUSALS["unlike"])
def test_runs_that_cannot_be_compared(tmp_path, grpo, reason):
    options, sentence = refused("unlike", reason)
    overrides = options.pop("overrides", [])
    other = read_run(write_run(tmp_path / "other", *overrides, **options))
    messages = set()
    for order in ([grpo, other], [other, grpo]):
        with pytest.raises(R3Error) as error:
            check_comparable(order)
        messages.add(str(error.value))
    (message,) = messages
    assert (
        sentence in message
        and str(grpo.path) in message
        and str(other.path) in message
        and "\n" not in message
    )


def test_runs_that_can_be_compared(tmp_path, grpo):
    """Another arm may differ in everything else, another seed in the seed, its directory and how the arm got its name;
    a run without the file of its problems is told from others by its settings."""
    others = [
        write_run(
            tmp_path / "r3_1", "train.learning_rate=0.1", "rollout.batch_size=4", arm="r3"
        ),
        write_run(tmp_path / "grpo_2", "arm=grpo", seed=2, problems=None),
    ]
    check_comparable([grpo, *map(read_run, others)])


def test_the_settings_in_which_arms_differ(tmp_path, grpo):
    r3 = read_run(write_run(tmp_path / "r3", "rollout.batch_size=4", arm="r3", seed=7))
    found = settings_that_differ([r3, grpo])
    assert found["rollout.batch_size"] == {"grpo": 8, "r3": 4}
    assert found["replay.enabled"] == {"grpo": False, "r3": True}
    assert not {"train.seed", "run_dir", "arm", "model.path"} & set(found)
