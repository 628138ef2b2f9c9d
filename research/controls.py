"""Questions to a policy that could show a mechanism of R³ to be useless, each with an interval.

reflection: does a stored error in the prompt help more than the tokens of another plain sample?
entropy rank: do truncated responses that rank high turn out right more often when they may go on?
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import torch
from numpy.typing import ArrayLike

from r3_openrlhf.method.core.distill import Lesson, lesson_metrics
from r3_openrlhf.method.core.entropy import entropy_statistics
from r3_openrlhf.method.core.groups import GroupState, group_state
from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.core.ranking import mean_logprob, ranking_rewards
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.prompts import PromptMaker
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.settings import DistillSettings
from r3_openrlhf.method.types import Context, Rollout, Verdict
from r3_openrlhf.problems.training_file import Label
from research.bootstrap import ControlEstimate, bootstrap
from research.loop import Lab, Sampled, by_group, replace_group
from research.update import Target, TrainedRow, score
from research.worlds import WORLDS, is_earned


def by_uid(sampled: Sequence[Sampled]) -> dict[str, list[Sampled]]:
    """The rollouts of each problem."""
    responses = defaultdict(list)
    for response in sampled:
        responses[response.rollout.uid].append(response)
    return responses


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of groups, then of responses: the regime of a model and its problems."""

    all_wrong: float
    all_correct: float
    truncated: float
    truncated_of_wrong: float | None  # of the wrong responses; None where none is wrong
    correct: float
    # of the right responses, by their steps; None where no world says what a right step is
    earned: float | None = None


def shares(lab: Lab, labels: list[Label], *, n: int, seed: int = 0) -> Shares:
    """`n` groups of rollout.n_samples_per_prompt responses to each problem, from the plain prompt. Counted for no run."""
    size = lab.config.rollout.n_samples_per_prompt
    questions = [
        (label, lab.plain_prompt(label), Context.PLAIN) for label in labels for _ in range(n)
    ]
    sampled = lab.ask(questions, n=size, generator=torch.Generator().manual_seed(seed))
    states = [
        group_state(response.rollout.verdict for response in group)
        for group in by_group(sampled)
    ]
    rollouts = [response.rollout for response in sampled]
    wrong = [rollout.truncated for rollout in rollouts if rollout.verdict is Verdict.WRONG]
    return Shares(
        all_wrong=fmean(state is GroupState.NONE_CORRECT for state in states),
        all_correct=fmean(state is GroupState.ALL_CORRECT for state in states),
        truncated=fmean(rollout.truncated for rollout in rollouts),
        truncated_of_wrong=fmean(wrong) if wrong else None,
        correct=accuracy(sampled),
        earned=_share_earned(lab, labels, rollouts),
    )


def _share_earned(lab: Lab, labels: list[Label], rollouts: Sequence[Rollout]) -> float | None:
    """Return the share of right responses whose steps are right. None: none is right, or no world says
    what a right step is."""
    world = lab.config.data.reasoning_gym.get("world")
    right = [rollout for rollout in rollouts if rollout.verdict is Verdict.CORRECT]
    if world not in WORLDS or not right:
        return None
    follow = is_earned(world)
    problems = {label.uid: label.problem for label in labels}
    return fmean(follow(problems[rollout.uid], rollout.text) for rollout in right)


def accuracy(sampled: Sequence[Sampled]) -> float:
    """Share of correct rollouts. Raises StatisticsError for none."""
    return fmean(response.rollout.verdict is Verdict.CORRECT for response in sampled)


# ── (a) reflection against resampling ──


def reflection_against_resampling(
    lab: Lab, labels: list[Label], *, n: int, hard_below: float, seed: int = 0
) -> dict[str, ControlEstimate]:
    """Both get one response of the same token limit per stored error: P(correct | reflection prompt) and P(correct |
    plain prompt), mean over problems, and the difference problem by problem.

    "hard" are the problems whose first n plain samples were right less often than `hard_below`; the plain samples that
    are compared are drawn anew, so a problem that is hard by bad luck only does not favour either side.
    """
    generator = torch.Generator().manual_seed(seed)
    first = by_uid(
        lab.ask(
            [(label, lab.plain_prompt(label), Context.PLAIN) for label in labels],
            n=n,
            generator=generator,
        )
    )
    reflect, plain, num_errors = [], [], {}
    for label in labels:
        errors = [
            response.rollout
            for response in first[label.uid]
            if response.rollout.verdict is Verdict.WRONG
        ]
        num_errors[label.uid] = len(errors)
        for error in errors:
            prompt = lab.render.reflection(label, error)
            if prompt is not None:
                reflect.append((label, prompt, Context.REFLECTION))
                plain.append((label, lab.plain_prompt(label), Context.PLAIN))
    reflected = by_uid(lab.ask(reflect, n=1, generator=generator))
    resampled = by_uid(lab.ask(plain, n=1, generator=generator))
    tokens = {
        name: fmean(
            response.rollout.num_tokens for group in groups.values() for response in group
        )
        for name, groups in (("reflection", reflected), ("resampling", resampled))
    }
    result: dict[str, ControlEstimate] = {}
    hard = {uid for uid, group in first.items() if accuracy(group) < hard_below}
    for name, uids in (("all", set(reflected)), ("hard", hard & set(reflected))):
        if not uids:
            continue
        pairs = [(accuracy(reflected[uid]), accuracy(resampled[uid])) for uid in sorted(uids)]
        result[f"{name}/reflection"] = bootstrap([a for a, _ in pairs])
        result[f"{name}/resampling"] = bootstrap([b for _, b in pairs])
        result[f"{name}/difference"] = bootstrap([a - b for a, b in pairs])
    result["tokens/reflection"] = bootstrap([tokens["reflection"]])
    result["tokens/resampling"] = bootstrap([tokens["resampling"]])
    return result


# ── does the policy read a success? ──


def reading(lab: Lab, labels: list[Label], *, seed: int = 0) -> dict[str, ControlEstimate]:
    """Mean over problems, each with one right answer drawn from its references.

    right: share of responses that are right, with that answer in the prompt, without it, and with another problem's in its place;
    logprob: of the answer's tokens, mean over tokens, behind the same prompts."""
    rng = random.Random(seed)
    shown = {}
    for label in labels:
        ids = [
            *lab.encode(rf"\boxed{{{rng.choice(label.references)}}}"),
            lab.tokenizer.eos_token_id,
        ]
        shown[label.uid] = replace(
            lab.ask([(label, lab.plain_prompt(label), Context.PLAIN)], n=1)[0].rollout,
            response_ids=np.array(ids, np.int32),
        )
    others = [*labels[1:], *labels[:1]]
    prompts = {
        "with": [_with_success(lab, label, shown[label.uid]) for label in labels],
        "without": [lab.plain_prompt(label) for label in labels],
        "with another's": [
            _with_success(lab, label, shown[other.uid])
            for label, other in zip(labels, others, strict=True)
        ],
    }
    result: dict[str, ControlEstimate] = {}
    for name, of_labels in prompts.items():
        sampled = by_uid(
            lab.ask(
                [
                    (label, prompt, Context.PLAIN)
                    for label, prompt in zip(labels, of_labels, strict=True)
                ],
                n=lab.config.held_out.n_samples,
                generator=torch.Generator().manual_seed(seed),
            )
        )
        result[f"right/{name}"] = bootstrap([accuracy(sampled[one.uid]) for one in labels])
        rows = [
            TrainedRow(
                prompt_ids=lab.encode(prompt),
                response_ids=shown[label.uid].response_ids,
                advantage=0.0,
            )
            for label, prompt in zip(labels, of_labels, strict=True)
        ]
        scores = score(
            lab.model,
            rows,
            temperature=lab.config.rollout.temperature,
            micro_batch_size=lab.config.train.micro_batch_size,
        )
        result[f"logprob/{name}"] = bootstrap([float(one.logprobs.mean()) for one in scores])
    return result


def _with_success(lab: Lab, label: Label, success: Rollout) -> str:
    prompt = lab.render.teacher(label, success, settings=lab.config.distill)
    if prompt is None:
        raise R3Error(f"a success of {label.problem!r} does not fit; raise data.max_len")
    return prompt


# ── (b) does the entropy rank mean anything? ──


def entropy_rank_against_outcome(
    lab: Lab, labels: list[Label], *, n: int, seed: int = 0
) -> dict[str, ControlEstimate]:
    """Truncated responses go on to twice the limit. Within each problem, over all pairs of one that then is right and
    one that then is wrong: how often did the right one have the higher score (ties count half)? 0.5 is chance.

    Scores: the ranking reward, peak entropy, falling global entropy, mean log-prob (ranking.score=logprob), the same of
    the last quarter of the tokens, the least likely token's log-prob, a random number.

    Sampling 2L tokens and looking at the first L of those that are longer is the same as sampling L and going on.
    """
    config = lab.config
    limit = config.rollout.max_new_tokens
    sampled = by_uid(
        lab.ask(
            [(label, lab.plain_prompt(label), Context.PLAIN) for label in labels],
            n=n,
            max_new_tokens=2 * limit,
            generator=torch.Generator().manual_seed(seed),
        )
    )
    rng = np.random.default_rng(seed)
    areas: dict[str, list[float]] = defaultdict(list)
    right_of_truncated, tied = [], []
    for uid in sorted(sampled):
        group = [response for response in sampled[uid] if response.rollout.num_tokens > limit]
        if len(group) < 2:
            continue
        right = np.array([response.rollout.verdict is Verdict.CORRECT for response in group])
        right_of_truncated.append(right.mean())
        statistics = [
            entropy_statistics(
                response.entropies[:limit], peak_fraction=config.ranking.peak_fraction
            )
            for response in group
        ]
        peaks, globals_ = zip(*statistics, strict=True)
        rewards = ranking_rewards(peaks, globals_, max_reward=config.ranking.max_reward)
        tied.append(len(set(rewards)) == 1)
        scores: dict[str, ArrayLike] = {
            "ranking reward": rewards,
            "peak entropy": peaks,
            "low global entropy": [-value for value in globals_],
            "mean log-prob": [
                mean_logprob(response.rollout.response_logprobs[:limit]) for response in group
            ],
            "mean log-prob of the last quarter": [
                mean_logprob(
                    response.rollout.response_logprobs[limit - max(1, limit // 4) : limit]
                )
                for response in group
            ],
            "lowest log-prob": [
                float(response.rollout.response_logprobs[:limit].min()) for response in group
            ],
            "random": rng.random(len(group)),
        }
        if 0 < right.sum() < len(group):
            for name, values in scores.items():
                areas[name].append(area_under_curve(values, right))
    result = {f"auc/{name}": bootstrap(values) for name, values in areas.items()}
    if right_of_truncated:
        result["right after twice the limit"] = bootstrap(right_of_truncated)
        result["groups without any order"] = bootstrap([float(value) for value in tied])
    return result


def area_under_curve(scores: ArrayLike, right: ArrayLike) -> float:
    """P(a right one scores higher than a wrong one), ties half. ValueError: no pair of a right and a wrong one."""
    values, is_right = np.asarray(scores, dtype=np.float64), np.asarray(right, dtype=bool)
    high, low = values[is_right][:, None], values[~is_right][None, :]
    if high.size == 0 or low.size == 0:
        raise ValueError("an area needs right and wrong responses")
    return float(((high > low) + 0.5 * (high == low)).mean())


# ── (d) replay of shuffled verdicts ──


class ShuffledRecall(R3):
    """Recalls rollouts of the problem whatever their verdict and gives them the reward of the one that was asked for."""

    def stored(self, uid: str, verdict: Verdict, *, step: int) -> list[Rollout]:
        """Return rollouts of both verdicts, as many as there are of the requested one."""
        asked_for = super().stored(uid, verdict, step=step)
        if not asked_for:
            return []
        other = Verdict.WRONG if verdict is Verdict.CORRECT else Verdict.CORRECT
        pool = asked_for + super().stored(uid, other, step=step)
        rewards = [rollout.reward for rollout in asked_for]
        drawn = random.Random(f"{self.seed}/shuffled/{step}/{uid}").sample(pool, len(asked_for))
        for rollout, reward in zip(drawn, rewards, strict=True):
            rollout.verdict, rollout.reward = verdict, reward
        return drawn


class ShuffledReplay(Lab):
    """A control with as many off-policy rows as real replay, but without its information. It must not help."""

    r3_class = ShuffledRecall


class KnownRecall(R3):
    """Recall that knows one success of every problem beforehand."""

    known: dict[str, Rollout]

    def stored(self, uid: str, verdict: Verdict, *, step: int) -> list[Rollout]:
        """Return what is stored, else the success that was known."""
        stored = super().stored(uid, verdict, step=step)
        if not stored and verdict is Verdict.CORRECT and uid in self.known:
            return [replace(self.known[uid])]
        return stored


class KnownSuccesses(Lab):
    """Replay at its best: for every problem one success of the first policy is known before training starts, sampled
    until there was one (MAX_TRIES times at most) and not counted. What it gains over `r3` is what perfect recall would."""

    MAX_TRIES = 4096
    _N = 32
    r3_class = KnownRecall

    def prepare_history(self, labels: list[Label], r3: R3) -> None:
        """Samples until every problem has a success, MAX_TRIES times at most."""
        assert isinstance(r3, KnownRecall)
        generator = torch.Generator().manual_seed(self.config.train.seed)
        self.known = r3.known = {}
        for _ in range(self.MAX_TRIES // self._N):
            missing = [label for label in labels if label.uid not in self.known]
            if not missing:
                return
            questions = [(label, self.plain_prompt(label), Context.PLAIN) for label in missing]
            for response in self.ask(questions, n=self._N, generator=generator):
                if response.rollout.verdict is Verdict.CORRECT:
                    self.known.setdefault(response.rollout.uid, response.rollout)


class SuccessRecall(R3):
    """Recalls successes alone."""

    def stored(self, uid: str, verdict: Verdict, *, step: int) -> list[Rollout]:
        """Nothing for an all-correct group."""
        return super().stored(uid, verdict, step=step) if verdict is Verdict.CORRECT else []


class SuccessesOnly(Lab):
    """Half of replay: an all-wrong group gets past successes, an all-correct one nothing."""

    r3_class = SuccessRecall


class FreeCollapsed(Lab):
    """Selection at its best: every batch is full of groups with mixed verdicts, and the others cost nothing, as if somebody had
    known beforehand which they are. Their tokens are not counted, and they leave no trace. (What the length reward would
    teach in an all-correct group goes with them.)

    Groups behind a reflection prompt stay, and are counted. R3Error: MAX_ROUNDS draws gave no group that teaches.
    """

    MAX_ROUNDS = 64

    def complete(
        self, sampled: list[Sampled], labels: list[Label]
    ) -> tuple[list[Sampled], int]:
        """Draws further problems until the batch is full, MAX_ROUNDS times at most."""
        wanted, dropped = self.config.rollout.batch_size, 0
        kept: list[list[Sampled]] = []
        others = [
            response for response in sampled if response.rollout.context is not Context.PLAIN
        ]
        sampled = [
            response for response in sampled if response.rollout.context is Context.PLAIN
        ]
        for _ in range(self.MAX_ROUNDS):
            for group in by_group(sampled):
                if self.teaches(group):
                    kept.append(
                        [
                            replace_group(response, (*response.group, len(kept)))
                            for response in group
                        ]
                    )
                else:
                    dropped += 1
                    self.tokens -= sum(
                        response.rollout.num_sampled_tokens for response in group
                    )
            missing = wanted - len(kept)
            if not missing:
                break
            sampled, _ = self.sample_step(
                self.further_problems(missing, labels), R3(self.config)
            )
        else:
            # drawn, and not looked at
            self.tokens -= sum(response.rollout.num_sampled_tokens for response in sampled)
        if not kept:
            raise R3Error(
                f"step {self.step}: {self.MAX_ROUNDS} draws of {wanted} problems gave no group that teaches anything; this "
                "control needs a model that is sometimes right and sometimes wrong"
            )
        return [response for group in kept for response in group] + others, dropped

    def teaches(self, group: Sequence[Sampled]) -> bool:
        """Tell whether the group has a right and a wrong response."""
        return group_state(response.rollout.verdict for response in group) is GroupState.MIXED


class KnownAndFree(KnownSuccesses, FreeCollapsed):
    """Both at their best: all-wrong groups have a success, known for nothing, and what collapses all the same is free."""

    def teaches(self, group: Sequence[Sampled]) -> bool:
        """An all-wrong group does where a success is known."""
        wrong = (
            group_state(response.rollout.verdict for response in group)
            is GroupState.NONE_CORRECT
        )
        return super().teaches(group) or (wrong and group[0].rollout.uid in self.known)


# ── a teacher (method/core/distill.py) ──


class OfOtherProblems:
    """A prompt maker whose teacher is shown the success of another problem."""

    def __init__(self, render: PromptMaker, successes: Sequence[Rollout], seed: str) -> None:
        self.render, self.successes = render, successes
        self._rng = random.Random(seed)

    def plain(self, problem: Label) -> str:
        """Return the problem's own prompt."""
        return self.render.plain(problem)

    def reflection(self, problem: Label, error: Rollout | None) -> str | None:
        """Return the problem's own prompt with an error."""
        return self.render.reflection(problem, error)

    def teacher(
        self,
        problem: Label,
        success: Rollout | None,
        *,
        settings: DistillSettings,
        error: Rollout | None = None,
    ) -> str | None:
        """Return the teacher's prompt with another problem's success. None: there is none yet, or it would show no success."""
        others = [one for one in self.successes if one.uid != problem.uid]
        if success is None or not others:
            return None
        other = self._rng.choice(others)
        return self.render.teacher(problem, other, settings=settings, error=error)


class ShuffledLessons(R3):
    """Teaches the rows that would be taught, with successes of other problems out of `successes`, the last ones of all."""

    successes: deque[Rollout]

    def lessons(
        self,
        batch: MixedBatch,
        *,
        step: int,
        problems: Callable[[Rollout], Label],
        render: PromptMaker,
    ) -> list[Lesson]:
        """Choose the same rows, and prompts that say nothing about them."""
        self.successes += [
            row.rollout
            for row in batch.rows
            if not row.recalled and row.rollout.verdict is Verdict.CORRECT
        ]
        seed = f"{self.seed}/shuffled/{step}"
        other = OfOtherProblems(render, list(self.successes), seed)
        return super().lessons(batch, step=step, problems=problems, render=other)


class ShuffledTeacher(Lab):
    """A control with as many taught rows as distill, but without its information. It must not help."""

    KEPT = 512  # successes
    r3_class = ShuffledLessons

    def r3_with(self, history: HistoryStore | None) -> R3:
        """Return the method, which remembers successes of all problems."""
        r3 = super().r3_with(history)
        assert isinstance(r3, ShuffledLessons)
        r3.successes = deque(maxlen=self.KEPT)
        return r3


class SupervisedLessons(Lab):
    """Cross-entropy on the very successes that a teacher would be shown, with distill.coef in front of it, in the place of
    the teacher's term: each is one more row behind the plain prompt."""

    def teach(self, batch: MixedBatch, r3: R3) -> tuple[dict[int, Target], dict[str, float]]:
        """Score nothing."""
        fates = batch.lesson_fates.values()
        metrics = lesson_metrics(fates, {}, {}, bound=r3.settings.distill.bound)
        return {}, metrics | {"teacher_tokens": 0.0}

    def trained_rows(
        self, batch: MixedBatch, targets: Mapping[int, Target]
    ) -> list[TrainedRow]:
        """Return the rows, and after them the successes of the lessons."""
        rows = super().trained_rows(batch, targets)
        for index, lesson in batch.lessons.items():
            if lesson.success is None:
                continue
            rows.append(
                TrainedRow(
                    prompt_ids=batch.prompt_ids_of(batch.rows[index]),
                    response_ids=lesson.success.response_ids,
                    advantage=self.config.distill.coef,
                )
            )
        return rows


LAB_OF_CONTROL: dict[str, type[Lab]] = {
    "r3_shuffled_replay": ShuffledReplay,
    "r3_known_successes": KnownSuccesses,
    "r3_recall_successes": SuccessesOnly,
    "r3_free_collapsed": FreeCollapsed,
    "r3_known_free": KnownAndFree,
    "r3_shuffled_teacher": ShuffledTeacher,
    "r3_supervised_lessons": SupervisedLessons,
}
