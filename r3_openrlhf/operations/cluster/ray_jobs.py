"""`r3 submit ray`: a run as a job of a Ray cluster, by its dashboard; or a KubeRay manifest."""

import shlex
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.operations.cluster import ClusterError

# From `ray job stop` to the kill: for a step and a checkpoint. Ray's default is 3 s.
STOP_WAIT = {"RAY_JOB_STOP_WAIT_TIME_S": "600"}
RUNNING = {"PENDING", "RUNNING"}
# Ray's dashboard answers before the agent that starts jobs is there, and waits 10 s
# (WAIT_AVAILABLE_AGENT_TIMEOUT). On a new cluster that is not always enough.
AGENT_TRIES = 12


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
    **kubernetes: Any,
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
