"""The part of the samples generator that samples with paused responses (rollout.partial)."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from openrlhf.trainer.ppo_utils import samples_generator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.stack import partial_checkpoint
from r3_openrlhf.stack.partial_engines import RayEngines
from r3_openrlhf.stack.partial_rollouts import Drawn, Group, PartialSampler
from r3_openrlhf.stack.recorded_rollouts import PLAYBACK, RECORD

if TYPE_CHECKING:
    from r3_openrlhf.config import R3Config

PAUSED, GROUPS, OCCUPANCY = "partial/paused", "partial/paused_groups", "partial/occupancy"


class PartialSteps:
    """Comes before upstream's generator in the order of bases; `partial` is None where it is off."""

    config: R3Config
    args: Any
    partial: PartialSampler | None
    step: int
    totals: dict[str, float]
    _counts: Counter[str]
    _contexts: dict[str, Context]
    _dataloader_iter: Iterator[Any] | None

    def _start_partial(self) -> None:
        """Make the sampler, if the run has one. ConfigError: responses are recorded or played back."""
        rollout = self.config.rollout
        self.partial = None
        self.partial_metrics: dict[str, float] = {}
        if not rollout.partial:
            return
        for variable in (RECORD, PLAYBACK):
            if variable in os.environ:
                raise ConfigError(
                    f"rollout.partial is {rollout.partial} and {variable} is set, but a paused response is not recorded as a whole; "
                    "use one of the two"
                )
        self.partial = PartialSampler(
            batch_size=rollout.batch_size,
            partial=rollout.partial,
            max_pauses=rollout.max_pauses,
        )

    def paused_state(self) -> bytes | None:
        """Return what a checkpoint after this step has to keep; None: nothing is ever paused."""
        if self.partial is None:
            return None
        size = self.config.rollout.n_samples_per_prompt
        return partial_checkpoint.encoded(self.partial, n_samples=size)

    def restore_paused(self, data: bytes) -> None:
        """Go on with what a checkpoint kept. ConfigError: as `decode_into`."""
        if self.partial is not None:
            size = self.config.rollout.n_samples_per_prompt
            partial_checkpoint.decode_into(self.partial, data, n_samples=size)

    @property
    def is_drawn_out(self) -> bool:
        """True if the epoch has no problem left, but not all of its groups are trained."""
        return self.partial is not None and self.partial.is_drawn_out

    def _sample_partial(
        self, partial: PartialSampler, **generate_kwargs: Any
    ) -> tuple[list[Experience], float | None, int, bool]:
        """Sample a step; returns what generate_samples does."""
        before = partial.num_drawn
        self._contexts.update({group.prompt: group.context for group in partial.groups})
        engines = self._engines(**generate_kwargs)
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")  # type: ignore[attr-defined]
        try:
            found = partial.sample(
                engines, draw=self._draw_groups, keeps=self._keeps, most=self._most_groups()
            )
            occupancy = engines.occupancy()
        finally:
            if self.args.vllm.enable_sleep:
                batch_vllm_engine_call(self.vllm_engines, "sleep")  # type: ignore[attr-defined]
        self._count_tokens(found.tokens)
        self.partial_metrics = {
            PAUSED: float(found.paused),
            GROUPS: float(len(partial.groups)),
            OCCUPANCY: occupancy,
        }
        rows = []
        for group in found.trained:
            self._contexts[group.prompt] = group.context
            for response in group.samples:
                rows.append(
                    self._process_response_into_experience(response, **generate_kwargs)  # type: ignore[attr-defined]
                )
        dropped = Counter[str]()
        for group in found.dropped:
            dropped["r3/filter/dropped_groups"] += 1
            dropped["r3/filter/dropped_tokens"] += group.num_tokens
        self._counts.update(dropped)
        judged = len(found.trained) + len(found.dropped)
        pass_rate = None
        if self.args.algo.dynamic_filtering_enable and judged:
            pass_rate = 100 * len(found.trained) / judged
        exhausted = partial.is_drawn_out and not partial.groups
        if exhausted:
            self._dataloader_iter = None
            partial.is_drawn_out = False
        return rows, pass_rate, partial.num_drawn - before, exhausted

    def _engines(self, **generate_kwargs: Any) -> RayEngines:
        params = samples_generator.SamplingParams(  # as upstream's (samples_generator.py:229)
            temperature=generate_kwargs.get("temperature", 1.0),
            top_p=generate_kwargs.get("top_p", 1.0),
            top_k=generate_kwargs.get("top_k", -1),
            max_tokens=generate_kwargs.get("max_new_tokens"),
            min_tokens=generate_kwargs.get("min_new_tokens", 1),
            skip_special_tokens=generate_kwargs.get("skip_special_tokens", False),
        )
        asked = {
            "sampling_params": params,
            "max_length": generate_kwargs.get("max_len", 2048),
            "hf_tokenizer": self.tokenizer,  # type: ignore[attr-defined]
            "policy_step": self._engines_step(),
        }
        reads_groups = self.config.reward.reads_groups
        return RayEngines(self.vllm_engines, asked, sends_finished=reads_groups)  # type: ignore[attr-defined]

    def _is_in_flight(self) -> bool:
        """Tell whether drawn groups are still to be trained."""
        return self.partial is not None and bool(self.partial.groups)

    def _engines_step(self) -> int | None:
        """Return the policy step of the engines' weights; None: the engines know."""
        return self.step

    def _most_groups(self) -> int | None:
        """Return how many plain groups the run will still train; None: not known."""
        max_steps = self.config.train.max_steps
        if max_steps is None:
            return None
        return self.config.rollout.batch_size * (max_steps - self.step)

    def _draw_groups(self, count: int) -> Drawn:
        """Draw problems, with the groups that R3.prompts adds; none when the budget is spent."""
        if self._budget_is_spent():  # type: ignore[attr-defined]
            return Drawn([], is_all=False)
        if getattr(self, "_dataloader_iter", None) is None:
            self._seed_epoch()  # type: ignore[attr-defined]
            self._dataloader_iter = iter(self.prompts_dataloader)  # type: ignore[attr-defined]
        prompts, labels, _, is_all = samples_generator._collect_prompt_batch(
            self._dataloader_iter, count
        )
        started = time.perf_counter()
        further = self._further(prompts, labels) if prompts else []  # type: ignore[attr-defined]
        self.seconds += time.perf_counter() - started  # type: ignore[attr-defined]
        groups = [
            self._group(*pair, is_plain=True) for pair in zip(prompts, labels, strict=True)
        ]
        groups += [self._group(*pair, is_plain=False) for pair in further]
        return Drawn(groups, is_all)

    def _group(self, prompt: str, label: str, *, is_plain: bool) -> Group:
        context = Context.PLAIN if is_plain else self._contexts.get(prompt, Context.PLAIN)
        size = self.config.rollout.n_samples_per_prompt
        return Group(
            number=-1,
            prompt=prompt,
            label=label,
            context=context,
            is_plain=is_plain,
            samples=[[] for _ in range(size)],
        )

    def _keeps(self, group: Group) -> bool:
        """Return False if dynamic sampling drops a whole group, as upstream does (:171-178)."""
        if not self.args.algo.dynamic_filtering_enable:
            return True
        verdicts = [sample["r3"]["grade"].verdict for sample in group.samples]  # type: ignore[call-overload]
        if Verdict.UNGRADED in verdicts:
            return True
        share = sum(verdict is Verdict.CORRECT for verdict in verdicts) / len(verdicts)
        low, high = self.args.algo.dynamic_filtering_range
        return bool(low < share < high)

    def _count_tokens(self, number: int) -> None:
        """Count response tokens that were sampled for training."""
        self.totals["generated_tokens_total"] += number
        self._counts["generated_tokens"] += number
