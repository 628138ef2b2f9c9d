"""What the adapters rely on in OpenRLHF 0.11.2, vLLM and DeepSpeed. A new version that breaks one of them fails here,
with the file to look at, instead of failing silently in a run."""

import importlib.metadata
import inspect

import pytest

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")

from openrlhf.cli import train_ppo_ray  # noqa: E402
from openrlhf.models import actor  # noqa: E402
from openrlhf.trainer import ppo_trainer, ppo_trainer_async  # noqa: E402
from openrlhf.trainer.ppo_utils import experience, experience_maker, replay_buffer, samples_generator  # noqa: E402
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic, vllm_engine, vllm_worker_wrap  # noqa: E402
from openrlhf.utils import agent, loss_utils  # noqa: E402
from openrlhf.utils.deepspeed import deepspeed as strategy  # noqa: E402

pytestmark = pytest.mark.stack


def test_version():
    assert importlib.metadata.version("openrlhf") == "0.11.2"


@pytest.mark.parametrize(
    ("owner", "line"),
    [
        # launch.py: names are looked up when they are needed, so replacing them before main runs is enough
        (train_ppo_ray.train, "from openrlhf.trainer.ppo_trainer import PPOTrainer"),
        (train_ppo_ray, "from openrlhf.trainer.ray.ppo_actor import PolicyModelActor"),
        (vllm_engine.create_vllm_engines, "RolloutRayActor.options("),
        # rollout_engine.py
        (vllm_engine.create_vllm_engines, 'actor_kwargs["max_logprobs"] = 1'),
        (
            vllm_engine.create_vllm_engines,
            '"worker_extension_cls": "openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap"',
        ),
        # rollout_executor.py
        (agent.SingleTurnAgentExecutor.execute, "prompt_token_ids = prompt_token_ids[-max_prompt_length:]"),
        (vllm_engine, 'hasattr(agent_module, "AgentExecutor")'),
        # agents/executor.py
        (agent.MultiTurnAgentExecutor.execute, "sampling_params.max_tokens = max_length - len(current_obs_tokens)"),
        (agent.MultiTurnAgentExecutor.execute, 'total_reward += step_result["rewards"].item()'),
        # rollout_engine.py, agents/executor.py
        (
            vllm_engine.RolloutRayActor.__ray_metadata__.modified_class.generate_responses,
            "return await asyncio.gather(*tasks)",
        ),
        (samples_generator.SamplesGenerator._generate_vllm, "for response in ray.get(ref)"),
        # samples_generator.py
        (samples_generator.SamplesGenerator.generate_samples, "rollout_samples = self._sample_buffer[:chunk_size]"),
        (samples_generator.SamplesGenerator._generate_vllm, "self._dispatch_prompts_to_vllm(prompts, labels, images="),
        # experience_maker.py
        (experience_maker.RemoteExperienceMaker.compute_advantages_and_returns, "rewards.reshape(-1, args.rollout.n"),
        (experience_maker.RemoteExperienceMaker.make_experience_batch, "self.split_rollout_samples(rollout_samples)"),
        (experience.Experience, "if items[0] is None:\n            return None"),
        # policy_actor.py
        (ppo_actor, "self.trainer = ActorPPOTrainer("),
        # critic_actor.py; arguments.py
        (ppo_critic.CriticPPOTrainer.ppo_train, "drop_last=True"),
        (ppo_critic.CriticPPOTrainer.ppo_train, "iter_grad_accum_global_norm"),
        (ppo_critic.CriticPPOTrainer.ppo_train, "status_mean[k] /= len(status_list)"),
        (ppo_critic.CriticPPOTrainer.training_step, "self.replay_buffer.dynamic_optimizer_step[step]"),
        (ppo_critic.CriticPPOTrainer.training_step, '"critic_grad_norm": self.strategy.get_grad_norm(self.critic)'),
        (ppo_critic, "self.trainer = CriticPPOTrainer("),
        (ppo_critic, "init_value_head=strategy.args.actor.model_name_or_path == strategy.args.critic.model_name"),
        (train_ppo_ray, "from openrlhf.trainer.ray.ppo_critic import CriticModelActor"),
        (ppo_trainer.BasePPOTrainer.ppo_train, "run_actor = global_steps > self.args.critic.freezing_steps"),
        # lora.py
        (ppo_actor.ActorPPOTrainer.broadcast_to_vllm, "model = self.actor.model.module"),
        (
            ppo_actor.ActorPPOTrainer.broadcast_to_vllm,
            "(n, p) for n, p in model.named_parameters() if p.requires_grad",
        ),
        (ppo_actor.ActorPPOTrainer.broadcast_to_vllm, "deepspeed.zero.GatheredParameters([param], enabled="),
        (ppo_actor.ActorPPOTrainer.broadcast_to_vllm, "broadcast(param.data, src=0"),
        (
            ppo_actor.PolicyModelActor.__ray_metadata__.modified_class.broadcast_to_vllm,
            "self.trainer.broadcast_to_vllm()",
        ),
        (ppo_actor, "self.strategy.save_model("),
        (strategy.DeepspeedStrategy.save_model, "model_to_save.save_pretrained(output_dir, **kwargs)"),
        (actor, "self.model = get_peft_model(self.model, lora_config)"),
        # async_trainer.py
        (train_ppo_ray.train, "from openrlhf.trainer.ppo_trainer_async import PPOTrainerAsync as PPOTrainer"),
        (ppo_trainer_async, "self.generator_actor = GenerateSamplesActor.remote("),
        (ppo_trainer_async, "self.trainer_actor = TrainingActor.remote("),
        (ppo_trainer_async, "self.rollout_queue.put(\n                        (rollout_samples, client_states,"),
        (ppo_trainer_async, '"data_loader_state_dict": self.prompts_dataloader.state_dict()'),
        (ppo_trainer_async, "# Batch consumed => free one token"),
        (ppo_trainer_async, "ray.get(self.vllm_lock.acquire.remote())\n        if self._partial_rollout:"),
        (
            ppo_trainer_async,
            'self.generator_actor.load_state_dict.remote(checkpoint_states["data_loader_state_dict"])',
        ),
        (ppo_trainer_async, "ray.get(self.trainer_actor.init_checkpoint_states.remote())"),
        # policy_update.py
        (ppo_actor.ActorPPOTrainer.ppo_train, "dataloader = DataLoader("),
        (ppo_actor.ActorPPOTrainer.ppo_train, "drop_last=True"),
        (ppo_actor.ActorPPOTrainer.ppo_train, "self.strategy.accumulated_gradient"),
        (ppo_actor.ActorPPOTrainer.training_step, "self.replay_buffer.dynamic_optimizer_step[step]"),
        (loss_utils._optimizer_step_loss_norm, "num_tokens / gas"),
        (replay_buffer.NaiveReplayBuffer.setup_dynamic_batch, "expected_num_steps = args.rollout.batch_size"),
        (strategy.DeepspeedStrategy.get_ds_train_config, 'ds_config["gradient_accumulation_steps"] = 1'),
        # trainer.py
        (ppo_trainer, "self.samples_generator.generate_samples(**self.generate_kwargs)"),
        (ppo_trainer.BasePPOTrainer.train_step, "self.experience_maker.make_experience_batch(rollout_samples)"),
        (ppo_trainer.BasePPOTrainer.init_checkpoint_states, '"global_step": 0'),
        # cpu_platform.py
        (launcher, 'sock.bind(("", 0))'),
        (replay_buffer, 'f"cuda:{torch.cuda.current_device()}"'),
        (strategy.DeepspeedStrategy.setup_distributed, '"cuda", (dp_size'),
        (vllm_worker_wrap.WorkerWrap.update_weight, 'device="cuda"'),
        (vllm_worker_wrap.WorkerWrap.update_weight, "self.model_runner.model.load_weights"),
    ],
)
def test_the_upstream_line_that_an_adapter_answers_is_still_there(owner, line):
    assert line in inspect.getsource(owner)


@pytest.mark.parametrize(
    "actor",
    [ppo_trainer.PPOTrainer, ppo_actor.PolicyModelActor, ppo_critic.CriticModelActor, vllm_engine.RolloutRayActor],
    ids=["trainer", "policy", "critic", "engine"],
)
def test_the_class_below_a_ray_actor_can_be_subclassed(actor):
    plain = actor.__ray_metadata__.modified_class.__ray_actor_class__
    assert inspect.isclass(plain) and type("Child", (plain,), {}).__mro__[1] is plain


def test_our_overrides_have_upstreams_signatures():
    from r3_openrlhf.stack.agents import executor
    from r3_openrlhf.stack.agents.experience import AgentExperienceMaker
    from r3_openrlhf.stack.async_trainer import (
        AheadGenerator,
        R3GenerateSamplesActor,
        R3TrainerAsync,
        R3TrainingActor,
        VersionedEngines,
    )
    from r3_openrlhf.stack.critic_actor import R3CriticActor, R3CriticTrainer
    from r3_openrlhf.stack.experience_maker import R3ExperienceMaker
    from r3_openrlhf.stack.policy_actor import R3PolicyActor
    from r3_openrlhf.stack.policy_update import R3ActorTrainer, R3ReplayBuffer
    from r3_openrlhf.stack.rollout_engine import R3RolloutActor
    from r3_openrlhf.stack.rollout_executor import AgentExecutor
    from r3_openrlhf.stack.samples_generator import R3SamplesGenerator
    from r3_openrlhf.stack.trainer import R3Trainer, RecordedSteps

    for child in (AheadGenerator, R3GenerateSamplesActor, R3TrainerAsync, R3TrainingActor, RecordedSteps, VersionedEngines, R3ExperienceMaker, R3ActorTrainer, R3CriticActor, R3CriticTrainer, R3PolicyActor, R3ReplayBuffer, R3SamplesGenerator, R3Trainer, AgentExecutor, executor.AgentExecutor, AgentExperienceMaker, R3RolloutActor):  # fmt: skip
        upstream = next(c for c in child.__mro__ if c.__module__.startswith("openrlhf."))
        shared = {n for n in vars(child) if n in dir(upstream) and inspect.isfunction(vars(child)[n])} - {"__init__"}
        assert shared, child
        for name in shared:
            ours, theirs = (  # Ray adds _ray_trace_ctx to the methods of its actors
                [p for p in inspect.signature(getattr(c, name)).parameters if p != "_ray_trace_ctx"]
                for c in (child, upstream)
            )
            assert ours == theirs or "args" in ours, f"{child.__name__}.{name}"


def test_vllm_offers_flat_logprobs_without_detokenising():
    from vllm import SamplingParams
    from vllm.logprobs import FlatLogprobs

    from r3_openrlhf.stack.rollout_executor import logprobs_array

    params = SamplingParams(logprobs=2, flat_logprobs=True, detokenize=False)
    assert (params.logprobs, params.flat_logprobs, params.detokenize) == (2, True, False)
    flat = FlatLogprobs()
    for position in range(3):  # the sampled token, then the two most likely ones, as vllm/logprobs.py appends them
        flat.append_fast([7, 1, 2], [-3.0 - position, -1.0, -2.0], iter([9, 1, 2]), [None] * 3)
    assert logprobs_array(flat, 3).tolist() == [[-3, -1, -2], [-4, -1, -2], [-5, -1, -2]]
    with pytest.raises(ValueError, match="9 log-probs for 4 tokens"):
        logprobs_array(flat, 4)


def test_deepspeed_lets_the_boundary_and_the_batch_size_be_set():
    from deepspeed import DeepSpeedEngine

    assert "is_boundary" in inspect.signature(DeepSpeedEngine.set_gradient_accumulation_boundary).parameters
    source = inspect.getsource(DeepSpeedEngine.set_train_batch_size)
    assert "self._config.gradient_accumulation_steps = new_gas" in source
