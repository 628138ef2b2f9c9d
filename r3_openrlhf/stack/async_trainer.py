"""Asynchronous training (`openrlhf.train.async_enable`): coming steps sample while one trains.

Answers trainer/ppo_trainer_async.py, whose three actors stay: one samples (:38), one trains (:168),
one holds them (:269), with a queue of batches (:292) and a lock between sampling and weight sync
(:20). New here:

    which weights sampled a row     the engines are told in the lock, each response says it
    what a batch counts             travels through the queue: a step reports what it trains on
    where a resumed run continues     at the loader's state of the last trained batch (:144); what
                                    the queue held after it is lost, and asked again
"""

import ray
import transformers
from openrlhf.trainer import ppo_trainer_async
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.problems.prompts import r3_of
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.blocked_signals import keep_blocked
from r3_openrlhf.stack.environment import config_from_environment
from r3_openrlhf.stack.phases import Phase
from r3_openrlhf.stack.samples_generator import BatchFacts, R3SamplesGenerator, keep_order
from r3_openrlhf.stack.trainer import RecordedSteps, wait_for_engines


def _below(actor) -> type:
    """Return the decorated class under a Ray actor's name (ppo_trainer_async.py:37, :167, :268)."""
    return actor.__ray_metadata__.modified_class.__ray_actor_class__


class SampledBatch(list):
    """Rows of a batch in upstream's queue, with what the trainer reports of them."""

    facts: BatchFacts


class AheadGenerator(R3SamplesGenerator):
    """`step` counts batches: each trains at its own step, as the queue keeps their order."""

    def generate_samples(self, **generate_kwargs):
        """Sample as R3SamplesGenerator does; the rows are a SampledBatch."""
        rows, pass_rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        if rows:
            rows = SampledBatch(rows)
            rows.facts = self.take_facts()._replace(paused=self.paused_state())
            self.step += 1
        return rows, pass_rate, consumed, exhausted

    def _engines_step(self) -> int | None:
        return None  # VersionedEngines tells them


class R3GenerateSamplesActor(_below(ppo_trainer_async.GenerateSamplesActor)):  # type: ignore[misc]
    """The actor that samples. Reads the history, which the trainer writes."""

    samples_generator: R3SamplesGenerator

    def __init__(self, pretrain, strategy, vllm_engines, **kwargs) -> None:
        keep_blocked()
        self.config = config_from_environment()
        transformers.set_seed(self.config.train.seed)
        keep_order(strategy, self.config)
        super().__init__(pretrain, strategy, vllm_engines, **kwargs)
        r3 = r3_of(self.config, None)
        self.samples_generator = AheadGenerator.instead_of(
            self.samples_generator, self.config, r3
        )

    def start_at(
        self, step: int, epoch: int, totals: dict[str, float], paused: bytes | None
    ) -> None:
        """Continue after `step`, in `epoch`, after that many tokens, with these groups in flight. The store exists."""
        generator = self.samples_generator
        if paused is not None:
            generator.restore_paused(paused)
        generator.step, generator.epoch, generator.totals = step, epoch, totals
        if self.config.keeps_history:
            path = RunDirectory(self.config.run_dir).history
            generator.r3.history = HistoryStore.open(
                path, seed=self.config.train.seed, writer=False
            )

    def load_state_dict(self, state_dict) -> None:
        """Upstream's (:76), which does not know that an epoch may begin with a checkpoint."""
        if state_dict:
            super().load_state_dict(state_dict)

    def take_counts(self) -> dict[str, float]:
        """Return what was sampled after the last batch."""
        return self.samples_generator.take_counts()


class VersionedEngines(BasePPOTrainer):
    """Comes after upstream's class: its broadcast runs inside of upstream's lock (:255)."""

    policy_step = 0  # of the weights that the next broadcast sends

    def broadcast_to_vllm(self) -> None:
        """Send the weights, and their policy step."""
        super().broadcast_to_vllm()
        self.tell_engines()

    def tell_engines(self) -> None:
        """Tell each engine how many optimizer steps its weights have had."""
        ray.get(
            [engine.set_policy_step.remote(self.policy_step) for engine in self.vllm_engines]
        )


class R3TrainingActor(RecordedSteps, _below(ppo_trainer_async.TrainingActor), VersionedEngines):  # type: ignore[misc]
    """The actor that trains. It asks the held-out problems itself, between two steps."""

    def _make_generator(self, strategy) -> R3SamplesGenerator:
        return R3SamplesGenerator(  # for held-out problems alone
            strategy=strategy,
            prompts_dataloader=None,
            eval_dataloader=None,
            tokenizer=self.tokenizer,
            vllm_engines=self.vllm_engines,
            config=self.config,
            r3=self.r3,
        )

    def meet(self, generator, generate_kwargs: dict) -> None:
        """Set the actor that samples, and the arguments that it samples with."""
        self.generator, self.generate_kwargs = generator, generate_kwargs

    def init_checkpoint_states(self) -> dict:
        """Initialize as the synchronous trainer does; then tell engines and sampler where the run is."""
        states = super().init_checkpoint_states()
        self.tell_engines()
        own = self.samples_generator
        ray.get(self.generator.start_at.remote(own.step, own.epoch, own.totals, self._restored))
        return states

    def _restore_paused(self, data: bytes | None) -> None:
        self._restored = data  # for the actor that samples

    def _paused_state(self) -> bytes | None:
        return self._facts.paused

    def _at(self, step: int) -> None:
        super()._at(step)
        self.policy_step = step

    def train_step(self, rollout_samples, global_step: int):
        """Train one step on the batch that waited longest."""
        self.policy_step = global_step + 1  # what this step's broadcast sends
        return super().train_step(rollout_samples, global_step)

    def _facts_of(self, rollout_samples) -> BatchFacts:
        return rollout_samples.facts

    def _counts_after_last_step(self) -> dict[str, float]:
        return ray.get(self.generator.take_counts.remote())

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict=None, client_states=None
    ) -> None:
        """Save as the synchronous trainer does; then announce the wait for rollouts."""
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
        self._announce(Phase.SAMPLING)

    def fit(self, global_step: int = 0) -> None:
        """Run the whole training."""
        self._announce(Phase.SAMPLING)
        super().fit(global_step)


class R3TrainerAsync(_below(ppo_trainer_async.PPOTrainerAsync)):  # type: ignore[misc]
    """Starts both actors on its own node: they share the history's file."""

    def __init__(
        self,
        pretrain,
        strategy,
        actor_model_group,
        critic_model_group,
        reward_model_group,
        reference_model_group,
        vllm_engines,
        **generate_kwargs,
    ) -> None:
        keep_blocked()
        here = NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        # upstream's __init__ takes both from the module's global names (:304, :314)
        ppo_trainer_async.GenerateSamplesActor = ray.remote(R3GenerateSamplesActor).options(
            scheduling_strategy=here
        )
        ppo_trainer_async.TrainingActor = ray.remote(R3TrainingActor).options(
            scheduling_strategy=here
        )
        super().__init__(
            pretrain,
            strategy,
            actor_model_group,
            critic_model_group,
            reward_model_group,
            reference_model_group,
            vllm_engines,
            **generate_kwargs,
        )
        self.vllm_engines = vllm_engines
        ray.get(self.trainer_actor.meet.remote(self.generator_actor, generate_kwargs))

    def get_max_steps(self) -> int:
        """Upstream's, once every engine answers."""
        wait_for_engines(self.vllm_engines, RunDirectory(config_from_environment().run_dir))
        return super().get_max_steps()


PPOTrainerAsync = ray.remote(R3TrainerAsync)
