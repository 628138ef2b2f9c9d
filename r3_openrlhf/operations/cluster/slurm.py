"""`r3 submit slurm`: the settings of a run -> the text of a job script (pure) -> sbatch."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.access import is_secret
from r3_openrlhf.config.words import Device
from r3_openrlhf.method.errors import ConfigError, on_one_line, quoted, without_secrets
from r3_openrlhf.operations.cluster import ClusterError

TEMPLATE = Path(__file__).parent / "templates" / "slurm.sh.j2"
# What a job must have of the environment in which it was submitted, whatever the site's sbatch exports. Keys and tokens
# are none of them: the script is a file in the run directory.
FORWARDED = ("HF_HOME", "HF_HUB_OFFLINE", "PYTHONPATH", "NCCL_", "WANDB_", "R3_", "GLOO_SOCKET_IFNAME")
LEAD_S = 600  # before anything is measured
_NAMES = r"[\w.+@-]+(,[\w.+@-]+)*"
# option -> its form in sbatch's manual, and the same in words. A value that is no such thing could be another option, or a command
FORMS = {
    "partition": (_NAMES, "names with commas between them, like gpu,gpu_long"),
    "account": (_NAMES, "the name of an account, like my_project"),
    "qos": (_NAMES, "the name of a quality of service, like high"),
    "time": (
        r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}",
        "minutes, minutes:seconds, hours:minutes:seconds or days-hours:minutes:seconds, like 24:00:00",
    ),
    "gres": (
        r"[\w./-]+(:[\w.-]+)*(,[\w./-]+(:[\w.-]+)*)*",
        "name:count or name:type:count with commas between them, like gpu:h100:8",
    ),
    "after": (r"\d+(_\d+)?(:\d+(_\d+)?)*", "the number of a job, like 123 or 123_4, with colons between several"),
    "sbatch": (r"-(-[a-z]|[A-Za-z]).*", "one option of sbatch, like --constraint=a100"),
}


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """What `render` needs in addition to the run's configuration. None and empty: the site's default."""

    nodes: int
    settings: Sequence[str]  # experiment=... key=value ..., without run_dir
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    gres: str | None = None
    cpus_per_task: int | None = None
    exclusive: bool = False
    container: str | None = None
    mounts: str | None = None
    prologue: str | None = None
    ray_args: str = ""
    seeds: Sequence[int] = ()
    after: str | None = None
    earlier: Sequence[str] = ()  # jobs of the same runs that are still in the queue
    sbatch_options: Sequence[str] = ()
    template: str | None = None
    lead_s: int = LEAD_S
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    written_by: str = "r3 submit slurm"


def check_values(job: SlurmJob) -> None:
    """ConfigError: a value has a control character, or not the form that sbatch documents for it."""
    values = [
        (f"--{name}", getattr(job, name, None)) for name in ("container", "mounts", "prologue", "template", *FORMS)
    ]
    values += [("--sbatch", option) for option in job.sbatch_options]
    for name, value in values:
        form, words = FORMS.get(name.removeprefix("--"), (".*", "a path"))
        if value and not (value.isprintable() and re.fullmatch(form, value, re.ASCII)):
            raise ConfigError(f"{name} is {quoted(value)}; use {words}, without control characters")


def render(job: SlurmJob, config: R3Config) -> str:
    """The job script. Pure but for reading the template. Raises ConfigError for a template that does not render, and for a value
    that sbatch would not take."""
    check_values(job)
    run_dir = Path(config.run_dir)
    cuda = config.cluster.device == Device.CUDA
    source = Path(job.template).expanduser() if job.template else TEMPLATE
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["quote"] = shlex.quote
    container_options, prefix, bare = _container(job, run_dir)
    python = f"{prefix}{shlex.quote(job.python) if bare else 'python'}"
    r3 = shlex.quote(str(Path(job.python).with_name("r3"))) if bare else "r3"
    agent_options = f" --gpus {config.cluster.gpus_per_node}" + (" --device cuda" if cuda else "")
    if job.ray_args:
        agent_options += f" --ray-args={shlex.quote(job.ray_args)}"
    try:
        return environment.from_string(source.read_text(encoding="utf-8")).render(
            job=job,
            written_by=on_one_line(without_secrets(job.written_by)),
            script=shlex.quote(str(script_of(config))),
            job_name=job_name(config),
            gpus=config.cluster.gpus_per_node if cuda else None,
            dependency=_dependency(job),
            log=str(run_dir / "cluster").replace("%", "%%") + ("/slurm-%A_%a.log" if job.seeds else "/slurm-%j.log"),
            prologue=job.prologue and str(Path(job.prologue).expanduser().absolute()),
            run_dir=str(run_dir),
            container_options=container_options,
            python=python,
            agent_options=agent_options,
            train=" ".join([r3, "train", *map(shlex.quote, job.settings), f"cluster.num_nodes={job.nodes}"]),
        )
    except FileNotFoundError as error:
        raise ConfigError(f"template {source} does not exist") from error
    except jinja2.TemplateError as error:
        raise ConfigError(f"template {source} does not render: {error}") from error


def script_of(config: R3Config) -> Path:
    """Where the job script of this run is."""
    return Path(config.run_dir) / "cluster" / "job.sh"


def job_name(config: R3Config) -> str:
    """The same for the same run directory: two jobs of one run wait for each other (--dependency=singleton)."""
    path = Path(config.run_dir)
    return f"r3-{re.sub(r'[^A-Za-z0-9_.-]', '-', path.name)}-{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job needs (FORWARDED), by name. No secrets, no deadline, which is another job's, and none that bash
    cannot export."""
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
    """--seeds as numbers; none where it is not given. ConfigError: not whole numbers from 0 up, or one twice."""
    if not text:
        return []
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--seeds is {quoted(text)}; give whole numbers with commas between them, like 1,2,3"
        ) from error
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(f"--seeds is {quoted(text)}; give different numbers from 0 up")
    return seeds


def limit_s(time: str) -> int | None:
    """Seconds of a --time as sbatch takes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S. None: none of these."""
    if not re.fullmatch(FORMS["time"][0], time, re.ASCII):
        return None
    days, dash, rest = time.rpartition("-")
    parts = rest.split(":")
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(int(part) * unit for part, unit in zip(parts, units, strict=False))


def default_time(partition: str | None) -> str | None:
    """The limit of a job without --time: the partition's default, else its longest; None where there is none, or no Slurm that
    answers. partition: None is Slurm's default one, which sinfo marks with a star."""
    if shutil.which("sinfo") is None:
        return None
    done = subprocess.run(["sinfo", "--noheader", "--format=%P|%L|%l"], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        name, usual, longest = line.strip().split("|")
        if name.rstrip("*") == partition if partition else name.endswith("*"):
            return usual if limit_s(usual) is not None else longest
    return None


def lead_of(time: str | None, longest_step_s: float | None, longest_save_s: float | None = None) -> int:
    """Seconds between the signal and the limit: a minute, 1.2 steps and 1.5 checkpoints (one that was never measured counts
    as a step), or LEAD_S before a step was measured; at most a quarter of the limit, because a job that gets its signal at the
    start makes no step."""
    save_s = longest_step_s if longest_save_s is None else longest_save_s
    lead = LEAD_S if longest_step_s is None or save_s is None else int(1.2 * longest_step_s + 1.5 * save_s + 60)
    limit = limit_s(time) if time else None
    return lead if limit is None else max(1, min(lead, limit // 4))


def sbatch(script: Path) -> str:
    """Submit; returns the job id. Raises ClusterError with sbatch's own words."""
    if shutil.which("sbatch") is None:
        raise ClusterError(f"sbatch is not in the PATH; submit {script} from a node that has Slurm")
    # a job inside a job would inherit the outer one's numbers
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_JOB", "SLURM_N"))}
    done = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ClusterError(f"sbatch refused {script}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip().split(";")[0]


def _dependency(job: SlurmJob) -> str | None:
    """Two jobs of the same run never run at once. Tasks of an array have one name and different runs, so they name the jobs
    that they wait for; what no dependency says (job.sh submitted twice) the lock on the run directory does."""
    parts = [] if job.seeds else ["singleton"]
    before = [*job.earlier, *([job.after] if job.after else [])]
    if before:
        parts.append(f"afterany:{':'.join(before)}")
    return ",".join(parts) or None


def _container(job: SlurmJob, run_dir: Path) -> tuple[str, str, bool]:
    """Options of srun, prefix of the command, and whether the job runs bare."""
    if job.container is None:
        return "", "", True
    mounts = ",".join(filter(None, [job.mounts, f"{run_dir}:{run_dir}"]))
    if job.container.endswith(".sif"):
        return "", f"apptainer exec --nv --bind {shlex.quote(mounts)} {shlex.quote(job.container)} ", False
    return f" --container-image={shlex.quote(job.container)} --container-mounts={shlex.quote(mounts)}", "", False
