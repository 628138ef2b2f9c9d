"""What `r3 doctor` and `python -m r3_openrlhf.operations.doctor` do: look at everything, and print a table or JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from r3_openrlhf.machine.gpus import gpus_of_this_machine
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.operations.doctor import experiment, imports, machine, packages
from r3_openrlhf.operations.doctor.line import FAIL, NOTE, OK, Line, progress
from r3_openrlhf.operations.doctor.packages import Stack

WIDTH = 120  # where the terminal does not say


def run(settings: tuple[str, ...], *, stack: Stack | None, as_json: bool) -> int:
    """Print the table, or one JSON object with the same lines, to stdout. Returns the exit code: 1 where a line fails."""
    stack, lines = examine(settings, stack=stack)
    page = None
    config, _ = experiment.configuration(settings)
    if config is not None and all(line.status != FAIL for line in lines):
        progress("the first page")
        try:
            page = experiment.first_page(config)
        except R3Error as error:
            lines.append(Line(what="first page", found="none", wanted="can be made", status=FAIL, remedy=str(error)))
        lines += experiment.page_lines(page) if page is not None else []
    progress("")
    failed = sum(line.status == FAIL for line in lines)  # notes do not count
    if as_json:
        answer: dict[str, Any] = {"stack": stack, "failed": failed, "lines": [asdict(line) for line in lines]}
        answer["first_page"] = page.as_dict() if page is not None else None
        sys.stdout.write(f"{json.dumps(answer, indent=1)}\n")
    else:
        print_table(f"r3 doctor: the {stack.upper()} stack", lines, sys.stdout)
        sys.stdout.write("".join(f"{line}\n" for line in page.lines()) if page is not None else "")
        sys.stdout.write(f"{failed} of {len(lines)} lines fail\n" if failed else f"all {len(lines)} lines are fine\n")
    return 1 if failed else 0


def examine(settings: tuple[str, ...], *, stack: Stack | None = None) -> tuple[Stack, list[Line]]:
    """The stack that is wanted, and all lines in the order in which they are worth repairing.

    settings: experiment=NAME and key=value, or nothing. stack: None takes the experiment's cluster.device where that is
    cuda, else what the machine has.
    """
    driver = machine.nvidia_driver()
    config, config_lines = experiment.configuration(settings)
    cluster = config.cluster if config is not None else None
    wants_cuda = cluster is not None and cluster.device == "cuda"  # a bare Python runs this: types.py needs numpy
    stack = stack or ("gpu" if wants_cuda or driver is not None else "cpu")

    lines = [machine.python_line(), *packages.package_lines(stack)]
    num_devices = cluster.gpus_per_node if cluster is not None and wants_cuda else None
    lines += imports.import_lines(stack, num_devices=num_devices, driver=driver)
    if stack == "gpu":
        on_host = config is not None and config.train.adam_offload
        lines += [machine.driver_line(driver), machine.toolkit_line(imports.cuda_version(), adam_on_host=on_host)]
        share = cluster.vllm_gpu_memory_utilization if cluster is not None else None
        lines += [machine.allocator_line(), *machine.gpu_memory_lines(gpus_of_this_machine(), share=share)]
    progress("the machine")
    lines += [machine.compiler_line(), machine.ninja_line(), machine.build_locks_line()]
    lines += [machine.shared_memory_line(stack), *machine.program_lines()]
    least = experiment.expected_bytes(config) if config is not None and stack == "gpu" else 0
    lines += machine.disk_lines(Path(config.run_dir if config is not None else "runs").absolute(), least=least)
    address = os.environ.get("RAY_ADDRESS")
    num_nodes = cluster.num_nodes if cluster is not None else 1
    lines += [machine.open_files_line(), machine.ray_ports_line(address=address, num_nodes=num_nodes)]
    if settings:
        progress("model and data")
        lines += config_lines + (experiment.path_lines(config) if config is not None else [])
    return stack, lines


def print_table(title: str, lines: list[Line], out: TextIO) -> None:
    """A table; plain lines of text where rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        rows = [f"{line.what}: {line.found}; wanted: {line.wanted}; {line.verdict}" for line in lines]
        out.write("\n".join([title, *rows, ""]))
        return
    table = Table(title=title, title_justify="left", show_lines=False)
    for column in ("what", "found", "wanted", "ok / remedy"):
        table.add_column(column, overflow="fold")
    style = {OK: "green", NOTE: "yellow", FAIL: "bold red"}
    for line in lines:  # Text: what a path or an error holds is no markup
        cells = [Text(line.what), Text(line.found), Text(line.wanted), Text(line.verdict, style[line.status])]
        table.add_row(*cells)
    Console(file=out, width=None if out.isatty() else WIDTH).print(table)
