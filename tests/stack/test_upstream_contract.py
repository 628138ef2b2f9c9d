"""What the adapters rely on in OpenRLHF 0.11.2, vLLM and DeepSpeed. A new version that breaks one of them fails here,
with the file to look at, instead of failing silently in a run."""

import importlib
import importlib.metadata
import inspect
from pathlib import Path

import pytest

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")

from openrlhf.trainer import ppo_trainer  # noqa: E402
from openrlhf.trainer.ray import ppo_actor, ppo_critic, vllm_engine  # noqa: E402

from tests.tables import rows_of  # noqa: E402

pytestmark = pytest.mark.stack


def test_version():
    assert importlib.metadata.version("openrlhf") == "0.11.2"


LINES = rows_of(Path(__file__).with_name("upstream_lines.txt"))


@pytest.mark.parametrize(("name", "line"), LINES)
def test_the_upstream_line_that_an_adapter_answers_is_still_there(name, line):
    module, _, path = name.partition(":")
    owner = importlib.import_module(module)
    for part in filter(None, path.split(".")):
        owner = getattr(owner, part)
        owner = owner.__ray_metadata__.modified_class if hasattr(owner, "__ray_metadata__") else owner
    assert line.replace("\\n", "\n") in inspect.getsource(owner)


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
