"""The lab for agents: estimators x seeds in the vault (problems/agents/vault.py), with a policy that is a table or a small network.

The policy reads the prompt that its memory gives, as a model would. Colours are named by their part in the goal, so what is
learned in one task holds in all. It begins as a player that knows what to do and often forgets what it has done
(`forgetful_probabilities`). The table (agents_table.py) is given what its memory means for its keys; the network
(agents_network.py) has to find out by itself what in its memory matters, and what it learns in one place changes what it does
in others. Trajectories, memory and advantages are those of the stack.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.problems.agents.advantages import steps_alone
from r3_openrlhf.runs.directory import write_whole
from research.agents_estimators import advantages_of
from research.agents_table import (
    NUM_TASKS,
    Played,
    Recipe,
    Row,
    TablePolicy,
    agents_config,
)
from research.bootstrap import bootstrap

if TYPE_CHECKING:
    from research.agents_network import NetworkPolicy

POLICIES = ("table", "network")
# is what is best a matter of the history, or of the current state alone?
VARIANTS = (
    "history",
    "state",
)
REPLAYS = ("hgpo_k2_replay",)
LEARNING_RATES = {"table": 5.0, "network": 3e-3}
DEEPEST = 4  # level up to which lone steps are counted
TOKENS = 40_000  # of a run
TASKS = 4  # of a step


@dataclass(slots=True)
class AgentRun:
    """The results of one run."""

    variant: str
    arm: str
    seed: int
    learning_rate: float
    tokens: list[int] = field(default_factory=list)  # generated before each step
    success: list[float] = field(default_factory=list)  # of the trajectories of each step
    # share of steps in groups of one, by level; mean over steps
    alone: list[float] = field(default_factory=list)
    collapsed: float = 0.0  # share of task groups that all failed or all succeeded
    recalled: int = 0  # trajectories
    policy: str = "table"
    recipe: dict[str, Any] = field(default_factory=dict)

    @property
    def area(self) -> float:
        """Mean success rate over the generated tokens (trapezoids)."""
        points = list(zip(self.tokens, self.success, strict=True))
        parts = [
            (b - a) * (p + q) / 2 for (a, p), (b, q) in zip(points, points[1:], strict=False)
        ]
        return sum(parts) / (self.tokens[-1] - self.tokens[0])

    @property
    def final(self) -> float:
        """Mean success rate over the last tenth of the steps."""
        return fmean(self.success[-max(1, len(self.success) // 10) :])


def num_tokens(played: Played) -> int:
    """Words of the actions, and an end for each."""
    return sum(len(choice.action.split()) + 1 for choice in played.choices)


def recall(group: list[Played], stored: Sequence[Played], rng: random.Random) -> Played | None:
    """Draw a stored success for a task whose trajectories all failed. None: not needed, or nothing is stored."""
    if any(played.trajectory.success for played in group) or not stored:
        return None
    return rng.choice(list(stored))


def make_policy(
    kind: str, *, variant: str, seed: int, recipe: Recipe
) -> TablePolicy | NetworkPolicy:
    """Make the policy with which a run begins. ConfigError: no such kind, or a network whose tasks share nothing."""
    if kind not in POLICIES:
        raise ConfigError(
            f"the policy {quoted(kind)} does not exist; known: {', '.join(POLICIES)}"
        )
    if kind == "table":
        return TablePolicy(recipe.forgets, shared=recipe.shared)
    if not recipe.shared:
        raise ConfigError(
            "shared=false needs --policy table: all that a network learns holds in every task"
        )
    from research.agents_network import imitator  # with torch

    return imitator(seed, shows_keys=variant == "state", forgets=recipe.forgets)


def train(
    variant: str,
    arm: str,
    seed: int,
    *,
    policy: str = "table",
    tokens: int = TOKENS,
    learning_rate: float | None = None,
    recipe: Recipe | None = None,
) -> AgentRun:
    """One run until so many tokens are generated. The same arguments give the same run.

    learning_rate: None is that of LEARNING_RATES.
    ConfigError: no such variant, arm, policy or key of `recipe.settings`.
    """
    if variant not in VARIANTS:
        raise ConfigError(
            f"the variant {quoted(variant)} does not exist; known: {', '.join(VARIANTS)}"
        )
    recipe = recipe or Recipe()
    settings, num = agents_config(arm, recipe.settings), recipe.trajectories
    rng = random.Random(f"{variant}/{seed}")
    player = make_policy(policy, variant=variant, seed=seed, recipe=recipe)
    rate = learning_rate or LEARNING_RATES[policy]
    run = AgentRun(variant, arm, seed, rate, policy=policy, recipe=asdict(recipe))
    successes: dict[str, list[Played]] = defaultdict(list)
    alone, collapsed, groups, generated = [], 0, 0, 0
    while generated < tokens:
        rows: list[Row] = []
        fresh: list[Played] = []
        before = generated
        for task in rng.sample(range(NUM_TASKS), TASKS):
            group = player.play_group(
                settings, seed=task, num=num, shows_keys=variant == "state", rng=rng
            )
            fresh += group
            num_right = sum(bool(played.trajectory.success) for played in group)
            collapsed += num_right in (0, num)
            groups += 1
            uid = group[0].trajectory.task_uid
            recalled = recall(group, successes[uid], rng) if arm in REPLAYS else None
            members = [*group, recalled] if recalled else group
            run.recalled += recalled is not None
            advantages = advantages_of([played.trajectory for played in members], settings)
            rows += [
                (played, of_turns, played is recalled)
                for played, of_turns in zip(members, advantages, strict=True)
            ]
            successes[uid] = [
                *successes[uid],
                *(played for played in group if played.trajectory.success),
            ][-16:]
        if recipe.minibatches > 1:
            rng.shuffle(rows)
            rows = [(played, of_turns, True) for played, of_turns, _ in rows]
        for first in range(recipe.minibatches):
            player.update(
                rows[first :: recipe.minibatches], learning_rate=rate, rescale=recipe.rescale
            )
        generated += sum(map(num_tokens, fresh))
        run.tokens.append(before)
        run.success.append(fmean(bool(played.trajectory.success) for played in fresh))
        alone.append(steps_alone([played.trajectory for played in fresh], depth=DEEPEST))
    run.alone = [fmean(level) for level in zip(*alone, strict=True)]
    run.collapsed = collapsed / groups
    return run


def run_study(
    directory: Path,
    *,
    variants: Sequence[str],
    arms: Sequence[str],
    seeds: Sequence[int],
    policy: str,
    tokens: int,
    learning_rate: float | None,
    recipe: Recipe,
    progress: Callable[[int, int], None] = lambda number, of: None,
) -> list[AgentRun]:
    """Every combination; one that is in `directory` already is read, not run. `progress(number, of)` is called as runs end.
    ConfigError: as `train`."""
    rate = learning_rate or LEARNING_RATES[policy]
    runs = []
    for variant in variants:
        for arm in arms:
            agents_config(arm, recipe.settings)
            for seed in seeds:
                name = f"{variant}-{arm}-{seed}-{tokens}-{rate:g}{recipe.changed}"
                file = directory / f"{name if policy == 'table' else f'{policy}-{name}'}.json"
                if not file.is_file():
                    run = train(
                        variant,
                        arm,
                        seed,
                        policy=policy,
                        tokens=tokens,
                        learning_rate=rate,
                        recipe=recipe,
                    )
                    directory.mkdir(parents=True, exist_ok=True)
                    write_whole(file, json.dumps(asdict(run)) + "\n")
                runs.append(AgentRun(**json.loads(file.read_text(encoding="utf-8"))))
                progress(len(runs), len(variants) * len(arms) * len(seeds))
    return runs


def table(runs: Sequence[AgentRun], *, against: Sequence[str] = ("gigpo", "hgpo_k0")) -> str:
    """One line per variant and arm, in Markdown. Differences are between runs of the same seed."""
    groups: dict[tuple[str, str], list[AgentRun]] = defaultdict(list)  # by variant and arm
    for run in sorted(runs, key=lambda run: run.seed):
        groups[run.variant, run.arm].append(run)
    differences = " | ".join(f"area - {other}" for other in against)
    lines = [
        f"| variant | arm | seeds | area | {differences} | first step | last tenth | alone at k = 0 ... {DEEPEST} | collapsed "
        "| recalled |",
        f"|{'---|' * (8 + len(against))}",
    ]
    for (variant, arm), of_arm in groups.items():
        cells = [variant, arm, str(len(of_arm)), str(bootstrap([run.area for run in of_arm]))]
        for other in against:
            is_itself = arm == other
            cells.append(
                "" if is_itself else _difference(of_arm, groups.get((variant, other), []))
            )
        cells += _cells_after_area(of_arm)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _difference(runs: Sequence[AgentRun], others: Sequence[AgentRun]) -> str:
    """Return the mean difference in area, over the seeds that both have; "" without such a seed."""
    areas = {run.seed: run.area for run in others}
    differences = [run.area - areas[run.seed] for run in runs if run.seed in areas]
    return str(bootstrap(differences)) if differences else ""


def _cells_after_area(runs: Sequence[AgentRun]) -> list[str]:
    """Return an arm's cells from the first step's successes on."""
    alone = [fmean(run.alone[k] for run in runs) for k in range(DEEPEST + 1)]
    return [
        f"{fmean(run.success[0] for run in runs):.2f}",
        str(bootstrap([run.final for run in runs])),
        " ".join(f"{share:.2f}" for share in alone),
        f"{fmean(run.collapsed for run in runs):.2f}",
        f"{fmean(run.recalled for run in runs):.1f}",
    ]
