"""`r3 submit ray` on a real Ray with its dashboard, and the manifest for KubeRay."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
from omegaconf import OmegaConf

from r3_openrlhf.machine import ray_start
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.operations.cluster.ray_on_nodes import node_address
from tests.commands import r3
from tests.operations.cluster.conftest import BIN, REPOSITORY, kill, steps_of
from tests.processes import until

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    """Its address. Somebody else's Ray: nothing of ours was set when it was started."""
    import psutil

    host, web = node_address(), free_port()
    temp_dir = Path(f"/tmp/r3job{os.getpid()}")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "R3_"))
    }
    environment |= {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    # 60 s and 30 s by themselves
    names = (
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S",
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT",
    )
    environment |= dict.fromkeys(names, "600")
    # free ports everywhere: of two Rays on one machine the second would have no agent that takes jobs
    command = [
        sys.executable,
        "-m",
        ray_start.__name__,
        "start",
        "--head",
        "--block",
        "--disable-usage-stats",
    ]
    command += ["--num-gpus=1", "--num-cpus=8"]
    command += [
        "--object-store-memory=200000000",
        f"--temp-dir={temp_dir}",
        f"--port={free_port()}",
    ]
    command += [
        f"--node-ip-address={host}",
        f"--dashboard-host={host}",
        f"--dashboard-port={web}",
    ]
    command += ["--include-dashboard=true", f"--ray-client-server-port={free_port()}"]
    command += ["--dashboard-agent-listen-port=0"]
    log = tmp_path_factory.mktemp("ray") / "log"
    with log.open("w") as file:
        head = subprocess.Popen(command, env=environment, stdout=file, stderr=file, cwd="/")
    try:
        address = f"http://{host}:{web}"
        probe = [BIN / "ray", "job", "list", "--address", address]
        call = {"env": environment, "capture_output": True, "timeout": 600}
        until(
            lambda: head.poll() is not None or not subprocess.run(probe, **call).returncode,
            what="the dashboard",
        )
        assert head.poll() is None, log.read_text()
        yield address, environment
    finally:
        if head.poll() is None:
            family = [
                psutil.Process(head.pid),
                *psutil.Process(head.pid).children(recursive=True),
            ]
            head.terminate()
            left = psutil.wait_procs(family, timeout=20)[1]
            for process in left:
                kill(process)
            psutil.wait_procs(left, timeout=60)
        subprocess.run(["rm", "-rf", str(temp_dir)], check=False)


def submit(dashboard, run_dir, *arguments):
    address, environment = dashboard
    settings = ["experiment=cpu_smoke", f"run_dir={run_dir}"]
    command = [BIN / "r3", "submit", "ray", *settings, "--address", address, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, cwd=REPOSITORY
    )


def followed(dashboard, submitted):
    """The output of the job to its end, by the command that `r3 submit ray` printed."""
    command = re.search(r"follow  ray (.*)", submitted.stderr)[1].split()
    return subprocess.run(
        [BIN / "ray", *command], env=dashboard[1], capture_output=True, text=True, timeout=600
    ).stdout


def state(dashboard, job):
    address, environment = dashboard
    code = f"from r3_openrlhf.operations.cluster.ray_jobs import connect; print(connect({address!r}).get_job_status({job!r}).value)"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.slow
def test_a_job_is_submitted_and_followed(dashboard, run, tmp_path):
    """A finished run, which `r3 train` shows: no stack is started."""
    run.append_metrics({"step": 1, "reward_mean": 0.5})
    run.mark_finished()
    done = submit(dashboard, run.path)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = followed(dashboard, done)
    assert "This run is finished" in shown and "0.500 -> 0.500" in shown
    job = done.stdout.strip()
    assert f"ray job stop --address {dashboard[0]} {job}" in done.stderr
    assert state(dashboard, job) == "SUCCEEDED"
    failed = submit(dashboard, tmp_path / "other", "model.path=/nowhere")
    assert "model.path is '/nowhere'" in followed(dashboard, failed)
    assert state(dashboard, failed.stdout.strip()) == "FAILED"


# The program of a job: it ends with the code that its run directory is named after, or waits to be stopped.
ENDS = f"""#!{sys.executable}
import signal, sys
ending = sys.argv[2].partition("=")[2].rpartition("/")[2]
if ending == "stopped":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))
    open(sys.argv[0] + ".waits", "w").close()
    signal.pause()
sys.exit(int(ending))
"""


@pytest.mark.slow
def test_whoever_waits_for_a_job_is_told_how_it_ended(dashboard, tmp_path, monkeypatch):
    """Ray's own commands end with 0 for a failed and for a stopped job."""
    from r3_openrlhf.operations.cluster import ray_jobs

    address, environment = dashboard
    program = tmp_path / "r3"
    program.write_text(ENDS)
    program.chmod(0o755)
    monkeypatch.setattr(
        ray_jobs, "entrypoint", lambda config, _: f"{program} train run_dir={config.run_dir}"
    )

    def waited(ending, *arguments):
        settings = ["experiment=cpu_smoke", f"run_dir={tmp_path}/{ending}"]
        return r3("submit", "ray", *settings, "--address", address, "--wait", *arguments)

    def code_of_ray(*arguments):
        command = [BIN / "ray", "job", arguments[0], "--address", address, *arguments[1:]]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=600)
        return done.returncode

    done = waited("0")
    assert done.exit_code == 0 and f"job {done.stdout.strip()} succeeded" in done.stderr
    failed = waited("85")
    job = failed.stdout.strip()
    last = failed.stderr.splitlines()[-1]
    assert failed.exit_code == 85
    assert last.startswith(f"Error: job {job} ended with 85; `ray job logs")
    # what docs/cluster.md says of Ray's own commands
    assert code_of_ray("status", job) == code_of_ray("logs", "--follow", job) == 0

    def stop():
        until((tmp_path / "r3.waits").exists, what="the job to wait")
        client = ray_jobs.connect(address)
        (number,) = [
            job.submission_id for job in client.list_jobs() if not job.status.is_terminal()
        ]
        client.stop_job(number)

    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(stop)
        stopped = waited("stopped")
        stopping.result()
    assert stopped.exit_code == 1
    sentence = f"Error: job {stopped.stdout.strip()} was stopped; the same command resumes it"
    assert stopped.stderr.splitlines()[-1] == sentence
    (tmp_path / "r3.waits").unlink()
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(stop)
        attached = code_of_ray("submit", "--", str(program), "train", "run_dir=/stopped")
        stopping.result()
    assert attached == 0
    assert "--wait needs a job" in waited("0", "--dry-run").stderr


@pytest.mark.soak
def test_a_run_is_stopped_after_a_checkpoint_and_goes_on(dashboard, tmp_path):
    """The whole stack on a Ray that somebody else started, on the CPU platform; `ray job stop` loses no step."""
    run_dir = tmp_path / "run"
    settings = ("train.max_steps=3", "checkpoint.save_steps=-1")
    job = submit(dashboard, run_dir, *settings).stdout.strip()
    until(lambda: steps_of(run_dir) or state(dashboard, job) == "FAILED", what="the first step")
    again = submit(dashboard, run_dir, *settings)
    assert again.returncode == 1 and re.search(
        rf"job {job} of .* is running; stop it with", again.stderr
    )
    address, environment = dashboard
    subprocess.run(
        [BIN / "ray", "job", "stop", "--address", address, job],
        env=environment,
        check=True,
        timeout=400,
    )
    assert state(dashboard, job) in ("STOPPED", "FAILED")  # 85 is no 0 for Ray
    saved = (run_dir / "checkpoints" / "_actor" / "latest").read_text()
    assert saved == f"global_step{steps_of(run_dir)[-1]}"
    done = submit(dashboard, run_dir, *settings)
    assert done.returncode == 0, done.stdout
    followed(dashboard, done)
    assert steps_of(run_dir) == [1, 2, 3]


# What KubeRay takes as a RayJob: from the Go types that it makes its CRD of (ray-operator/apis/ray/v1, at 0057210e and 026f1433).
# Pods are Kubernetes' own. What is a plain object there is not looked into, for we write none of it.
RAY_JOB = json.loads(Path(__file__).with_name("rayjob_schema.json").read_text())


def validate(job):
    """Raises ValidationError with the field that is wrong."""
    jsonschema.validate(job, RAY_JOB, cls=jsonschema.Draft202012Validator)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pods = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": job["metadata"],
            "template": group["template"],
        }
        kubernetes_validate.validate(pods, "1.37.0", strict=True)  # the newest that it knows


def manifest(*arguments):
    command = [
        "submit",
        "ray",
        "experiment=r3_7b_deepscaler_multinode",
        "--manifest",
        *arguments,
    ]
    return r3(*command)


def test_a_manifest_has_a_worker_pod_per_node():
    result = manifest(
        "run_dir=/runs/x", "--nodes=2", "--image=IMAGE", "--claim=runs", "--mount=/runs"
    )
    job = OmegaConf.to_container(OmegaConf.create(result.stdout))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"]["entrypoint"].endswith("cluster.num_nodes=2 run_dir=/runs/x")
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert [workers[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [2, 2, 2]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["image"] == "IMAGE" and container["resources"]["limits"] == {
        "nvidia.com/gpu": 8
    }
    assert container["resources"]["requests"] == {
        "nvidia.com/gpu": 8,
        "cpu": 34,
        "memory": "169Gi",
    }
    assert {"name": "runs", "mountPath": "/runs"} in container["volumeMounts"]
    validate(job)
    workers["maxReplicas"] = "2"  # the schema notices
    with pytest.raises(jsonschema.ValidationError, match="maxReplicas"):
        validate(job)


def test_no_value_of_a_manifest_is_more_than_a_text(monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", 'x"\n- {a: b} # <&>')
    result = manifest(
        "run_dir='/runs/it is: #1'", "--image=a: b", "--claim=#c", "--mount=/runs"
    )
    job = OmegaConf.to_container(OmegaConf.create(result.stdout))
    assert job["spec"]["entrypoint"].endswith("'run_dir=/runs/it is: #1'")
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "#c"}
    assert pod["containers"][0]["image"] == "a: b"
    assert {"name": "WANDB_PROJECT", "value": 'x"\n- {a: b} # <&>'} in pod["containers"][0][
        "env"
    ]
    validate(job)


TYPED = (
    "data.prompt_template='{problem} Let $x$ be it, in $(date) or `id`.'",
    "rollout.stop=['a,b', \"it\\'s\", '\\\\', '!']",
    'logging.wandb_project="a  \\"b\\" #c & d | e > f; * ~ %PATH% ^"',
)


@pytest.mark.slow
def test_settings_of_a_manifest_arrive_as_typed(dashboard, monkeypatch, tmp_path):
    """KubeRay's HTTPMode posts the entrypoint to the head's dashboard, whose shell reads it."""
    from ray.job_submission import JobSubmissionClient

    monkeypatch.setenv("WANDB_NOTES", "$(HOME) costs 5$ or $$5")
    pods = ("--manifest", "--image=I", "--claim=runs", "--mount=/runs")
    result = r3("submit", "ray", "experiment=cpu_smoke", "run_dir='/runs/a b'", *TYPED, *pods)
    job = OmegaConf.to_container(OmegaConf.create(result.stdout.replace("${", "$ {")))
    validate(job)
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    (notes,) = [each for each in head["env"] if each["name"] == "WANDB_NOTES"]
    # of which Kubernetes makes what was set
    assert notes["value"] == "$$(HOME) costs 5$$ or $$$$5"
    assert job["spec"]["submissionMode"] == "HTTPMode"
    program = tmp_path / "r3"
    seen = tmp_path / "seen"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open({str(seen)!r}, 'w'))\n"
    )
    program.chmod(0o755)
    runtime = {"env_vars": {"PATH": f"{tmp_path}:{os.environ['PATH']}"}}
    client = JobSubmissionClient(dashboard[0])
    number = client.submit_job(entrypoint=job["spec"]["entrypoint"], runtime_env=runtime)
    until(lambda: client.get_job_status(number).is_terminal(), what="the job's end")
    assert json.loads(seen.read_text()) == [
        "train",
        "experiment=cpu_smoke",
        *TYPED,
        "cluster.num_nodes=1",
        "run_dir=/runs/a b",
    ]


def test_what_a_manifest_needs():
    assert (
        "--manifest needs --image and --claim and --mount too"
        in manifest("run_dir=/runs/x").stderr
    )
    result = manifest("run_dir=/elsewhere/x", "--image=I", "--claim=runs", "--mount=/runs")
    assert "run_dir /elsewhere/x is not below --mount /runs" in result.stderr
    result = r3("submit", "ray", "experiment=cpu_smoke")
    assert "no Ray dashboard is given" in result.stderr
