"""Evidence of the lab for agents: the numbers of many runs in one file, and two tables made from them.

A line of evidence/NAME.jsonl.zst is one run. Runs on seeds from FIRST_TUNING_SEED on choose a learning rate and are not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import zstandard

from r3_openrlhf.runs.files import replacing
from research.agents import AgentRun
from research.bootstrap import bootstrap

FIRST_TUNING_SEED = 101
# policy, variant, do tasks share?, trajectories, are they divided by a deviation?
Column = tuple[str, str, bool, int, bool]


class AgentEvidence(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The numbers of a run; `area`, `final` and `collapsed` are those of AgentRun."""

    policy: str
    variant: str
    shared: bool
    trajectories: int
    std_norm: bool
    arm: str
    learning_rate: float
    seed: int
    area: float
    final: float
    collapsed: float

    @property
    def column(self) -> Column:
        """The settings that all arms of a table share."""
        return self.policy, self.variant, self.shared, self.trajectories, self.std_norm


def evidence_of(run: AgentRun) -> AgentEvidence:
    """Keep these numbers of a run, to five digits."""
    return AgentEvidence(
        policy=run.policy,
        variant=run.variant,
        shared=run.recipe.get("shared", True),
        trajectories=run.recipe["trajectories"],
        std_norm=run.recipe["settings"].get("std_norm", True),
        arm=run.arm,
        learning_rate=run.learning_rate,
        seed=run.seed,
        area=round(run.area, 5),
        final=round(run.final, 5),
        collapsed=round(run.collapsed, 5),
    )


def write(
    file: Path, known: Iterable[AgentEvidence], runs: Iterable[AgentRun]
) -> list[AgentEvidence]:
    """Write and return what is known and the evidence of these runs, sorted, each once."""
    lines = sorted({msgspec.json.encode(one) for one in (*known, *map(evidence_of, runs))})
    with replacing(file) as stream:
        stream.write(
            zstandard.ZstdCompressor(level=19).compress(
                b"".join(line + b"\n" for line in lines)
            )
        )
    return [msgspec.json.decode(line, type=AgentEvidence) for line in lines]


def read(file: Path) -> list[AgentEvidence]:
    """Read what `write` wrote."""
    with zstandard.open(file, "rb") as stream:
        return [
            msgspec.json.decode(line, type=AgentEvidence) for line in stream.read().splitlines()
        ]


def title(column: Column) -> str:
    """The head of a column."""
    policy, variant, shared, size, std_norm = column
    return f"{policy}, {variant}, {'shared' if shared else 'nothing shared'}, G {size}, {'std' if std_norm else 'no std'}"


def best_rate(runs: Sequence[AgentEvidence]) -> float:
    """The learning rate whose mean area over the tuning seeds is highest. ValueError: no such seed."""
    rates = sorted({run.learning_rate for run in runs})
    tuning = [run for run in runs if run.seed >= FIRST_TUNING_SEED]
    return max(
        rates, key=lambda rate: fmean(run.area for run in tuning if run.learning_rate == rate)
    )


def paired(runs: Sequence[AgentEvidence], others: Sequence[AgentEvidence]) -> str:
    """Mean area of `runs` less that of `others`, over the seeds that both have, with its 95% interval."""
    areas = {run.seed: run.area for run in others}
    return str(bootstrap([run.area - areas[run.seed] for run in runs if run.seed in areas]))


def at(runs: Iterable[AgentEvidence], rate: float) -> list[AgentEvidence]:
    """The reported runs at this learning rate, by seed."""
    reported = (
        run for run in runs if run.learning_rate == rate and run.seed < FIRST_TUNING_SEED
    )
    return sorted(reported, key=lambda run: run.seed)


def tables(runs: Sequence[AgentEvidence], *, against: str = "hgpo_k0") -> str:
    """Return, for every column, a table in Markdown: each arm at the rate that was tuned for it, then its difference from `against` at equal rates."""
    texts = []
    for column in sorted({run.column for run in runs}, key=str):
        here = [run for run in runs if run.column == column]
        arms = {run.arm: [other for other in here if other.arm == run.arm] for run in here}
        rates = sorted({run.learning_rate for run in here})
        equal = " | ".join(f"vs. {against}, both at {rate:g}" for rate in rates)
        lines = [
            f"**{title(column)}**",
            "",
            f"| arm | rate | seeds | area | ends at | vs. {against}, each at its rate | {equal} |",
            "|---" * (6 + len(rates)) + "|",
        ]
        for arm, of_arm in sorted(arms.items()):
            tuned = at(of_arm, best_rate(of_arm))
            cells = [
                arm,
                f"{best_rate(of_arm):g}",
                str(len(tuned)),
                str(bootstrap([run.area for run in tuned])),
            ]
            cells.append(f"{fmean(run.final for run in tuned):.2f}")
            if arm == against:
                cells += ["–"] * (1 + len(rates))
            else:
                others = arms[against]
                cells.append(paired(tuned, at(others, best_rate(others))))
                cells += [paired(at(of_arm, rate), at(others, rate)) for rate in rates]
            lines.append(f"| {' | '.join(cells)} |")
        texts.append("\n".join(lines))
    return "\n\n".join(texts)
