"""`r3 doctor`: what this machine and its installation have, and what a run needs.

It is for installations that do not work, so nothing here imports more than Python's standard
library at its top: without the stack, without click and rich, `python -m
r3_openrlhf.operations.doctor` in a checkout says what is missing. What is heavy or may be broken
(torch, vLLM, DeepSpeed, Ray) is imported in another process."""

import json
import sys
from pathlib import Path

from r3_openrlhf.machine.gpus import gpus_of_this_machine
from r3_openrlhf.operations.doctor import checks
from r3_openrlhf.operations.doctor.checks import FAIL, NOTE, OK, Line, Stack

WIDTH = 120  # where the terminal does not say


def run(settings: tuple[str, ...], *, stack: Stack | None, as_json: bool) -> int:
    """Print the table, or a JSON object of its lines. Returns the exit code: 1 where a line fails.

    settings: experiment=NAME and key=value, or nothing. stack: None takes the experiment's
    cluster.device where that is cuda, else what the machine has."""
    config, of_config = checks.configuration(settings)
    driver, cluster = checks.nvidia_driver(), config.cluster if config is not None else None
    num_devices = (
        cluster.gpus_per_node if cluster is not None and cluster.device == "cuda" else None
    )
    if stack is None:  # a bare Python runs this: config.words needs omegaconf
        stack = "gpu" if driver is not None or num_devices is not None else "cpu"
    # in the order in which they are worth repairing
    lines = [checks.python(), *checks.packages(stack)]
    lines += checks.imports(stack, num_devices=num_devices, driver=driver)
    if stack == "gpu":
        on_host = config is not None and config.train.adam_offload
        share = cluster.vllm_gpu_memory_utilization if cluster is not None else None
        lines += [
            checks.driver_line(driver),
            checks.toolkit(checks.cuda_version(), adam_on_host=on_host),
        ]
        lines += [checks.allocator(), *checks.gpu_memory(gpus_of_this_machine(), share=share)]
    lines += [checks.compiler(), checks.shared_memory(stack), *checks.running_programs()]
    lines += [
        *checks.disks(Path(config.run_dir if config is not None else "runs").absolute()),
        checks.open_files(),
    ]
    lines += [*of_config, *(checks.paths(config) if config is not None else [])]
    failed = sum(line.status == FAIL for line in lines)  # notes do not count
    if as_json:
        answer = {"stack": stack, "failed": failed, "lines": [line._asdict() for line in lines]}
        sys.stdout.write(f"{json.dumps(answer, indent=1)}\n")
    else:
        print_table(f"r3 doctor: the {stack.upper()} stack", lines)
        sys.stdout.write(
            f"{failed} of {len(lines)} lines fail\n"
            if failed
            else f"all {len(lines)} lines are fine\n"
        )
    return 1 if failed else 0


def print_table(title: str, lines: list[Line]) -> None:
    """Print a table; plain lines of text where rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        rows = [
            f"{line.what}: {line.found}; wanted: {line.wanted}; {line.verdict}"
            for line in lines
        ]
        sys.stdout.write("\n".join([title, *rows, ""]))
        return
    table = Table(title=title, title_justify="left", show_lines=False)
    for column in ("what", "found", "wanted", "ok / remedy"):
        table.add_column(column, overflow="fold")
    style = {OK: "green", NOTE: "yellow", FAIL: "bold red"}
    for line in lines:  # Text: what a path or an error holds is no markup
        table.add_row(
            Text(line.what),
            Text(line.found),
            Text(line.wanted),
            Text(line.verdict, style[line.status]),
        )
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH).print(table)
