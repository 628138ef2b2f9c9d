"""Settings of a site for every submission: ~/.config/r3/site.yaml or what R3_SITE names."""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import nearest

VARIABLE = "R3_SITE"
DEFAULT = Path("~/.config/r3/site.yaml")
# what PyYAML and omegaconf raise of a file that a person wrote; all mean the same to him
_NO_YAML = (
    yaml.YAMLError,
    OmegaConfBaseException,
    OSError,
    ValueError,
    TypeError,
    AssertionError,
    RecursionError,
)


@dataclass
class Site:
    """Each is the default of the option of `r3 submit slurm` with the same name."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None  # as sbatch takes it: 24:00:00, 2-12:00:00
    gres: str | None = None  # instead of --gpus-per-node=N: gpu:TYPE:N
    cpus_per_task: int | None = None
    mem: str | None = None  # of a node, as sbatch takes it: 200G; 0: all of it
    container: str | None = None  # a .sif file: Apptainer; anything else: pyxis
    mounts: str | None = None  # HOST:CONTAINER,... ; the run directory is added
    # a file that the job sources first: modules, environment, proxies
    prologue: str | None = None
    ray_args: str = ""  # further arguments of `ray start`
    # instead of r3_openrlhf/operations/cluster/templates/slurm.sh.j2
    template: str | None = None


def load_site() -> Site:
    """Load the user's file; nothing is set where there is none. Raises ConfigError."""
    named = os.environ.get(VARIABLE)
    path = Path(named or DEFAULT).expanduser()
    if not path.is_file():
        if named:
            raise ConfigError(f"{VARIABLE} is {named}, and there is no such file")
        return Site()
    try:
        text = path.read_text(encoding="utf-8")
        values = OmegaConf.create(text)
        if isinstance(values, DictConfig):
            _as_written(values, text)
    except _NO_YAML as error:
        fault = str(error)
        if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
            fault = f"{error.problem}, line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(
            f"{path} cannot be read as YAML: {' '.join(fault.split())[:300]}"
        ) from error
    known = [field.name for field in fields(Site)]
    if not isinstance(values, DictConfig):
        raise ConfigError(
            f"{path} holds a list; write one KEY: VALUE a line, of {', '.join(known)}"
        )
    for key in map(str, values):
        if key not in known:
            raise ConfigError(f"{path} sets {key}, which does not exist; {nearest(key, known)}")
    try:
        return cast(
            Site, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Site), values))
        )
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}, {error.full_key}: {str(error).splitlines()[0]}") from error


def _as_written(values: DictConfig, text: str) -> None:
    """Put each value's own spelling in the place of what YAML 1.1 makes of it, as 86400 of 24:00:00 and 5349
    of the account 012345. What is null stays None."""
    read = cast("dict[str, object]", OmegaConf.to_container(values, resolve=False))
    for key, written in yaml.load(text, yaml.BaseLoader).items():
        if isinstance(written, str) and read.get(key) is not None:
            values[key] = written
