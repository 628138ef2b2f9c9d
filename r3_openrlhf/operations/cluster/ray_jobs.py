"""`r3 submit ray`: a run as a job of a Ray cluster, by its dashboard; or a KubeRay manifest."""

import shlex
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from r3_openrlhf.config import R3Config
from r3_openrlhf.operations.cluster import ClusterError

# From `ray job stop` to the kill: for a step and a checkpoint. Ray's default is 3 s.
STOP_WAIT = {"RAY_JOB_STOP_WAIT_TIME_S": "600"}
RUNNING = {"PENDING", "RUNNING"}
# Ray's dashboard answers before the agent that starts jobs is there, and waits 10 s
# (WAIT_AVAILABLE_AGENT_TIMEOUT). On a new cluster that is not always enough.
AGENT_TRIES = 12
PACE_S = 2.0  # between two looks at a job that is waited for
LOOK_TRIES = 30  # without an answer: a minute, in which a head may start again


class JobEnd(NamedTuple):
    """The end of a Ray job. code: the exit code of its command; never 0 unless Ray says SUCCEEDED."""

    code: int
    sentence: str


def entrypoint(config: R3Config, settings: Sequence[str]) -> str:
    """Return the job's command. Its run directory is absolute: the working directory is a folder that Ray deletes."""
    return shlex.join(["r3", "train", *settings, f"run_dir={config.run_dir}"])


def submit(
    config: R3Config, settings: Sequence[str], *, address: str, environment: Mapping[str, str]
) -> str:
    """Return Ray's id of the job. ClusterError: no dashboard, or this run has a job."""
    client = connect(address)
    for job in client.list_jobs():
        if (job.metadata or {}).get(
            "run_dir"
        ) == config.run_dir and job.status.value in RUNNING:
            raise ClusterError(
                f"job {job.submission_id} of {config.run_dir} is {job.status.value.lower()}; stop it with "
                f"`ray job stop --address {address} {job.submission_id}`, or choose another run_dir"
            )
    runtime = {"env_vars": {**STOP_WAIT, **environment}}
    for attempt in range(AGENT_TRIES):
        try:
            return client.submit_job(
                entrypoint=entrypoint(config, settings),
                runtime_env=runtime,
                metadata={"run_dir": config.run_dir},
            )
        except RuntimeError as error:  # how Ray passes on what its dashboard answered
            if "No available agent" not in str(error) or attempt == AGENT_TRIES - 1:
                raise ClusterError(
                    f"the Ray at {address} took no job: {str(error).splitlines()[0]}"
                ) from error
    raise AssertionError("the last try returns or raises")


def wait(job: str, *, address: str) -> JobEnd:
    """Wait for the end of a job. Raises ClusterError if the dashboard no longer answers.

    Of a stopped job Ray knows no exit code (job_supervisor.py:416): it is 1 here."""
    client = connect(address)
    failed_looks = 0
    while True:
        try:
            info = client.get_job_info(job)
        except (OSError, RuntimeError) as error:
            failed_looks += 1
            if failed_looks == LOOK_TRIES:
                raise ClusterError(
                    f"the Ray at {address} no longer answers about job {job}: {str(error).splitlines()[0]}"
                ) from error
        else:
            failed_looks = 0
            if info.status.is_terminal():
                break
        time.sleep(PACE_S)  # only the pace of asking
    if info.status.value == "SUCCEEDED":
        return JobEnd(0, f"job {job} succeeded")
    if info.status.value == "STOPPED":
        return JobEnd(1, f"job {job} was stopped; the same command resumes it")
    code = info.driver_exit_code
    if not code:
        reason = (info.message or "Ray gives no reason").splitlines()[0]
        return JobEnd(1, f"job {job} failed: {reason}")
    if code < 0:  # by a signal, as a shell says it
        code = 128 - code
    logs = f"ray job logs --address {address} {job}"
    return JobEnd(code, f"job {job} ended with {code}; `{logs}` prints its output")


def connect(address: str):
    """Connect to the Ray dashboard at `address`. ClusterError: none answers there."""
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError, AuthenticationError) as error:
        raise ClusterError(
            f"no Ray dashboard answers at {address}: {str(error).splitlines()[0]}"
        ) from error


def manifest(
    config: R3Config,
    settings: Sequence[str],
    *,
    environment: Mapping[str, str],
    **kubernetes: object,
) -> str:
    """Return the YAML of a RayJob of KubeRay (ray.io/v1): a head without GPU, a worker pod per node.

    kubernetes: name, image, claim (a PersistentVolumeClaim with run_dir) and mount (its path), and
    what a worker pod requests: cores and memory (GiB, None: not known)."""
    import jinja2

    text = (Path(__file__).parent / "templates" / "rayjob.yaml.j2").read_text(encoding="utf-8")
    options = {"trim_blocks": True, "lstrip_blocks": True}
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, **options).from_string(text)
    return template.render(
        entrypoint=entrypoint(config, settings),
        # Kubernetes reads $(NAME) in a value, and $$ as $
        environment=[
            {"name": name, "value": value.replace("$", "$$")}
            for name, value in environment.items()
        ],
        ray_version=metadata.version("ray"),
        nodes=config.cluster.num_nodes,
        gpus=config.cluster.gpus_per_node,
        **kubernetes,
    )
