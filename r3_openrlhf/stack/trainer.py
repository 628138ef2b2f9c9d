"""OpenRLHF's PPO trainer (async_trainer.py: the asynchronous one) with R³'s generator and
experience maker, the history store, and a run that can be read.

Answers trainer/ppo_trainer.py. The loop (`fit`), the update and the checkpoints are upstream's."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import ray
import transformers
from openrlhf.trainer import ppo_trainer

from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.history.witness import record_of
from r3_openrlhf.method.open_table import load_object
from r3_openrlhf.method.types import Rollout
from r3_openrlhf.problems.held_out import evaluation_line
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.mixture import source_metrics
from r3_openrlhf.problems.prompts import r3_of
from r3_openrlhf.problems.training_file import read_prompts
from r3_openrlhf.runs import checkpoint_record
from r3_openrlhf.runs.directory import MOST_HELD_OUT, RunDirectory
from r3_openrlhf.runs.first_page import add_to_page
from r3_openrlhf.runs.kept_files import forget_superseded
from r3_openrlhf.runs.problem_files import problems_in
from r3_openrlhf.runs.rollout_records import record_of as rollout_record
from r3_openrlhf.runs.stop_request import RunInterrupted, StepClock, StopRequest
from r3_openrlhf.stack import other_ranks, partial_checkpoint
from r3_openrlhf.stack.blocked_signals import keep_blocked
from r3_openrlhf.stack.engine_notes import engine_notes
from r3_openrlhf.stack.environment import config_from_environment
from r3_openrlhf.stack.experience_maker import StockExperienceMaker
from r3_openrlhf.stack.experience_values import logprobs_of, values_of_prefixes
from r3_openrlhf.stack.finite_advice import CRITIC, POLICY, check_update
from r3_openrlhf.stack.imported import measured, rows_to_begin_with, write_beginning
from r3_openrlhf.stack.phases import Phase, announce
from r3_openrlhf.stack.samples_generator import (
    COLLECTED,
    TOTALS,
    WARM_START,
    BatchFacts,
    R3SamplesGenerator,
    keep_order,
)
from r3_openrlhf.stack.step_warnings import kept, trend_warnings
from r3_openrlhf.stack.trackers import (
    describe_wandb_run,
    log_completions,
    name_wandb_run,
    user_tracker,
)
from r3_openrlhf.stack.warm_start import warm_start
from r3_openrlhf.stack.work import work_of

# trainer/ppo_trainer.py:424: the name is a Ray actor; this is the decorated class
UpstreamTrainer: Any = (
    ppo_trainer.PPOTrainer.__ray_metadata__.modified_class.__ray_actor_class__
)


class RecordedSteps(ppo_trainer.BasePPOTrainer):
    """Records steps for upstream's controller, whichever of its classes that is; comes before it
    in the order of bases. `algo` other than r3 keeps upstream's estimators and only records."""

    samples_generator: R3SamplesGenerator

    def __init__(
        self, pretrain, strategy, actor_model_group, critic_model_group, *args, **kwargs
    ) -> None:
        keep_blocked()
        self.config = config_from_environment()
        self.run = RunDirectory(self.config.run_dir)
        self.stop = StopRequest(self.run.stop_request)
        self.clock = StepClock.from_environment(
            save_minutes=self.config.checkpoint.save_minutes
        )
        self._trends: list[dict] = []  # of each step, what stack/step_warnings.py reads
        self._warned: set[str] = set()
        self._saving: dict[str, float] = {}  # timing/save, for the next step's line
        self._facts = BatchFacts({}, next_epoch=1)  # of the batch trained last
        # of the last step; a run that is resumed has its checkpoint
        self._client_states: dict | None = None
        self._is_saved = True
        # upstream seeds its model actors only; the order of the prompts comes from this process
        transformers.set_seed(self.config.train.seed)
        keep_order(strategy, self.config)
        if self.config.logging.wandb_project:
            name_wandb_run(self.config, self.run)
        super().__init__(
            pretrain, strategy, actor_model_group, critic_model_group, *args, **kwargs
        )
        if self.wandb_logger:
            describe_wandb_run(self.wandb_logger.handle, self.config)
            self._problems, _ = problems_in(self.run.data)
        self.tracker = user_tracker(self.config, self.run)
        self.history = None
        if self.config.keeps_history:
            limits, seed = self.config.history, self.config.train.seed
            self.history = HistoryStore.open(self.run.history, limits=limits, seed=seed)
        self.r3 = r3_of(self.config, self.history)
        self.samples_generator = self._make_generator(strategy)
        maker: type[StockExperienceMaker] = load_object(
            "algo", self.config.algorithm.experience_maker
        )
        self.experience_maker = maker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            self.strategy,
            self.tokenizer,
            config=self.config,
            r3=self.r3,
        )
        if self.critic_model_group is not None:
            self.samples_generator.values_of_prefixes = partial(
                values_of_prefixes, self.critic_model_group
            )

    def _make_generator(self, strategy) -> R3SamplesGenerator:
        raise NotImplementedError

    def init_checkpoint_states(self) -> dict:
        """Continue a run (:405): forget what is newer than the checkpoint in history and files."""
        states = super().init_checkpoint_states()
        other_ranks.forget(self.run)  # every rank has loaded it
        self._note_engine()
        # totals at a checkpoint of step 0
        step, begun = (
            states["global_step"],
            states.get("begun"),
        )
        self.r3.roll_back(step if step or begun else -1)
        self.run.roll_back(step)
        settings = self.config.history.start or self.config.rollout.collect.share
        if self.history is not None and not step and settings:
            if begun:
                self.samples_generator.totals = begun
            else:
                self._begin(self.history, states)
            if WARM_START in self.samples_generator.totals:
                self.broadcast_to_vllm()
        self._at(step)
        self.samples_generator.epoch = states["episode"] + 1
        self._restore_paused(self._read_paused(step))
        if step:  # a line is on disk before its checkpoint
            lines = self.run.read_metrics()
            self._trends = [kept(line) for line in lines]
            self.samples_generator.totals = {
                key: lines[-1][key] for key in TOTALS if key in lines[-1]
            }
        if self._evaluation_is_due():  # or the run was killed before this one
            if step:
                self.broadcast_to_vllm()  # upstream does so only after this method
            self._evaluate()
        why = self.stop.reason()
        if why:
            raise RunInterrupted(
                f"asked to end ({why}) before step {step + 1}; nothing was lost"
            )
        self.clock.next_step()
        return states

    def _note_engine(self) -> None:
        """Write on the first page where the first engine differs from what the run asked of it."""
        notes = engine_notes(
            ray.get(self.vllm_engines[0].facts.remote()),
            max_len=self.config.data.max_len,
            policy_dtype=self.args.ds.param_dtype,
            wants_prefix_cache=self.args.vllm.enable_prefix_caching,
        )
        add_to_page(self.run, "found", notes)
        for note in notes:
            announce(self.run, Phase.LOADING, warning=note)

    def _begin(self, history: HistoryStore, states: dict) -> None:
        """Commit the imported successes as step 0, with their log-probs under the first policy, and
        those that it finds itself (rollout.collect.share); train on both (warm_start). A checkpoint of
        step 0 keeps what took tokens."""
        config, generator, actors = self.config, self.samples_generator, self.actor_model_group
        rows, sentences, aside = list[Rollout](), list[str](), dict[str, list[float]]()
        if config.history.start is not None:
            rows, _ = rows_to_begin_with(config, self.run)
            rows, sentence, aside = measured(config, rows, logprobs_of(actors, rows))
            sentences.append(sentence)
        if share := config.rollout.collect.share:
            announce(self.run, Phase.SAMPLING)
            kwargs = self.generate_kwargs | {"n_samples_per_prompt": 1}
            collected = generator.collect({one.uid for one in rows}, **kwargs)
            found = f"{len(collected):,} successes in {generator.totals[COLLECTED]:,.0f} tokens before step 1"
            sentences.append(f"rollout.collect.share={share}: {found}")
            rows += collected
        history.commit_step(0, 1, rows)
        if passes := config.replay.imported.warm_start if rows else 0:
            announce(self.run, Phase.UPDATE)
            pad_token_id = self.tokenizer.pad_token_id
            settings = config.replay.imported
            for status in warm_start(
                actors,
                rows,
                self.args,
                passes=passes,
                pad_token_id=pad_token_id,
                batch_size=settings.warm_start_batch_size,
                scale=settings.warm_start_scale,
            ):
                check_update(status, POLICY, config, step=0)
            tokens = passes * sum(len(one.prompt_ids) + one.num_tokens for one in rows)
            generator.totals[WARM_START] = float(tokens)
            before, after = ([one.response_logprobs for one in rows], logprobs_of(actors, rows))
            means = [np.mean([one.mean() for one in logprobs]) for logprobs in (before, after)]
            trained = f"{tokens:,} tokens of {len(rows):,} successes; {means[0]:.2f} -> {means[1]:.2f} nats a token"
            sentences.append(f"replay.imported.warm_start={passes}: {trained}")
        write_beginning(config, self.run, sentences, aside)
        for sentence in sentences:
            announce(self.run, Phase.LOADING, warning=sentence)
        if len(generator.totals) > 1 and config.checkpoint.save_steps != -1:
            self._save(0, {}, states | {"begun": generator.totals}, now=True)

    def _read_paused(self, step: int) -> bytes | None:
        """Read the groups in flight of a checkpoint. ConfigError: damaged; or this run pauses nothing."""
        if self.config.rollout.partial:
            return partial_checkpoint.read(self.run.checkpoints, step=step)
        partial_checkpoint.check_nothing_is_paused(self.run.checkpoints, step=step)
        return None

    def _restore_paused(self, data: bytes | None) -> None:
        if data is not None:
            self.samples_generator.restore_paused(data)

    def _paused_state(self) -> bytes | None:
        """Return the groups in flight after the step trained last; None: nothing is ever paused."""
        return self.samples_generator.paused_state()

    def _at(self, step: int) -> None:
        self.samples_generator.step = self.experience_maker.step = step

    def _announce(self, phase: Phase) -> None:
        announce(self.run, phase, step=self.samples_generator.step + 1)

    def ppo_train(self, global_steps: int) -> dict:
        """Upstream's update of both, announced. In the critic's warm-up the policy's rows go.

        TrainingStopped: an update is not finite. No engine gets its weights, and no checkpoint."""
        self._announce(Phase.UPDATE)
        status = super().ppo_train(global_steps)
        if self.config.algorithm.has_critic:
            check_update(status, CRITIC, self.config, step=global_steps + 1)
        if global_steps < self.config.critic_warmup_steps:
            ray.get(self.actor_model_group.async_run_method("forget_rows"))
        else:
            check_update(status, POLICY, self.config, step=global_steps + 1)
        return status

    def broadcast_to_vllm(self) -> None:
        """Upstream's weight sync to the engines, announced."""
        self._announce(Phase.SYNC)
        super().broadcast_to_vllm()

    def train_step(self, rollout_samples, global_step: int):
        """Upstream's step (:213), then the history's commit of it and R³'s metrics.

        Returns (metrics, number of the step); "loss" and "grad_norm" are the policy's, in a step
        that updates it. TrainingStopped: no rollouts.
        """
        if not rollout_samples:
            raise TrainingStopped("the rollout engine returned no rollouts for a step")
        self._announce(Phase.REWARDS)
        seconds_on_bounds = sum(sample.r3_seconds for sample in rollout_samples) / len(
            self.vllm_engines
        )
        status, global_step = super().train_step(rollout_samples, global_step)
        maker, facts = self.experience_maker, self._facts_of(rollout_samples)
        self._facts = facts
        if global_step > self.config.critic_warmup_steps:
            status |= {"loss": status["policy_loss"], "grad_norm": status["actor_grad_norm"]}
        started = time.perf_counter()
        self.r3.remember(
            maker.kept_rollouts(), step=global_step - 1, epoch=int(facts.metrics["epoch"])
        )
        history_s = time.perf_counter() - started
        status.update(maker.metrics)
        if self.config.data.sources:
            sources = [Label.from_json(sample.labels[0]).source for sample in rollout_samples]
            status.update(
                source_metrics(sources, [sample.r3_rollout for sample in rollout_samples])
            )
        status.update(
            facts.metrics
            | {"r3/time/bounds_s": seconds_on_bounds, "r3/time/history_s": history_s}
        )
        status["r3/time/added_s"] = sum(
            value for key, value in status.items() if key.startswith("r3/time/")
        )
        self._at(global_step)
        self._warn(maker.warnings)
        self._next_epoch = facts.next_epoch
        return status, global_step

    def _facts_of(self, _rollout_samples) -> BatchFacts:
        return self.samples_generator.take_facts()

    def _counts_after_last_step(self) -> dict[str, float]:
        return self.samples_generator.take_counts()

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict=None, client_states=None
    ) -> None:
        """Write the step's lines; save and ask the held-out problems when that is due.

        RunInterrupted, once all is saved: a stop, or the deadline allows no other step.
        """
        if client_states and self._next_epoch > client_states["episode"] + 1:
            # the epoch ended with this step. Upstream's loader state would be that of a finished
            # iterator, which on resume starts the same epoch over
            client_states |= {
                "episode": client_states["episode"] + 1,
                "data_loader_state_dict": {},
            }
        elif client_states and self._facts.is_drawn_out:  # as above: nothing is left to draw
            client_states |= {"data_loader_state_dict": {}}
        numbers = {
            key: value
            for key, value in (logs_dict or {}).items()
            if isinstance(value, (int, float))
        }
        self.run.write_rollouts(global_step, self.experience_maker.records)
        saving, self._saving = self._saving, {}
        # before the checkpoint
        self.run.append_metrics({"step": global_step, **numbers, **saving})
        line = {"step": global_step, **numbers}
        self._trends.append(kept(line))
        self._warn(trend_warnings(self._trends))
        if self.wandb_logger:
            records = self.experience_maker.records
            log_completions(self.wandb_logger.handle, records, self._problems, step=global_step)
        self._warn({"tracker": self.tracker("train", global_step, numbers)})
        self.clock.step_ended()
        why = self.stop.reason() or self.clock.reason_to_stop()
        is_time = why is not None or self.clock.is_time_to_save()
        self._save(global_step, {**(logs_dict or {}), **saving}, client_states, now=is_time)
        self.clock.next_step()  # an evaluation counts with the step that follows
        # for a stop in the evaluation after the last step
        self._client_states, self._is_saved = (
            client_states,
            is_time or self._is_due(global_step),
        )
        if why is None and self._evaluation_is_due():  # a run that continues makes up for it
            self._evaluate()
            why = self.stop.reason()  # asked while the engines were busy with it
        self._forget_what_no_checkpoint_needs(global_step)
        if why:
            self._end_saved(global_step, why)

    def _end_saved(self, step: int, why: str) -> NoReturn:
        """Save this step, unless it is, and end the run. Raises RunInterrupted."""
        if not self._is_saved:
            self._save(step, {}, self._client_states, now=True)
        raise RunInterrupted(
            f"preempted at step {step}, saved ({why}); the same command continues from there"
        )

    def _warn(self, sentences: Mapping[str, str | None]) -> None:
        """Show a sentence of each kind once."""
        for kind, sentence in sentences.items():
            if sentence is not None and kind not in self._warned:
                self._warned.add(kind)
                announce(
                    self.run,
                    Phase.SYNC,
                    step=self.samples_generator.step or None,
                    warning=sentence,
                )

    def _save(self, global_step: int, logs_dict, client_states, *, now: bool) -> None:
        """Upstream's logs, and its checkpoint when due (:397) or `now`. It removes no HF copy."""
        settings = self.args.ckpt
        is_due = now or self._is_due(global_step)
        started = time.time()
        with patch.multiple(settings, save_steps=1 if now else settings.save_steps):
            if is_due:
                announce(self.run, Phase.CHECKPOINT, step=global_step)
                record = (
                    record_of(self.run.history, global_step)
                    if self.history is not None
                    else None
                )
                paused = self._paused_state()
                if paused is not None:  # before `latest` names the step
                    partial_checkpoint.write(self.run.checkpoints, paused, step=global_step)
            super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
            if (
                is_due
                and (folder := checkpoint_record.newest(self.run.checkpoints)) is not None
            ):
                checkpoint_record.write(
                    folder, step=global_step, config=self.run.load_config(), history=record
                )
        if is_due:
            partial_checkpoint.forget_superseded(self.run.checkpoints)
            forget_superseded(
                self.run, newest=global_step, max_num=self.config.checkpoint.max_num
            )
            self._saving = {"timing/save": time.time() - started}
            self.clock.saved(self._saving["timing/save"])

    def _is_due(self, step: int) -> bool:
        """Return True if upstream saves a checkpoint of this step by itself (:394)."""
        return step % self.args.ckpt.save_steps == 0

    def _evaluation_is_due(self, *, last: bool = False) -> bool:
        step, settings = self.samples_generator.step, self.config.held_out
        if settings.path is None or not (last or step % settings.every_steps == 0):
            return False
        return all(line["step"] != step for line in self.run.read_evaluations())

    def _evaluate(self) -> None:
        """Ask the held-out problems, unless the run is asked to end meanwhile: then nothing is written.
        Upstream's `evaluate` (:513) takes its accuracy from rewards, in which length counts and an
        ungraded response has no place."""
        step, settings = self.samples_generator.step, self.config.held_out
        announce(self.run, Phase.EVALUATION, step=step or None)
        so_far = ([{"epoch": 1, **self.samples_generator.totals}] + self.run.read_metrics())[-1]
        kwargs = self.generate_kwargs | {
            "temperature": settings.temperature,
            "n_samples_per_prompt": settings.n_samples,
        }
        rollouts = self.samples_generator.generate_held_out(
            *read_prompts(self.run.held_out), asked_to_end=self.stop.reason, **kwargs
        )
        if rollouts is None:
            return
        line = evaluation_line(
            work_of(self.config).evaluated(rollouts),
            config=self.config,
            step=step,
            epoch=int(so_far["epoch"]),
            generated_tokens=int(so_far["generated_tokens_total"]),
        )
        self.run.write_held_out(
            step,
            [
                rollout_record(rollout, step=step, row=None)
                for rollout in rollouts[:MOST_HELD_OUT]
            ],
        )
        self.run.append_evaluation(line)
        numbers = {
            f"held_out/{key}": line[key]
            for key in ("pass_at_1", "pass_at_n", "response_tokens_mean", "truncated_rate")
        }
        for tracker in filter(None, (self.wandb_logger, self.tensorboard_logger)):
            tracker.log_eval(step, numbers)
        self._warn({"tracker": self.tracker("eval", step, numbers)})

    def _forget_what_no_checkpoint_needs(self, global_step: int) -> None:
        """Let the history drop evicted rows that no checkpoint can ask for. Without any checkpoint
        a run that is started again starts from nothing."""
        if self.history is None:
            return
        kept = [
            int(path.name.removeprefix("global_step"))
            for path in self.run.checkpoints.glob("_actor/global_step*")
        ]
        if kept:
            self.history.set_rollback_floor(min(kept))
        elif self.config.checkpoint.save_steps == -1:
            self.history.set_rollback_floor(global_step)

    def fit(self, global_step: int = 0) -> None:
        """Run the training, with the last evaluation. However it ends, trackers and history are closed."""
        # upstream closes its trackers at the end (:503), before the last evaluation
        trackers = [
            tracker for tracker in (self.wandb_logger, self.tensorboard_logger) if tracker
        ]
        for tracker in trackers:
            tracker.close = lambda: None
        try:
            super().fit(global_step)
            # at the end of the last epoch dynamic filtering may have dropped every group
            counts = self._counts_after_last_step()
            counts["generated_tokens_total"] = counts["generated_tokens"]
            if counts["generated_tokens"]:
                if not self.run.read_metrics():
                    raise TrainingStopped(
                        "every group of every epoch was filtered out (all right or all wrong), so there was no step; use "
                        "other problems, or an algo without dynamic sampling"
                    )
                self.run.complete_metrics(counts)
            if self._evaluation_is_due(last=True):
                self._evaluate()
                why = self.stop.reason()
                if why is not None and self._evaluation_is_due(last=True):
                    self._end_saved(self.samples_generator.step, why)
            announce(self.run, Phase.SAVING)  # upstream does so next
        finally:
            for tracker in trackers:
                del tracker.close
                tracker.close()
            if self.history is not None:
                self.history.close()


class R3Trainer(RecordedSteps, UpstreamTrainer):
    """The single controller: it samples a step's rollouts and trains on them, in turn."""

    def _make_generator(self, _strategy) -> R3SamplesGenerator:
        made = R3SamplesGenerator.instead_of(self.samples_generator, self.config, self.r3)
        made.before_sampling = lambda: self._announce(Phase.SAMPLING)
        return made

    def get_max_steps(self) -> int:
        """Check the engines before upstream loads the models, which wait for the engines to join:
        an engine that died at start-up would leave them waiting without end."""
        wait_for_engines(self.vllm_engines, self.run)
        return super().get_max_steps()


def wait_for_engines(engines, run: RunDirectory) -> None:
    """Wait until each engine answers, then announce that models load. Raises the error of one that died."""
    ray.get([engine.get_num_unfinished_requests.remote() for engine in engines])
    announce(run, Phase.LOADING)


PPOTrainer = ray.remote(R3Trainer)
