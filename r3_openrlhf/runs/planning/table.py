"""A plan as a table for people and as one JSON object."""

from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from r3_openrlhf.runs.planning.forecast import Plan
from r3_openrlhf.runs.planning.history_forecast import EXPERT_SHARE
from r3_openrlhf.runs.planning.verdict import TIGHT, gib

Remedies = list[tuple[str, ...]]


def plan_as_json(
    plan: Plan, slow: Plan, *, fits: bool, remedies: Remedies, warnings: list[str]
) -> dict[str, Any]:
    """Return the plan's fields and what follows from them. Bytes and seconds, nothing rounded.
    slow: at half of every rate."""
    phases = [{**asdict(phase), "peak": phase.peak} for phase in plan.phases]
    times = {
        "step_s": plan.step_s,
        "slow_step_s": slow.step_s,
        "hours": plan.hours,
        "slow_hours": slow.hours,
    }
    return {
        **asdict(plan),
        "phases": phases,
        **times,
        "fits": fits,
        "remedies": remedies,
        "warnings": warnings,
    }


def plan_table(
    plan: Plan, slow: Plan, *, fits: bool, remedies: Remedies, warnings: list[str]
) -> Group:
    """GiB of a GPU, GB of everything else."""
    ranks = plan.nodes * plan.gpus_per_node
    head = (
        f"{plan.model}, {plan.params / 1e9:.2f} B parameters, on {ranks} x {plan.gpu.name} ({plan.nodes} "
        f"node{'s' if plan.nodes > 1 else ''}); {plan.num_problems:,} problems, responses of {plan.mean_tokens:,.0f} tokens"
    )
    said = [_verdict(fits, remedies), *(f"Warning: {warning}." for warning in warnings)]
    return Group(Text(head), _memory(plan, slow), *map(Text, said), _around(plan, slow))


def _memory(plan: Plan, slow: Plan) -> Table:
    """One column a phase, one line a part; GiB of one GPU."""
    table = Table(title="Peak memory of one GPU, GiB", title_justify="left")
    table.add_column("part")
    names = list(dict.fromkeys(name for phase in plan.phases for name in phase.parts))
    for phase in plan.phases:
        table.add_column(phase.name, justify="right")
    for name in names:
        sizes = [phase.parts.get(name, 0) for phase in plan.phases]
        if any(sizes):
            table.add_row(name, *[gib(size) if size else "" for size in sizes])
    table.add_section()
    table.add_row("sum", *[gib(phase.peak) for phase in plan.phases])
    shares = [_share(phase.peak / plan.gpu.memory_bytes) for phase in plan.phases]
    table.add_row(f"of {gib(plan.gpu.memory_bytes)}", *shares)
    pairs = zip(plan.phases, slow.phases, strict=True)
    table.add_row(
        "seconds a step", *[_range(fast.seconds, late.seconds) for fast, late in pairs]
    )
    return table


def _range(low: float, high: float) -> str:
    digits = 0 if high >= 10 else 1
    return f"{low:,.{digits}f} to {high:,.{digits}f}"


def _share(share: float) -> str:
    return f"{share:.0%}" + (" !" if share > 1 else " (tight)" if share > TIGHT else "")


def _verdict(fits: bool, remedies: Remedies) -> str:
    if fits:
        return "Fits."
    ways = " or ".join(" ".join(settings) for settings in remedies)
    return "Does not fit. " + (
        f"These would make it fit: {ways}"
        if ways
        else "It needs more GPUs, or a smaller model."
    )


def _around(plan: Plan, slow: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    rows = [
        (
            "a step",
            f"{_range(plan.step_s, slow.step_s)} s, until a GPU has answered (docs/cluster.md#planning-a-run)",
        ),
        ("the run", f"{plan.steps:,} steps, {_range(plan.hours, slow.hours)} h"),
        ("KV cache", f"{plan.kv_tokens:,} tokens an engine"),
        ("host memory", _parts(plan.host_bytes) + " of the first node"),
        ("disk at the end", _parts(plan.disk)),
        *_experts(plan),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _experts(plan: Plan) -> list[tuple[str, str]]:
    """Say what the engine's experts take, if the run keeps them."""
    if not plan.expert_bytes:
        return []
    stored = EXPERT_SHARE * plan.expert_bytes
    return [
        (
            "experts",
            f"{plan.expert_bytes:,} bytes a token of prompt and response, {stored:,.0f} in the history",
        )
    ]


def _parts(sizes: dict[str, int]) -> str:
    told = ", ".join(f"{name} {size / 1e9:.0f}" for name, size in sizes.items() if size >= 5e8)
    return f"{sum(sizes.values()) / 1e9:.0f} GB ({told})"
