"""`r3 status`: one line per run, in every state that a job goes through."""

import json

import pytest

from r3_openrlhf.cluster.status import find_runs, status_of
from r3_openrlhf.config_loading import load_config
from r3_openrlhf.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from tests.cluster.conftest import REPOSITORY, until

STEPS = f'{{{{ python }}}} {REPOSITORY}/tests/cluster/steps.py "$run_dir"'


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create(load_config("cpu_smoke", [f"run_dir={run.path}"]))
    return run


def test_the_numbers_of_a_line_are_those_of_the_files(run):
    run.append_metrics({"step": 1, "reward_mean": 0.25, "generated_tokens_total": 10.0})
    run.append_metrics({"step": 2, "reward_mean": 0.5, "generated_tokens_total": 2500.0})
    run.append_evaluation({"step": 2, "pass_at_1": 0.75})
    latest = run.checkpoints / "_actor" / "latest"
    latest.parent.mkdir()
    latest.write_text("global_step2")
    seen = status_of(run.path, now=latest.stat().st_mtime + 180)
    assert (seen.step, seen.tokens, seen.reward, seen.held_out) == (2, 2500, 0.5, 0.75)
    assert (seen.checkpoint, seen.state, seen.job) == ("step 2, 3 min ago", "started", None)
    run.mark_finished()
    assert status_of(run.path).state == "finished"


@pytest.mark.parametrize(("code", "state"), [(0, "ended"), (85, "preempted, saved"), (86, "failed"), (1, "failed")])
def test_how_a_job_ended(run, code, state):
    run.cluster.mkdir()
    told = {"job": "7", "state": "ended", "code": code, "why": "a reason", "nodes": ["node1", "node2"]}
    (run.cluster / "state.json").write_text(json.dumps(told))
    seen = status_of(run.path)
    assert (seen.state, seen.job, seen.last, seen.nodes) == (state, "7", "a reason", "node1,node2")


def test_runs_below_a_folder(run, tmp_path):
    (tmp_path / "queued" / "cluster").mkdir(parents=True)
    (tmp_path / "queued" / "cluster" / "job.sh").touch()
    (tmp_path / "no_run").mkdir()
    assert find_runs(tmp_path) == [tmp_path / "queued", tmp_path / "run"]
    with pytest.raises(R3Error, match="no_run is not a run directory"):
        status_of(tmp_path / "no_run")


def test_a_job_is_queued_running_and_over(slurm, run_dir, job_template):
    def line():
        return " ".join(slurm.call("r3", "status", str(run_dir)).split()) + " "

    first = slurm.submit(run_dir, template=job_template(f"{STEPS} 1000 0.5"))
    until(lambda: (run_dir / "metrics.jsonl").is_file(), what="the first step")
    assert f" {first} " in line() and " running " in line() and " node1 " in line()
    second = slurm.submit(run_dir, template=job_template(f"{STEPS} 10 0"))
    assert f" {second} " in line() and " queued (Dependency) " in line()
    slurm.call("scancel", first)  # it saves; the second finds more steps than it wants
    assert slurm.wait(second, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert " ended " in line()
