"""`r3 submit slurm` on a real Slurm: what runs, on which nodes, what is left."""

import json
import re
import signal
import socket
import threading
from pathlib import Path

import psutil
import pytest

from tests.operations.cluster.conftest import PROBE, REPOSITORY, SMALL_RAY, STEPS, log_of
from tests.processes import until


def test_a_job_runs_where_it_was_told_and_leaves_nothing(slurm, job_template, tmp_path):
    run_dir = tmp_path / "a 100%j #1"  # sbatch has meanings of its own for all of these
    prologue = tmp_path / "prologue.sh"
    prologue.write_text("export R3_TEST_PROLOGUE=was_here\n")
    command = "echo $R3_TEST_PROLOGUE on $SLURMD_NODENAME; stat --format='\\''/dev/shm is %d'\\'' /dev/shm"
    template = job_template(f"bash -c '{command}' && {STEPS} 2 0")
    job = slurm.submit(
        run_dir, f"--prologue={prologue}", "--partition=urgent", template=template
    )
    ended = slurm.wait(job, "COMPLETED", "FAILED")
    log = log_of(run_dir, job)
    assert (ended["JobState"], ended["Partition"], ended["NumNodes"]) == (
        "COMPLETED",
        "urgent",
        "1",
    ), log
    assert "was_here on node1" in log
    # or what a stack that is killed beside these tests leaves would be this job's
    if slurm.has_own_shared_memory:
        (folder,) = slurm.shared_memory()
        number = folder.stat().st_dev
        assert f"/dev/shm is {number}\n" in log and number != Path("/dev/shm").stat().st_dev
    slurm.assert_nothing_left(job)


def test_a_munged_that_hangs_up_is_asked_again(slurm, tmp_path, monkeypatch):
    """As a busy one does to a client that is slow to speak."""
    busy, configuration = tmp_path / "sock", tmp_path / "slurm.conf"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(busy))
    server.listen()

    def hang_up():
        connection, _ = server.accept()
        (tmp_path / "link").symlink_to(slurm.folder / "munge.sock")
        (tmp_path / "link").replace(busy)
        connection.close()

    thread = threading.Thread(target=hang_up, daemon=True)
    thread.start()
    text = (slurm.folder / "slurm.conf").read_text()
    configuration.write_text(text.replace(f"{slurm.folder}/munge.sock", str(busy)))
    with monkeypatch.context() as patched:
        patched.setitem(slurm.environment, "SLURM_CONF", str(configuration))
        job = slurm.submit(tmp_path / "run", "--sbatch=--hold")
    assert slurm.state(job) == "PENDING" and not thread.is_alive()
    slurm.call("scancel", job)
    server.close()


def is_of_ray(process):
    """A daemon of Ray, or a worker."""
    words = " ".join(process.info["cmdline"])
    return re.search(r"ray::|raylet|gcs_server|ray/dashboard|log_monitor", words) is not None


def hears(process, number):
    """True if the process does not block this signal, or is gone."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    blocked = next(
        int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk:")
    )
    return not blocked >> (number - 1) & 1


@pytest.mark.slow
def test_two_jobs_on_the_same_nodes_have_two_rays(slurm, tmp_path, job_template):
    """Each has all of its nodes once, three and two, and none of the other's. The two heads run on one node."""
    template = job_template(PROBE)
    runs = [tmp_path / "three", tmp_path / "two"]
    nodes = [["node1", "node2", "node3"], ["node1", "node2"]]
    # a batch that three ranks can share
    partitions = [["--partition=three", "rollout.batch_size=6", "train.batch_size=48"], []]
    jobs = [
        slurm.submit(run, f"--nodes={len(names)}", *partition, SMALL_RAY, template=template)
        for run, names, partition in zip(runs, nodes, partitions, strict=True)
    ]
    for run, job in zip(runs, jobs, strict=True):
        until(lambda run=run, job=job: (run / "probe.json").is_file() or slurm.ended(job))
        assert (run / "probe.json").is_file(), log_of(run, job)
    seen = [json.loads((run / "probe.json").read_text()) for run in runs]
    for probe, names in zip(seen, nodes, strict=True):
        assert probe["nodes"] == names
        assert probe["gpus"] == len(names)  # one of each node: cpu_smoke asks for one per node
    assert seen[0]["address"] != seen[1]["address"] and seen[0]["token"] != seen[1]["token"]
    # a preemption signals every process of the steps: the agents and the command hear it, Ray and its workers do not
    for job in jobs:
        rays = [process for process in slurm.processes(job) if is_of_ray(process)]
        assert len(rays) >= 6  # two daemons or more and a worker on each node
        assert {process.info["nice"] for process in rays} == {psutil.Process().nice()}
        hearing = [
            process
            for process in rays
            if hears(process, signal.SIGTERM) or hears(process, signal.SIGUSR1)
        ]
        # one that is gone hears everything
        assert not [process for process in hearing if process.is_running()]
    slurm.call(
        "sbatch",
        "-p",
        "urgent",
        "--nodelist=node2",
        "--exclusive",
        "-o",
        tmp_path / "urgent",
        "--wrap",
        "true",
    )
    for run, job, names in zip(runs, jobs, nodes, strict=True):
        until(
            lambda run=run, job=job: (run / "heard").exists() or slurm.ended(job),
            what=f"a signal for {job}",
        )
        for node in names:
            said = f"{node}: signal SIGTERM"
            until(
                lambda said=said, run=run, job=job: said in log_of(run, job),
                what=f"it on {node}",
            )
    for run in runs:
        (run / "go").touch()
    for run, job, names in zip(runs, jobs, nodes, strict=True):
        assert slurm.wait(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log_of(
            run, job
        )
        slurm.assert_nothing_left(job)
        assert json.loads((run / "after.json").read_text()) == names
        logs = run / "cluster" / "ray_logs" / f"{job}.0"
        assert sorted(path.name for path in logs.iterdir()) == names
        assert (logs / "node2" / "raylet.out").is_file() and (
            logs / "node1" / "gcs_server.out"
        ).is_file()


def test_an_unfit_node_is_named_and_the_job_goes_to_another(slurm, run_dir, job_template):
    """node1 lets a job open 512 files. The job starts there, is requeued without it, and runs on node2."""
    limit = """bash -c '[[ $SLURMD_NODENAME == node1 ]] && ulimit -n 512; exec "$0" "$@"' """
    template = job_template(f"bash -c 'echo at work on $SLURMD_NODENAME' && {STEPS} 1 0")
    script = template.read_text().replace(
        "{{ python }} -m r3", f"{limit}{{{{ python }}}} -m r3"
    )
    # on a busy machine
    template.write_text(script.replace("trap '' TERM", "sleep 2; trap '' TERM"))
    job = slurm.submit(run_dir, template=template)
    ended = slurm.wait(job, "COMPLETED", "FAILED")
    log = log_of(run_dir, job)
    assert (ended["JobState"], ended["NodeList"], ended["Restarts"]) == (
        "COMPLETED",
        "node2",
        "1",
    ), log
    assert (
        "node1: ulimit -n is 512, 1024 are needed; code 87" in log and "at work on node2" in log
    )
    assert ended["ExcNodeList"] == "node1"
    slurm.assert_nothing_left(job)


@pytest.mark.parametrize("script", ["r3_1p5b_8gpu.sh", "grpo_1p5b_8gpu.sh", "quickstart.sh"])
def test_an_example_script_goes_through_sbatch(slurm, tmp_path, script):
    """Slurm runs a copy in its spool: where the script lies says nothing about where the project is."""
    log = tmp_path / "log"
    path = REPOSITORY / "examples" / "scripts" / script
    job = slurm.call(
        "sbatch", "--parsable", f"--output={log}", str(path), "--dry-run", "-v", cwd=REPOSITORY
    )
    assert slurm.wait(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log.read_text()
    assert "python -m openrlhf.cli.train_ppo_ray" in log.read_text()
