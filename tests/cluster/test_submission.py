"""`r3 submit slurm` on a real Slurm: what runs, on which nodes, what is left."""

import json

import pytest

from tests.cluster.conftest import REPOSITORY, log_of, until

STEPS = f'{{{{ python }}}} {REPOSITORY}/tests/cluster/steps.py "$run_dir"'
PROBE = f'{{{{ python }}}} {REPOSITORY}/tests/cluster/ray_probe.py "$run_dir"'
SMALL_RAY = "--ray-args=--num-cpus=1 --object-store-memory=80000000"


def steps_of(run_dir):
    path = run_dir / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.is_file() else []


def test_a_job_runs_where_it_was_told_and_leaves_nothing(slurm, run_dir, job_template, tmp_path):
    prologue = tmp_path / "prologue.sh"
    prologue.write_text("export R3_TEST_PROLOGUE=was_here\n")
    template = job_template(f"bash -c 'echo $R3_TEST_PROLOGUE on $SLURMD_NODENAME' && {STEPS} 2 0")
    job = slurm.submit(run_dir, f"--prologue={prologue}", "--partition=urgent", template=template)
    ended = slurm.wait(job, "COMPLETED", "FAILED")
    log = log_of(run_dir, job)
    assert (ended["JobState"], ended["Partition"], ended["NumNodes"]) == ("COMPLETED", "urgent", "1"), log
    assert "was_here on node1" in log
    slurm.assert_nothing_left(job)


@pytest.mark.slow
def test_two_jobs_on_the_same_two_nodes_have_two_rays(slurm, tmp_path, job_template):
    """Each has both nodes once, and none of the other's. The two heads run on one node."""
    template = job_template(PROBE)
    runs = [tmp_path / "one", tmp_path / "two"]
    jobs = [slurm.submit(run, "--nodes=2", SMALL_RAY, template=template) for run in runs]
    for run, job in zip(runs, jobs, strict=True):
        until(lambda run=run, job=job: (run / "probe.json").is_file() or slurm.ended(job), seconds=200)
        assert (run / "probe.json").is_file(), log_of(run, job)
    seen = [json.loads((run / "probe.json").read_text()) for run in runs]
    for probe in seen:
        assert probe["nodes"] == ["node1", "node2"]
        assert probe["gpus"] == 2  # one of each node: cpu_smoke asks for one per node
    assert seen[0]["address"] != seen[1]["address"] and seen[0]["token"] != seen[1]["token"]
    for run in runs:
        (run / "go").touch()
    for run, job in zip(runs, jobs, strict=True):
        assert slurm.wait(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log_of(run, job)
        slurm.assert_nothing_left(job)
        logs = run / "cluster" / "ray_logs" / f"{job}.0"
        assert sorted(path.name for path in logs.iterdir()) == ["node1", "node2"]
        assert (logs / "node2" / "raylet.out").is_file() and (logs / "node1" / "gcs_server.out").is_file()


@pytest.mark.parametrize("script", ["r3_1p5b_8gpu.sh", "grpo_1p5b_8gpu.sh", "quickstart.sh"])
def test_an_example_script_goes_through_sbatch(slurm, tmp_path, script):
    """Slurm runs a copy in its spool: where the script lies says nothing about where the project is."""
    log = tmp_path / "log"
    path = REPOSITORY / "examples" / "scripts" / script
    job = slurm.call("sbatch", "--parsable", f"--output={log}", str(path), "--dry-run", cwd=REPOSITORY)
    assert slurm.wait(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log.read_text()
    assert "python -m openrlhf.cli.train_ppo_ray" in log.read_text()
