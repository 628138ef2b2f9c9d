"""`r3 submit slurm`: the settings of a run -> the text of a job script (pure) -> sbatch."""

import hashlib
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import jinja2

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.access import is_secret
from r3_openrlhf.config.words import Device
from r3_openrlhf.method.errors import ConfigError, on_one_line, quoted, without_secrets
from r3_openrlhf.operations.cluster import ClusterError
from r3_openrlhf.operations.cluster.site import Site
from r3_openrlhf.runs.models.locate import locate_model
from r3_openrlhf.runs.planning.forecast import make_plan, not_planned, num_problems_of
from r3_openrlhf.runs.planning.hardware import DEFAULT, GPUS
from r3_openrlhf.runs.planning.shapes import shape_of
from r3_openrlhf.runs.planning.verdict import TIGHT

# paths, and what is quoted
WITH_SPACES = (
    "container",
    "mounts",
    "prologue",
    "template",
    "ray_args",
)
CORES_PER_GPU, CORES_OF_RAY = 4, 2  # engine, its scheduler, a rank, graders; Ray's own daemons
CORES = ("--cpus-per-", "-c")  # options of sbatch
# of them those that count the cores of a node's only task; sbatch takes --cpus-per-t for --cpus-per-task
CORES_OF_TASK = re.compile(r"(?:--cpus-per-t[a-z]*[= ]*|-c[= ]*)(\d+)")
ARRAY = ("--ar", "-a")  # as above; sbatch takes --ar for --array
TEMPLATE = Path(__file__).parent / "templates" / "slurm.sh.j2"
# What a job must have of the environment in which it was submitted, whatever the site's sbatch
# exports. Keys and tokens are none of them: the script is a file in the run directory.
FORWARDED = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "PYTHONPATH",
    "NCCL_",
    "WANDB_",
    "R3_",
    "GLOO_SOCKET_IFNAME",
)


@dataclass(kw_only=True)
class SlurmJob(Site):
    """Inputs of `render` besides the run's configuration. None and empty: the site's default."""

    nodes: int
    settings: Sequence[str]  # experiment=... key=value ..., without run_dir
    exclusive: bool = False
    seeds: Sequence[int] = ()
    after: str | None = None
    sbatch_options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    written_by: str = "r3 submit slurm"


def check_values(job: SlurmJob) -> None:
    """Refuse a control character or (for sbatch) a space: another option, or a command. Raises ConfigError."""
    for name in ("after", *(each.name for each in fields(Site))):
        value = str(getattr(job, name) or "")
        if not value.isprintable() or (name not in WITH_SPACES and re.search(r"\s", value)):
            raise ConfigError(
                f"--{name.replace('_', '-')} is {quoted(value)}; use a value without spaces and control characters"
            )
    for option in job.sbatch_options:
        if not option.isprintable() or not option.startswith("-"):
            raise ConfigError(
                f"--sbatch is {quoted(option)}; use one option of sbatch, like --constraint=a100"
            )


def cores_of(config: R3Config) -> int:
    """Cores of a node."""
    return CORES_PER_GPU * config.cluster.gpus_per_node + CORES_OF_RAY


def planned_gib(config: R3Config) -> int:
    """GiB of the first node, which has the most to do. ConfigError: there is no plan."""
    if (unknown := not_planned(config)) is not None:
        raise ConfigError(f"it does not know what {unknown} takes")
    path = config.model.path
    shape = shape_of(
        located if Path(located := locate_model(path), "config.json").is_file() else path
    )
    # no memory is that of the problems
    plan = make_plan(config, shape, GPUS[DEFAULT], num_problems=num_problems_of(config) or 1)
    return math.ceil(sum(plan.host_bytes.values()) / 2**30)


def check_cores(job: SlurmJob, config: R3Config) -> None:
    """Refuse fewer cores than GPUs of a node. Raises ConfigError.

    Upstream asks Ray for a CPU next to each GPU (cli/train_ppo_ray.py:48), and would wait for ever."""
    given = {"--cpus-per-task": job.cpus_per_task}
    for option in job.sbatch_options:
        if (found := CORES_OF_TASK.fullmatch(option)) is not None:
            given[f"--sbatch={option}"] = int(found[1])
    gpus = config.cluster.gpus_per_node
    for option, cores in given.items():
        if cores is not None and cores < gpus:
            raise ConfigError(
                f"{option} gives a node {cores} CPUs, but cluster.gpus_per_node is {gpus} and each GPU needs a CPU; "
                f"use --cpus-per-task {cores_of(config)}, or leave it out"
            )


def ask_for_resources(job: SlurmJob, config: R3Config) -> str | None:
    """Set memory and cores of nodes with GPUs unless they are given: a site's default is often that
    of one core. Returns a sentence if the memory is not known. ConfigError: fewer cores than GPUs."""
    if config.cluster.device != Device.CUDA:
        return None
    check_cores(job, config)
    given = [option.partition("=")[0] for option in job.sbatch_options]
    if (
        job.cpus_per_task is None
        and not job.exclusive
        and not any(each.startswith(CORES) for each in given)
    ):
        job.cpus_per_task = cores_of(config)
    if job.mem is not None or any(each.startswith("--mem") for each in given):
        return None
    try:
        job.mem = "0" if job.exclusive else f"{math.ceil(planned_gib(config) / TIGHT)}G"
    except ConfigError as error:
        return f"nothing asks for memory, because there is no plan: {error}; give --mem, as 200G of each node"
    return None


def render(job: SlurmJob, config: R3Config) -> str:
    """Render the job script. Pure but for reading the template. Raises ConfigError for a template
    that does not render, and for a value that sbatch would not take."""
    check_values(job)
    run_dir = Path(config.run_dir)
    cuda = config.cluster.device == Device.CUDA
    source = Path(job.template).expanduser() if job.template else TEMPLATE
    options = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, **options)
    environment.filters["quote"] = shlex.quote
    container_options, prefix, bare = _container(job, run_dir)
    python = f"{prefix}{shlex.quote(job.python) if bare else 'python'}"
    r3 = shlex.quote(str(Path(job.python).with_name("r3"))) if bare else "r3"
    agent_options = f" --gpus {config.cluster.gpus_per_node}" + (
        " --device cuda" if cuda else ""
    )
    if job.ray_args:
        agent_options += f" --ray-args={shlex.quote(job.ray_args)}"
    # two jobs of a run; tasks of an array share a name but no run, which its lock keeps apart
    apart = [
        *([] if job.seeds else ["singleton"]),
        *([f"afterany:{job.after}"] if job.after else []),
    ]
    try:
        return environment.from_string(source.read_text(encoding="utf-8")).render(
            job=job,
            written_by=on_one_line(without_secrets(job.written_by)),
            script=shlex.quote(str(script_of(config))),
            job_name=job_name(config),
            is_array=bool(job.seeds)
            or any(option.startswith(ARRAY) for option in job.sbatch_options),
            gpus=config.cluster.gpus_per_node if cuda else None,
            dependency=",".join(apart) or None,
            log=str(run_dir / "cluster").replace("%", "%%")
            + ("/slurm-%A_%a.log" if job.seeds else "/slurm-%j.log"),
            prologue=job.prologue and str(Path(job.prologue).expanduser().absolute()),
            run_dir=str(run_dir),
            container_options=container_options,
            python=python,
            agent_options=agent_options,
            train=" ".join(
                [r3, "train", *map(shlex.quote, job.settings), f"cluster.num_nodes={job.nodes}"]
            ),
        )
    except FileNotFoundError as error:
        raise ConfigError(f"template {source} does not exist") from error
    except jinja2.TemplateError as error:
        raise ConfigError(f"template {source} does not render: {error}") from error


def script_of(config: R3Config) -> Path:
    """Return the path of this run's job script."""
    return Path(config.run_dir) / "cluster" / "job.sh"


def job_name(config: R3Config) -> str:
    """One name for a run directory: two jobs wait for each other (--dependency=singleton)."""
    path = Path(config.run_dir)
    return f"r3-{re.sub(r'[^A-Za-z0-9_.-]', '-', path.name)}-{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job needs (FORWARDED), by name. No secrets, no deadline, which is
    another job's, and none that bash cannot export."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(FORWARDED)
        and name.isidentifier()
        and name.isascii()
        and not is_secret(name, value)
        and name != "R3_DEADLINE"
    }


def seeds_of(text: str | None) -> list[int]:
    """--seeds as numbers, or none. ConfigError: no whole numbers from 0 up, or one twice."""
    seeds = [int(part) if part.isdecimal() else -1 for part in text.split(",")] if text else []
    if len(set(seeds)) < len(seeds) or -1 in seeds:
        raise ConfigError(
            f"--seeds is {quoted(text)}; give different whole numbers from 0 up, like 1,2,3"
        )
    return seeds


def sbatch(script: Path) -> str:
    """Submit; returns the job id. Raises ClusterError with sbatch's own words."""
    if shutil.which("sbatch") is None:
        raise ClusterError(
            f"sbatch is not in the PATH; submit {script} from a node that has Slurm"
        )
    # a job inside a job would inherit the outer one's numbers
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_JOB", "SLURM_N"))
    }
    command = ["sbatch", "--parsable", str(script)]
    # SIGPIPE stays ignored: when a busy munged hangs up, libmunge asks again, unless the signal ends sbatch
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, restore_signals=False
    )
    if done.returncode:
        said = done.stderr.strip() or f"it ended with {done.returncode} and said nothing"
        raise ClusterError(f"sbatch refused {script}: {said.splitlines()[-1]}")
    return done.stdout.strip().split(";")[0]


def _container(job: SlurmJob, run_dir: Path) -> tuple[str, str, bool]:
    """Options of srun, prefix of the command, and whether the job runs bare."""
    if job.container is None:
        return "", "", True
    mounts = ",".join(filter(None, [job.mounts, f"{run_dir}:{run_dir}"]))
    if job.container.endswith(".sif"):
        return (
            "",
            f"apptainer exec --nv --bind {shlex.quote(mounts)} {shlex.quote(job.container)} ",
            False,
        )
    return (
        f" --container-image={shlex.quote(job.container)} --container-mounts={shlex.quote(mounts)}",
        "",
        False,
    )
