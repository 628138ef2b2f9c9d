"""The directory of a run: what starts, what goes on, what is refused, and what a crash can cost."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError, R3Error
from r3_openrlhf.runs.directory import MOST_HELD_OUT, RunDirectory, describe_code
from tests.commands import r3
from tests.runs.records import rollout


def config_at(path, *overrides):
    return load_config("cpu_smoke", [f"run_dir={path}", *overrides])


def test_a_new_run_holds_its_configuration_and_its_code_state(run):
    assert run.load_config() == config_at(run.path)
    state = run.code_state.read_text()
    assert "openrlhf 0.11.2" in state and "\ncommit " in state
    assert run.checkpoints.is_dir() and run.tensorboard.is_dir() and run.data.parent.is_dir()


def test_code_state_without_a_repository(tmp_path):
    """The package copied to where there is no git still says which versions it ran with."""
    import r3_openrlhf

    os.symlink(os.path.dirname(r3_openrlhf.__file__), tmp_path / "r3_openrlhf")
    code = "from r3_openrlhf.runs.directory import describe_code; print(describe_code())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PATH": "/nowhere"}
    state = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        "openrlhf 0.11.2" in state.stdout
        and "commit unknown: not a git checkout" in state.stdout
    )


def test_the_diff_is_in_the_code_state():
    """The same two commands by hand."""
    here = os.path.dirname(__file__)
    diff = subprocess.run(["git", "-C", here, "diff", "HEAD"], capture_output=True, text=True)
    if diff.returncode:
        pytest.skip("the tests are not in a git checkout")
    assert describe_code().endswith(diff.stdout)


def test_a_folder_that_ray_deletes_is_no_run_directory(tmp_path):
    """`ray job submit --working-dir .` unpacks the files there; a relative run_dir would lie among them."""
    unpacked = (
        tmp_path
        / "ray"
        / "session_1"
        / "runtime_resources"
        / "working_dir_files"
        / "_ray_pkg_1"
    )
    with pytest.raises(
        ConfigError,
        match="Ray unpacked for this job and deletes after it; use an absolute run_dir",
    ):
        RunDirectory(unpacked / "runs" / "x").create(config_at(unpacked / "runs" / "x"))
    assert not (unpacked / "runs").exists()


def test_a_run_may_go_on_for_longer(run):
    run.append_metrics({"step": 1})
    run.create(
        config_at(
            run.path,
            "train.num_epochs=9",
            "reward.timeout_s=20",
            "stop.max_abs_logprob_gap=0.5",
        )
    )
    assert run.load_config().train.num_epochs == 9


def test_a_run_that_ran_out_of_memory_goes_on_with_less(run):
    """Every key that costs memory or disk, one by one; what changed, and behind which step, stays on record."""
    run.append_metrics({"step": 1})
    run.append_metrics({"step": 2})
    smaller = json.loads(Path(__file__).with_name("smaller.json").read_text())
    overrides = []
    for key, (_, now) in smaller.items():
        overrides.append(f"{key}={now}")
        run.create(config_at(run.path, *overrides))
    lines = [json.loads(line) for line in run.changes.read_text().splitlines()]
    assert lines == [
        {"step": 2, "key": key, "before": before, "now": now}
        for key, (before, now) in smaller.items()
    ]
    run.create(config_at(run.path, *overrides))  # nothing has changed
    assert len(run.changes.read_text().splitlines()) == len(smaller)
    with pytest.raises(ConfigError, match="other settings: replay.k"):
        run.create(config_at(run.path, *overrides, "replay.k=5"))


def test_other_settings_are_refused_and_named(run):
    run.append_metrics({"step": 1})
    before = run.config.read_text()
    named = r"other settings: replay.k \(2 there, 3 now\), train.seed \(42 there, 7 now\)"
    with pytest.raises(ConfigError, match=named):
        run.create(config_at(run.path, "replay.k=3", "train.seed=7"))
    assert run.config.read_text() == before


def test_a_run_without_a_finished_step_may_be_started_anew(run):
    run.data.write_text("left over")
    run.append_evaluation({"step": 0, "pass_at_1": 0.1})
    run.create(config_at(run.path, "replay.k=3", "model.path=smollm2"))
    assert (
        run.load_config().replay.k == 3
        and not run.data.exists()
        and run.read_evaluations() == []
    )


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="holds files but no run"):
        RunDirectory(tmp_path).create(config_at(tmp_path))


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc here")
def test_a_place_in_which_nobody_can_make_a_directory_is_a_sentence():
    """Its permissions say that root may write there."""
    with pytest.raises(ConfigError, match="run_dir /proc/x cannot be written"):
        RunDirectory("/proc/x").check_place()


def test_looking_whether_a_run_can_be_there_leaves_nothing(tmp_path):
    RunDirectory(tmp_path / "a" / "b").check_place()
    assert list(tmp_path.iterdir()) == []
    # the script of a job may be there before the run
    (tmp_path / "run" / "cluster").mkdir(parents=True)
    RunDirectory(tmp_path / "run").create(config_at(tmp_path / "run"))
    assert (tmp_path / "run" / "config.yaml").is_file()


def test_numbers_that_are_not_finite_become_null_and_are_named(run):
    run.append_metrics(
        {"step": 1, "loss": math.nan, "reward_mean": 0.5, "grad_norm": -math.inf}
    )
    expected = {
        "step": 1,
        "loss": None,
        "reward_mean": 0.5,
        "grad_norm": None,
        "not_finite": ["grad_norm", "loss"],
    }
    assert json.loads(run.metrics.read_text()) == expected


def test_rolling_back_forgets_later_steps_everywhere(run):
    for step in (1, 2, 3):
        run.write_rollouts(step, [rollout(step, text=f"r{step}{n} ü\n") for n in range(2)])
        run.append_metrics({"step": step})
        run.append_evaluation({"step": step, "pass_at_1": step / 10})
    run.roll_back(1)
    assert run.read_metrics() == [{"step": 1}] and run.read_evaluations() == [
        {"step": 1, "pass_at_1": 0.1}
    ]
    with pytest.raises(ValueError, match="missing required field `step`"):
        run.append_evaluation({"pass_at_1": 0.4})
    assert [row["text"] for row in run.read_rollouts()] == ["r10 ü\n", "r11 ü\n"]
    run.append_metrics({"step": 2})
    assert [line["step"] for line in run.read_metrics()] == [1, 2]


def test_garbage_inside_a_file_is_an_error_with_its_line(run):
    run.metrics.write_text('{"step": 1}\nnot json\n{"step": 2}\n')
    with pytest.raises(R3Error, match="metrics.jsonl, line 2 is damaged: it is not JSON"):
        run.read_metrics()


lines = st.lists(
    st.fixed_dictionaries({"step": st.integers(0, 9), "text": st.text(max_size=20)}), max_size=8
)


@given(before=lines, torn=st.integers(1, 400), after=lines)
@settings(max_examples=60, deadline=None)
def test_a_torn_last_line_costs_itself_only(tmp_path_factory, before, torn, after):
    """Law: cut the file anywhere; every line that was whole is read, and writing goes on behind it."""
    run = RunDirectory(tmp_path_factory.mktemp("torn"))
    for line in before:
        run.append_evaluation(line)
    content = run.evaluations.read_bytes() if before else b""
    kept = content[: max(0, len(content) - torn)]
    run.evaluations.write_bytes(kept)
    whole = before[: kept.count(b"\n")]
    assert run.read_evaluations() == whole
    for line in after:
        run.append_evaluation(line)
    assert run.read_evaluations() == whole + after


def test_a_torn_line_longer_than_one_block_of_the_search(run):
    run.evaluations.write_bytes(b'{"step": 1}\n' + b"x" * 200_000)
    run.append_evaluation({"step": 2})
    assert [line["step"] for line in run.read_evaluations()] == [1, 2]


def test_responses_to_held_out_problems_are_bounded_and_go_back_with_the_run(run):
    for step in (0, 4):
        run.write_held_out(
            step,
            [rollout(step, text=f"response {number}") for number in range(MOST_HELD_OUT + 5)],
        )
    kept = list(run.read_rollouts(held_out=True, step=4))
    assert [row["text"] for row in kept] == [
        f"response {number}" for number in range(MOST_HELD_OUT)
    ]
    assert list(run.read_rollouts()) == []
    run.roll_back(3)
    assert {row["step"] for row in run.read_rollouts(held_out=True)} == {0}
    run.create(config_at(run.path))  # a new start: no step has been trained
    assert list(run.read_rollouts(held_out=True)) == []


FILES = sorted(
    name for name, path in vars(RunDirectory("run")).items() if name not in ("path", "config")
)
BELOW = (
    "held_out/step_000001.parquet",
    "checkpoints/_actor/latest",
    "rollouts/.step_000001.parquet.new",
)


def make_strange(path, theirs, kind):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "belongs to another user":
        path.touch()
        os.chown(path, 12345, -1)
    elif kind == "is a hard link":
        path.hardlink_to(theirs.metrics)
    else:
        path.symlink_to(theirs.held_out_rollouts if path.suffix == "" else theirs.metrics)


@pytest.mark.parametrize("name", [*FILES, *BELOW])
def test_nothing_outside_of_a_run_is_written_or_deleted(tmp_path, name):
    """Law, over all that a run directory has: the run is refused, and what a link names is as it was."""
    run, theirs = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "theirs")
    for one in (run, theirs):
        one.create(config_at(one.path))
    theirs.append_metrics({"step": 1})
    theirs.write_held_out(1, [rollout(step=1)])
    path = getattr(run, name, run.path / name)
    before = {path: path.is_file() and path.read_bytes() for path in theirs.path.rglob("*")}
    for kind in [
        "is a link",
        "is a hard link",
        *(["belongs to another user"] if os.geteuid() == 0 else []),
    ]:
        make_strange(path, theirs, kind)
        with pytest.raises(
            ConfigError, match=f"is not ours alone: {re.escape(str(path))} {kind}"
        ):
            run.create(config_at(run.path))
    if name in ("error", "log", "held_out_rollouts"):
        make_strange(path, theirs, "is a link")
        done = r3("train", "experiment=cpu_smoke", f"run_dir={run.path}")
        assert done.exit_code == 1 and f"{path} is a link" in done.output, done.output
    assert {
        path: path.is_file() and path.read_bytes() for path in theirs.path.rglob("*")
    } == before


def test_the_directory_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    RunDirectory(tmp_path / "run").create(config_at(tmp_path / "run"))
    assert (tmp_path / "disk" / "config.yaml").is_file()


@pytest.mark.parametrize(("made_as", "mode"), [(None, 0o700), (0o2770, 0o2770), (0o755, 0o755)])
def test_a_new_run_is_closed_to_others_and_a_directory_that_the_user_made_keeps_its_rights(
    tmp_path, made_as, mode
):
    run = RunDirectory(tmp_path / "run")
    if made_as is not None:
        run.path.mkdir()
        run.path.chmod(made_as)
    run.create(config_at(run.path))
    assert run.path.stat().st_mode & 0o7777 == mode
