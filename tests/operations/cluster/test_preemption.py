"""Jobs that are interrupted in every way that Slurm has, on a real Slurm. What ran, what was lost, what is left.

Their steps take a fraction of a second and need no stack: tests/operations/cluster/steps.py. A job that must still be there when something
happens to it waits for that (--held), however late it comes."""

import json
import re
from types import SimpleNamespace

import psutil
import pytest

from tests.operations.cluster.conftest import (
    PROBE,
    SMALL_RAY,
    STEPS,
    kill,
    log_of,
    steps_of,
    template_in,
)
from tests.processes import command_of, until


@pytest.fixture(scope="module", autouse=True)
def limited(slurm, tmp_path_factory):
    """A job of a minute, 30 s of which are kept for leaving, and which waits for that. Started first so that it runs beside the
    others."""
    folder = tmp_path_factory.mktemp("limited")
    run_dir = folder / "run"
    arguments = ("--time=1", "--sbatch=--signal=USR1@5", "--sbatch=--nodelist=node1")
    number = slurm.submit(
        run_dir, *arguments, template=template_in(folder, f"{STEPS} 8 0.1 --held")
    )
    return SimpleNamespace(run_dir=run_dir, number=number, log=lambda: log_of(run_dir, number))


@pytest.fixture(scope="module", autouse=True)
def hasty(slurm, tmp_path_factory):
    """A job whose checkpoint takes longer than its notice, and which is preempted at once: Slurm kills it KillWait (30 s) later."""
    folder = tmp_path_factory.mktemp("hasty")
    run_dir = folder / "run"
    template = template_in(folder, f"{STEPS} 6 0.5 --save-s=1000 --held")
    number = slurm.submit(run_dir, "--partition=hasty", template=template)
    until(
        lambda: len(steps_of(run_dir)) == 3,
        what=lambda: f"three steps: {log_of(run_dir, number)}",
    )
    slurm.call(
        "sbatch",
        "-p",
        "urgent",
        "--nodelist=node3",
        "--exclusive",
        "-o",
        folder / "urgent",
        "--wrap",
        "true",
    )
    return SimpleNamespace(run_dir=run_dir, number=number, log=lambda: log_of(run_dir, number))


@pytest.fixture
def start(slurm, tmp_path, job_template):
    """Submit a held run of so many steps, and wait until it has made one."""

    def started(name, steps, step_s, *arguments):
        run_dir = tmp_path / name
        number = slurm.submit(
            run_dir, *arguments, template=job_template(f"{STEPS} {steps} {step_s} --held")
        )
        until(
            lambda: steps_of(run_dir),
            what=lambda: f"the first step of job {number}: {log_of(run_dir, number)}",
        )
        return SimpleNamespace(
            run_dir=run_dir, number=number, log=lambda: log_of(run_dir, number)
        )

    return started


def assert_finished_without_a_loss(slurm, job, *, steps, saved=1):
    """Every step once, in one log of all starts."""
    ended = slurm.wait(job.number, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    assert ended["JobState"] == "COMPLETED", job.log()
    assert steps_of(job.run_dir) == list(range(1, steps + 1))
    assert len(re.findall(r"saved step \d+", job.log())) == saved and ended["Restarts"] == str(
        saved
    )
    assert len(re.findall(r"job \d+, start \d+, on node", job.log())) == saved + 1
    slurm.assert_nothing_left(job.number)


def test_a_signal_saves_and_the_job_goes_on_in_the_same_log(slurm, start):
    job = start("run", 12, 0.5)
    slurm.call("scancel", "--signal=USR1", job.number)
    until(
        lambda: slurm.state(job.number) == "PENDING", what=lambda: f"the requeue: {job.log()}"
    )
    # `wait` hurries it
    slurm.call("scontrol", "update", f"jobid={job.number}", "StartTime=now+600", check=False)
    until(
        lambda: slurm.job(job.number)["Reason"] == "BeginTime",
        what=lambda: f"the requeue: {job.log()}",
    )
    saved = f"preempted at step {steps_of(job.run_dir)[-1]}, saved, requeued"
    status = " ".join(slurm.call("r3", "status", str(job.run_dir)).split())
    assert " requeued (BeginTime) " in status and saved in status
    assert saved in job.log()
    assert_finished_without_a_loss(slurm, job, steps=12)
    assert "signal SIGUSR1" in job.log()


def test_a_preemption_loses_no_step(slurm, start, tmp_path):
    job = start("run", 12, 0.5, "--sbatch=--nodelist=node2")
    saved = f"grep -q 'saved step' {job.run_dir}/cluster/slurm-{job.number}.log"
    urgent = slurm.call(
        "sbatch",
        "--parsable",
        "-p",
        "urgent",
        "--nodelist=node2",
        "--exclusive",
        "-o",
        tmp_path / "log",
        "--wrap",
        f"until {saved}; do sleep 0.2; done",
    )
    slurm.wait(urgent, "COMPLETED")
    assert_finished_without_a_loss(slurm, job, steps=12)
    assert "signal SIGTERM" in job.log()


def test_a_notice_that_is_too_short_leaves_nothing_half_written(slurm, hasty):
    """It goes on from the checkpoint before, and each step is there once."""
    ended = slurm.wait(hasty.number, "COMPLETED", "FAILED", "CANCELLED")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), hasty.log()
    assert "signal SIGTERM" in hasty.log() and "saved step" not in hasty.log()
    assert steps_of(hasty.run_dir) == list(range(1, 7))
    assert (hasty.run_dir / "checkpoints" / "_actor" / "latest").read_text() == "global_step6"
    slurm.assert_nothing_left(hasty.number)


def test_scancel_and_requeue_lose_no_step_and_the_same_script_continues(
    slurm, start, job_template
):
    """A cancelled job stays cancelled until it is submitted again; a requeued one starts by itself."""
    cancelled, requeued = start("cancelled", 12, 0.5), start("requeued", 12, 0.5)
    slurm.call("scancel", cancelled.number)
    slurm.call("scontrol", "requeue", requeued.number)
    assert slurm.wait(cancelled.number, "CANCELLED")["Restarts"] == "0"
    until(
        lambda: not slurm.processes(cancelled.number),
        what=lambda: f"{slurm.processes(cancelled.number)} to end",
    )
    saved = steps_of(cancelled.run_dir)[-1]
    assert f"saved step {saved}: signal SIGTERM" in cancelled.log() and saved < 12
    again = slurm.submit(cancelled.run_dir, template=job_template(f"{STEPS} 12 0"))
    assert slurm.wait(again, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log_of(
        cancelled.run_dir, again
    )
    assert steps_of(cancelled.run_dir) == list(range(1, 13))
    assert_finished_without_a_loss(slurm, requeued, steps=12)
    assert "signal SIGTERM" in requeued.log()


@pytest.mark.stack
@pytest.mark.soak
def test_the_real_stack_loses_no_step_to_scancel(slurm, run_dir):
    """`r3 train` on CPUs, whose processes all get Slurm's SIGTERM. tests/stack/test_resume.py continues
    such a run, and the tests above have a smaller command in its place. `make cluster-check` has this one."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    job = slurm.submit(run_dir, "train.max_steps=1000", "checkpoint.save_steps=-1")
    until(lambda: steps_of(run_dir) or slurm.ended(job), what=lambda: log_of(run_dir, job))
    slurm.call("scancel", job)
    slurm.wait(job, "CANCELLED")
    until(lambda: not slurm.processes(job), what=lambda: f"{slurm.processes(job)} to end")
    steps, log = steps_of(run_dir), log_of(run_dir, job)
    assert steps and steps == list(range(1, len(steps) + 1)), log
    assert re.search(r"SIGTERM: finishing step \d+, then saving\n", log), log
    # on a busy machine Slurm kills it (KillWait) while it stops Ray; the step is saved by then
    said = f"preempted at step {steps[-1]}, saved (signal SIGTERM)"
    assert said in log or re.search(r"stopping Ray.*\n.*task 0: Killed", log), log
    assert (
        run_dir / "checkpoints" / "_actor" / "latest"
    ).read_text() == f"global_step{steps[-1]}"
    assert slurm.job(job)["Restarts"] == "0", log


def test_a_job_without_progress_is_not_started_for_ever(slurm, run_dir, job_template):
    """Its command ends as if a node were lost, before any checkpoint."""
    job = slurm.submit(run_dir, template=job_template("bash -c 'exit 86'"))
    assert slurm.wait(job, "FAILED", "COMPLETED")["Restarts"] == "3", log_of(run_dir, job)
    assert "this job was started 3 times and its newest checkpoint is still none" in log_of(
        run_dir, job
    )
    slurm.assert_nothing_left(job)


def test_seeds_are_runs_of_their_own(slurm, run_dir, job_template):
    template = job_template('bash -c \'echo "${@: -1}" > "$0/seen"\' "$run_dir" "${seed[@]}"')
    job = slurm.submit(run_dir, "--seeds=3,5", template=template)
    until(
        lambda: all((run_dir / f"seed{seed}" / "seen").is_file() for seed in (3, 5)),
        what=f"both tasks of {job}",
    )
    for seed in (3, 5):
        assert (run_dir / f"seed{seed}" / "seen").read_text() == f"train.seed={seed}\n"
        slurm.assert_nothing_left(slurm.wait(f"{job}_{seed}", "COMPLETED", "FAILED")["JobId"])


def test_two_jobs_of_one_run_follow_each_other(slurm, start, run_dir, job_template):
    def status():
        return " ".join(slurm.call("r3", "status", str(run_dir)).split()) + " "

    first = start("run", 8, 0.5)
    second = slurm.submit(run_dir, template=job_template(f"{STEPS} 8 0"))
    assert slurm.job(second)["Reason"] == "Dependency"
    said = status()
    assert (
        f" {first.number} running " in said
        and " node1 " in said
        and f" job {second} waits for it " in said
    )
    (run_dir / "go").touch()
    third = slurm.submit(
        run_dir.with_name("other"), f"--after={second}", template=job_template(f"{STEPS} 1 0")
    )
    assert slurm.wait(third, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    jobs = [slurm.job(number) for number in (first.number, second, third)]
    assert (
        jobs[0]["EndTime"] <= jobs[1]["StartTime"]
        and jobs[1]["EndTime"] <= jobs[2]["StartTime"]
    )
    for number in (first.number, second, third):
        slurm.assert_nothing_left(number)
    assert f" {second} stopped " in status()
    held = slurm.submit(run_dir, "--sbatch=--hold", template=job_template(f"{STEPS} 10 0"))
    assert f" {held} queued (JobHeldUser) " in status()
    slurm.call("scancel", held)


def test_a_time_limit_is_no_end(slurm, limited):
    slurm.wait(limited.number, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    saved = len(re.findall(r"saved step \d+", limited.log()))
    # more where half a minute was not enough for a start and half of the steps
    assert saved >= 1
    assert_finished_without_a_loss(slurm, limited, steps=8, saved=saved)
    # Slurm may send the signal up to a minute early: whichever comes first
    assert re.search(
        r"saved step \d+: (\d+ s are left, a step takes \d+ s|signal SIGUSR1)", limited.log()
    )


def agents_of(slurm, number):
    module = ["-m", "r3_openrlhf.operations.cluster.node_agent"]
    return [
        process for process in slurm.processes(number) if process.info["cmdline"][1:3] == module
    ]


def test_a_killed_agent_takes_its_command_along_and_the_job_goes_on(
    slurm, start, limited, hasty
):
    """As the kernel does when memory is short: nothing is said and nothing is tidied."""
    job = start("run", 10, 0.5, "--sbatch=--nodelist=node1")
    (agent,) = agents_of(slurm, job.number)
    family = agent.children(recursive=True)
    assert any(
        "tests/operations/cluster/steps.py" in " ".join(command_of(process))
        for process in family
    )
    kill(agent)
    psutil.wait_procs(family, timeout=300)
    assert not [process for process in family if process.is_running()]
    (job.run_dir / "go").touch()  # there is no checkpoint, so the second start would wait
    ended = slurm.wait(job.number, "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), job.log()
    assert (
        "the first node's agent was killed" in job.log()
        and "code 86, the job is RUNNING" in job.log()
    )
    # whichever job started next on this machine
    swept = r"removed what an ended job had left: .*/r3-\w{8}"
    assert any(re.search(swept, each.log()) for each in (job, limited, hasty)), job.log()
    slurm.assert_nothing_left(job.number)


@pytest.mark.slow
def test_a_ray_that_ends_on_one_node_ends_the_job_with_the_reason(slurm, run_dir, job_template):
    """Not as failed, although the command, whose calls break at once, ends with 1 before Ray knows why."""
    job = slurm.submit(
        run_dir, "--nodes=2", SMALL_RAY, template=job_template(f"{PROBE} --calls")
    )
    until((run_dir / "probe.json").is_file, what=lambda: f"Ray: {log_of(run_dir, job)}")
    (raylet,) = [
        process
        for process in slurm.processes(job)
        if process.info["name"] == "raylet"
        and process.info["environ"]["SLURMD_NODENAME"] == "node2"
    ]
    kill(raylet)
    until(
        lambda: re.search(r"node1: Ray lost node2; code 86", log_of(run_dir, job)),
        what=lambda: f"the reason: {log_of(run_dir, job)}",
    )
    until(lambda: slurm.job(job)["Restarts"] == "1", what="the requeue")
    slurm.call("scancel", job)
    slurm.wait(job, "CANCELLED")
    slurm.assert_nothing_left(job)


@pytest.mark.slow
def test_a_lost_node_is_noticed_and_the_job_starts_again(
    slurm, run_dir, job_template, monkeypatch
):
    """Everything on node2 dies, Slurm's own daemon too; when the node is back the job goes on by itself. Ray takes more than
    a minute to notice, as on a busy machine."""
    monkeypatch.setitem(slurm.environment, "RAY_health_check_period_ms", "15000")
    job = slurm.submit(run_dir, "--nodes=2", SMALL_RAY, template=job_template(PROBE))
    until((run_dir / "probe.json").is_file, what=lambda: f"Ray: {log_of(run_dir, job)}")
    (run_dir / "probe.json").unlink()
    slurmd = psutil.Process(int((slurm.folder / "slurmd.node2.pid").read_text()))
    of_node = [
        process
        for process in slurm.processes(job)
        if process.info["environ"].get("SLURMD_NODENAME") == "node2"
        and process.info["environ"].get("SLURM_PROCID") == "1"
    ]
    agents = agents_of(slurm, job)
    # it must not see its Ray end
    lost = [
        slurmd,
        *(process for process in of_node if process in agents),
        *of_node,
    ]
    for process in lost:
        kill(process)
    psutil.wait_procs(lost, timeout=300)
    until(
        lambda: "node1: Ray lost node2; code 86" in log_of(run_dir, job),
        what=lambda: f"the reason: {log_of(run_dir, job)}",
    )
    slurm.start_node("node2")
    (run_dir / "go").touch()
    assert slurm.wait(job, "COMPLETED", "FAILED")["Restarts"] == "1", log_of(run_dir, job)
    assert json.loads((run_dir / "probe.json").read_text())["nodes"] == ["node1", "node2"]
    slurm.assert_nothing_left(job)


# Seed 1 ends at once, 2 runs until it is let go, and the last one finds a node unfit at its first start.
TASK = """bash -c 'echo "$SLURM_RESTART_COUNT:$R3_DEADLINE" >> "$0/starts"
case $SLURM_ARRAY_TASK_ID in
    2) until [[ -e "$0/../go" ]]; do sleep 0.1; done ;;
    3) until [[ -e "$0/../now" ]]; do sleep 0.1; done
       (( ${SLURM_RESTART_COUNT:-0} )) || { echo node3 > "$0/cluster/$SLURM_JOB_ID.exclude"; exit 87; } ;;
esac' "$run_dir" """


def test_the_last_seed_acts_on_itself_alone(slurm, run_dir, job_template):
    """Its job has the array's own number: a deadline, a requeue and an excluded node must not be the others'."""
    job = slurm.submit(run_dir, "--seeds=1,2,3", "--time=30", template=job_template(TASK))
    starts = {seed: run_dir / f"seed{seed}" / "starts" for seed in (1, 2, 3)}
    slurm.wait(f"{job}_1", "COMPLETED", "FAILED")
    until(lambda: all(path.is_file() for path in starts.values()), what=f"all tasks of {job}")
    (run_dir / "now").touch()
    until(lambda: slurm.job(f"{job}_3")["Restarts"] == "1", what="the requeue of the last seed")
    until(lambda: slurm.job(f"{job}_3")["ExcNodeList"] == "node3", what="the excluded node")
    assert slurm.job(f"{job}_2")["ExcNodeList"] == "(null)"
    assert slurm.wait(f"{job}_3", "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    (run_dir / "go").touch()
    for seed, restarts in ((1, "0"), (2, "0"), (3, "1")):
        ended = slurm.wait(f"{job}_{seed}", "COMPLETED", "FAILED", "CANCELLED")
        assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", restarts), seed
        lines = starts[seed].read_text().splitlines()
        assert len(lines) == 1 + int(restarts) and all(
            re.fullmatch(r"\d*:\d+", line) for line in lines
        ), lines


def test_a_job_without_an_exported_environment_has_what_its_script_exports(
    slurm, run_dir, job_template
):
    path = slurm.environment["PATH"]
    template = job_template(
        'bash -c \'echo "${R3_DEADLINE:-none} ${OF_THE_SCRIPT:-none}" > "$0/seen"\' "$run_dir"'
    )
    shell = f"set -uo pipefail\nexport OF_THE_SCRIPT=here PATH={path}\n"
    template.write_text(template.read_text().replace("set -uo pipefail\n", shell))
    job = slurm.submit(run_dir, "--sbatch=--export=NONE", "--time=30", template=template)
    assert slurm.wait(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log_of(
        run_dir, job
    )
    assert re.fullmatch(r"\d+ here\n", (run_dir / "seen").read_text())
