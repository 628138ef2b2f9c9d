"""The groups of a step and the rollouts of a problem, as text of any width and as records."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from r3_openrlhf.method.errors import R3Error, on_one_line
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.problem_files import ShownLabel, problems_in
from r3_openrlhf.runs.step_groups import groups_of

SHOWN_LINES = 6  # of a response on a terminal
COLUMNS = ("right", "wrong", "recalled", "ranked", "reward", "sum |A|")
RECORD = (
    *(
        "uid",
        "problem",
        "references",
        "step",
        "context",
        "trajectory",
        "turn",
        "verdict",
        "reason",
        "reward",
    ),
    *("ranked", "recalled_from", "origin", "advantage", "num_tokens", "truncated", "text"),
)
NOTHING_DONE = (None, "not_collapsed", "not_all_wrong")  # the group needs no replay or ranking


def tab_separated(records: Sequence[Mapping[str, Any]]) -> str:
    """Format names, then a line per record, without tabs, line ends, controls; None is empty."""
    rows = [list(records[0]), *(list(record.values()) for record in records)] if records else []
    return "".join(
        "\t".join("" if cell is None else _one_line(cell) for cell in row) + "\n"
        for row in rows
    )


def step_groups(run: RunDirectory, *, step: int) -> list[dict[str, Any]]:
    """One record per group of a step, with its problem and references (None where the run has no
    problems file).

    Raises:
        R3Error: the run has no rollouts of this step."""
    groups = groups_of(list(run.read_rollouts(step=step)), step=step)
    if not groups:
        steps = [line["step"] for line in run.read_metrics()]
        has = f"{min(steps)} to {max(steps)}" if steps else "none yet"
        raise R3Error(f"{run.path} has no rollouts of step {step}; its steps are {has}")
    labels = _labels(run)
    return [
        {
            "uid": group.uid,
            "context": group.context.value,
            "rows": len(group.rows),
            "correct": group.num_correct,
            "wrong": group.num_wrong,
            "recalled": group.num_recalled,
            "ranked": group.num_ranked,
            "replay": group.rows[0]["group_replay"],
            "ranking": group.rows[0]["group_ranking"],
            "reward": group.mean_reward,
            "sum |advantage|": group.mass,
            **_problem(labels.get(group.uid)),
        }
        for group in groups
    ]


def step_page(run: RunDirectory, *, step: int, width: int) -> str:
    """`step_groups` for a terminal: a line per group, problem and reference below. R3Error."""
    groups = step_groups(run, step=step)
    uids, contexts = (
        max(len(_one_line(group[key])) for group in groups) for key in ("uid", "context")
    )
    lines = [f"step {step} of {run.path.name}: {len(groups)} groups", ""]
    lines.append("  ".join([f"{'uid':{uids}}", f"{'context':{contexts}}", *COLUMNS]))
    for group in groups:
        cells = [
            f"{group['correct']:>5}",
            *(f"{group[key]:>{len(key)}}" for key in ("wrong", "recalled", "ranked")),
            f"{'-':>6}" if group["reward"] is None else f"{group['reward']:>6.3f}",
            f"{group['sum |advantage|']:>7.3f}",
        ]
        names = [
            f"{_one_line(group['uid']):{uids}}",
            f"{_one_line(group['context']):{contexts}}",
        ]
        lines.append("  ".join([*names, *cells]))
        if group["problem"] is not None:
            lines += _wrapped(
                f"{group['problem']} -> {group['references']}", width=width, most=2
            )
        done = [
            f"{key}: {_one_line(group[key])}"
            for key in ("replay", "ranking")
            if group[key] not in NOTHING_DONE
        ]
        if done:
            lines += _wrapped("; ".join(done), width=width)
    return "\n".join(lines)


def group_rollouts(run: RunDirectory, *, uid: str, step: int | None) -> list[dict[str, Any]]:
    """Every rollout of a problem in the order of steps, with its problem and references.

    Args:
        uid: of the problem, or its beginning.
        step: of this step; None: of all.

    Raises:
        R3Error: no problem, or several, begin with `uid`.
    """
    rollouts = list(run.read_rollouts(step=step, uid_start=uid))
    uids = sorted({row["uid"] for row in rollouts})
    if len(uids) != 1:
        where = f"{run.path}" if step is None else f"step {step} of {run.path}"
        raise R3Error(
            f"{where} has no rollouts of problem {uid}; `r3 show {run.path} --step N` lists a step's problems"
            if not uids
            else f"{uid} is the beginning of {len(uids)} problems in {where}: {', '.join(uids[:5])}; write more of it"
        )
    problem = _problem(_labels(run).get(uids[0]))
    return [row | problem for row in sorted(rollouts, key=lambda row: row["step"])]


def group_page(run: RunDirectory, *, uid: str, step: int | None, width: int) -> str:
    """`group_rollouts` for a terminal: the problem, then a line and some text per rollout."""
    rollouts = group_rollouts(run, uid=uid, step=step)
    lines = [f"problem {_one_line(rollouts[0]['uid'])}"]
    if rollouts[0]["problem"] is not None:
        lines += [
            *_wrapped(rollouts[0]["problem"], width=width),
            f"reference: {_one_line(rollouts[0]['references'])}",
        ]
    for row in rollouts:
        lines += ["", *textwrap.wrap(_facts(row), width=width, subsequent_indent="  ")]
        lines += _wrapped(row.get("text") or "(no text)", width=width, most=SHOWN_LINES)
    return "\n".join(lines)


def group_records(run: RunDirectory, *, uid: str, step: int | None) -> list[dict[str, Any]]:
    """`group_rollouts` with the columns that a person reads, the text last and whole."""
    return [
        {key: row.get(key) for key in RECORD} for row in group_rollouts(run, uid=uid, step=step)
    ]


def _facts(row: Mapping[str, Any]) -> str:
    facts = [row["verdict"] + (f" ({row['reason']})" if row["verdict"] == "ungraded" else "")]
    if row["recalled_from"] is not None:
        facts.append(
            f"from {row['origin']}"
            if row.get("origin")
            else f"recalled from step {row['recalled_from']}"
        )
    if row["reward"] is not None:
        facts.append(f"reward {row['reward']:.3f}{' (ranked)' if row.get('ranked') else ''}")
    if row["advantage"] is not None:
        facts.append(f"advantage {row['advantage']:+.3f}")
    facts.append(f"{row['num_tokens']} tokens{' (truncated)' if row['truncated'] else ''}")
    place = (
        ""
        if row.get("trajectory") is None
        else f", trajectory {row['trajectory']}, turn {row['turn']}"
    )
    return _one_line(f"step {row['step']}, {row['context']}{place}: {', '.join(facts)}")


def _labels(run: RunDirectory) -> dict[str, ShownLabel]:
    """{uid: label} of the run's problems, {} without the file. R3Error: a damaged line."""
    problems, fault = problems_in(run.data)
    if fault is not None:
        raise R3Error(fault)
    return {uid: problem.label for uid, problem in problems.items()}


def _problem(label: ShownLabel | None) -> dict[str, str | None]:
    references = None if label is None else " | ".join(label.references)
    return {"problem": None if label is None else label.problem, "references": references}


def _wrapped(text: str, *, width: int, most: int | None = None) -> list[str]:
    """Wrap to `width`, indented by two; `most` lines, "..." at the end where text is left out."""
    return textwrap.wrap(
        _one_line(text),
        width=width,
        max_lines=most,
        placeholder=" ...",
        initial_indent="  ",
        subsequent_indent="  ",
    )


def _one_line(value: object) -> str:
    return on_one_line(" ".join(str(value).split()))
