"""All lines of the table, in the order in which they are worth repairing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from r3_openrlhf.doctor import experiment, imports, machine, packages
from r3_openrlhf.doctor.line import FAIL, Line
from r3_openrlhf.doctor.packages import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was looked at, and what was found."""

    stack: Stack  # what was wanted
    lines: list[Line]

    @property
    def num_failed(self) -> int:
        """How many lines fail; notes do not count."""
        return sum(line.status == FAIL for line in self.lines)


def examine(settings: tuple[str, ...], *, stack: Stack | None = None, tell: Callable[[str], None]) -> Examination:
    """settings: experiment=NAME and key=value, or nothing. stack: "cpu" or "gpu"; None takes the experiment's
    cluster.device where that is cuda, else what the machine has. `tell` hears what is looked at while that takes time."""
    driver = machine.nvidia_driver()
    config, config_lines = experiment.configuration(settings)
    wants_cuda = (
        config is not None and config.cluster.device == "cuda"
    )  # a bare Python runs this: r3_openrlhf.types needs numpy
    stack = stack or ("gpu" if wants_cuda or driver is not None else "cpu")
    cluster = config.cluster if config is not None else None

    lines = [machine.python_line(), *packages.package_lines(stack)]
    num_devices = cluster.gpus_per_node if cluster is not None and wants_cuda else None
    lines += imports.import_lines(stack, num_devices=num_devices, driver=driver, tell=tell)
    if stack == "gpu":
        lines += [machine.driver_line(driver), machine.toolkit_line(imports.cuda_version())]
    tell("the machine")
    lines += [
        machine.compiler_line(),
        machine.ninja_line(),
        machine.build_locks_line(),
        machine.shared_memory_line(stack),
    ]
    least = experiment.expected_bytes(config) if config is not None and stack == "gpu" else 0
    lines += machine.disk_lines(Path(config.run_dir if config is not None else "runs").absolute(), least=least)
    address = (cluster.ray_address if cluster is not None else None) or os.environ.get("RAY_ADDRESS")
    num_nodes = cluster.num_nodes if cluster is not None else 1
    lines += [machine.open_files_line(), machine.ray_ports_line(address=address, num_nodes=num_nodes)]
    if settings:
        tell("model and data")
        lines += config_lines
        lines += experiment.path_lines(config) if config is not None else []
    return Examination(stack=stack, lines=lines)
