"""Between "trajectories are played" and "one policy update": advantages of turns, and what happened
in the step.

Answers trainer/ppo_utils/experience_maker.py:284 (`reshape(-1, n_samples_per_prompt)`): tasks
have any number of turns, so a step has any number of rows, completed by fillers as R³'s."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from openrlhf.trainer.ppo_utils.experience import Experience

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.types import Context, Rollout
from r3_openrlhf.problems.agents.advantages import advantages_of_task, steps_alone
from r3_openrlhf.problems.agents.replay import kept_rollouts, recalled_trajectory
from r3_openrlhf.problems.agents.trajectory import End, Trajectory
from r3_openrlhf.stack.engine_faults import is_fault
from r3_openrlhf.stack.experience_maker import R3ExperienceMaker


class AgentExperienceMaker(R3ExperienceMaker):
    """A row is a turn. With replay.enabled stored trajectories join a task that ended alike; with
    reflection.enabled a task gets a group played after an earlier attempt. Nothing is ranked."""

    _recalled: list[Trajectory]
    _played: dict[Context, list[Trajectory]]

    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Upstream's experiences of this step's turns and fillers, with advantages and old
        log-probs.

        Raises:
            TrainingStopped: more trajectories were lost than reward.max_ungraded_rate allows, no
                task has two turns to compare, or stop.max_abs_logprob_gap."""
        by_context: dict[Context, list[Trajectory]] = {
            Context.PLAIN: [],
            Context.REFLECTION: [],
        }
        for sample in rollout_samples:
            # on its first turn
            if (trajectory := sample.r3_payload.get("trajectory")) is not None:
                by_context[sample.r3_rollout.context].append(trajectory)
        trajectories, reflected = by_context[Context.PLAIN], by_context[Context.REFLECTION]
        self._check_lost([*trajectories, *reflected])
        turns = [
            sample
            for sample in rollout_samples
            if sample.r3_rollout.num_tokens or sample.rewards is None
        ]
        self._recalled, self._played = [], dict(by_context)
        batch = self._batch(turns)
        self._prompts = [sample.r3_prompt for sample in turns]
        if not batch.rows:
            raise TrainingStopped(
                "no task of this step has two turns that could be compared; see r3/agents in metrics.jsonl"
            )
        replayed: dict[str, float] = {}
        by_context[Context.PLAIN] = [*trajectories, *self._recalled]
        assign_advantages(batch, by_context, self.config.agents)
        samples = self._samples(batch, batch.rows, turns)
        unread = self._unread(samples, self._idle_turns(batch))
        experiences = self.make_experience(self._passes(samples, unread))
        experiences = self._rejoined(samples, experiences, unread)
        self._keep_policy_logprobs(experiences, batch.rows)
        if self.config.keeps_history:
            replayed |= self._set_old_logprobs(experiences, batch.rows, batch)
            replayed |= {
                "r3/agents/recalled": float(len(self._recalled)),
                "r3/time/recall_s": self._recall_s,
            }
        fresh = [None if row.recalled else row.rollout for row in batch.rows]
        gaps = self._gaps(experiences, fresh, unread)
        self._set_advantages(experiences, batch.rows)
        found = trajectory_metrics(trajectories, depth=self.config.agents.depth)
        if self.config.reflection.enabled:
            again = trajectory_metrics(reflected, depth=0)
            for key, name in (("trajectories", "reflected"), ("lost", "reflected_lost")):
                replayed[f"r3/agents/{name}"] = again[f"r3/agents/{key}"]
            replayed["r3/agents/reflected_success_rate"] = again["r3/agents/success_rate"]
        same = dict.fromkeys(
            ("accuracy", "fresh/accuracy", "fresh/score"), found["r3/agents/success_rate"]
        )
        same |= dict.fromkeys(("reward_mean", "fresh/reward"), found["r3/agents/reward_mean"])
        self._report(
            batch, gaps, {**found, **same, **replayed, "r3/agents/rows": float(len(batch.rows))}
        )
        return experiences

    def _idle_turns(self, batch: MixedBatch) -> set[int]:
        if not self._skips_idle:
            return set()
        return {row.index for row in batch.rows if row.advantage == 0 and not row.recalled}

    def kept_rollouts(self) -> list[Rollout]:
        """Whole trajectories: what is recalled is one of them."""
        kept = []
        for context, played in self._played.items():
            kept += kept_rollouts(
                played, (one for one in self.rollouts if one.context is context)
            )
        return kept

    def _rows_of_recalled(self, recalled: list[Rollout]) -> list[Rollout]:
        """Return the turns of each trajectory that joins a task, trajectory by trajectory."""
        turns: list[Rollout] = []
        for place, stored in enumerate(recalled):
            trajectory, mine = recalled_trajectory(
                stored, self.config.agents, name=f"{place}@{stored.policy_step + 1}"
            )
            self._recalled.append(trajectory)
            turns += mine
        return super()._rows_of_recalled(turns)

    def _report(
        self, batch: MixedBatch, gaps: dict[str, float], metrics: dict[str, float]
    ) -> None:
        self._recalled_prompts = {
            row.index: self._text(row.rollout.prompt_ids) for row in batch.rows if row.recalled
        }
        super()._report(batch, gaps, metrics)

    def _warn(self) -> None:
        """Warn of nothing: a turn in an environment is judged by other measures than a response."""

    def _check_ungraded(self, batch: MixedBatch) -> None:
        """Trajectories are counted, not their turns (`_check_lost`)."""

    def _check_lost(self, trajectories: Sequence[Trajectory]) -> None:
        lost = [one for one in trajectories if one.end is End.LOST]
        rate, limit = len(lost) / len(trajectories), self.config.reward.max_ungraded_rate
        if rate > limit:
            reasons = {one.reason for one in lost}
            broken = "rollout engine" if all(map(is_fault, reasons)) else "environment"
            raise TrainingStopped(
                f"{rate:.0%} of this step's trajectories were lost ({', '.join(sorted(reasons))}), more "
                f"than reward.max_ungraded_rate={limit}; repair the {broken}, then start the same command again"
            )


def assign_advantages(
    batch: MixedBatch,
    trajectories: Mapping[Context, Iterable[Trajectory]],
    settings: AgentsConfig,
) -> None:
    """`row.advantage` and `row.reward`, which is the step's return, of every row. Rows are turns of
    these trajectories; those of a task in one context are compared with each other."""
    groups: dict[tuple[str, Context], list[Trajectory]] = {}
    for context, played in trajectories.items():
        for one in played:
            groups.setdefault((one.task_uid, context), []).append(one)
    advantages: dict[tuple[str, Context, str], list[float] | None] = {}
    for key, group in groups.items():
        for one, values in zip(group, advantages_of_task(group, settings), strict=True):
            advantages[*key, one.uid] = values
    for row in batch.rows:
        turn = row.rollout.turn
        assert turn is not None and turn.step_return is not None  # a row is graded
        values = advantages[row.rollout.uid, row.rollout.context, turn.trajectory]
        assert values is not None
        row.advantage, row.reward = values[turn.index], turn.step_return


def trajectory_metrics(trajectories: Sequence[Trajectory], *, depth: int) -> dict[str, float]:
    """Compute counts, and means over the trajectories that were not lost; 0.0 where there is none.

    `depth`: of `r3/agents/alone_k`, the share of turns whose group of level k holds no
    other turn."""
    played = [one for one in trajectories if one.end is not End.LOST]
    turns = [turn for one in played for turn in one.turns]
    ends = Counter(one.end for one in trajectories)
    num_turns = [len(one.turns) for one in played]
    metrics = {
        "r3/agents/trajectories": float(len(trajectories)),
        "r3/agents/lost": float(ends[End.LOST]),
        "r3/agents/success_rate": _mean(bool(one.success) for one in played),
        "r3/agents/reward_mean": _mean(sum(one.rewards()) for one in played),
        "r3/agents/turns_mean": _mean(num_turns),
        "r3/agents/turns_max": float(max(num_turns, default=0)),
        "r3/agents/turn_limit": float(ends[End.TURN_LIMIT]),
        "r3/agents/prompt_limit": float(ends[End.PROMPT_LIMIT]),
        "r3/agents/invalid_rate": _mean(not turn.valid for turn in turns),
        "r3/agents/truncated_rate": _mean(turn.truncated for turn in turns),
    }
    for level, share in enumerate(steps_alone(trajectories, depth=depth)):
        metrics[f"r3/agents/alone_{level}"] = share
    return metrics


def _mean(values: Iterable[float]) -> float:
    """Return the mean of these values; 0.0 where there is none."""
    return fmean(list(values) or [0.0])
