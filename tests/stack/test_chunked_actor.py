"""The actor without logits, against OpenRLHF's own: log-probs, entropy, loss and the gradient of every weight."""

import inspect

import pytest
import torch
from openrlhf.models import Actor, PolicyLoss
from openrlhf.trainer.ray import ppo_actor

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.stack import chunked_actor
from r3_openrlhf.stack.chunked_actor import ChunkedActor
from r3_openrlhf.stack.policy_actor import logprobs_and_entropy

pytestmark = pytest.mark.stack
CHUNK = 7  # no divisor of anything


@pytest.fixture(autouse=True)
def chunks(monkeypatch):
    config = load_config("cpu_smoke", [f"train.logits_chunk_tokens={CHUNK}"])
    monkeypatch.setattr(chunked_actor, "config_from_environment", lambda: config)


def actors(model, **settings):
    """Upstream's and ours, with the same weights. float32, so that only the order of sums differs."""
    found = [
        kind(model, attn_implementation="flash_attention_2", **settings)
        for kind in (Actor, ChunkedActor)
    ]
    for actor in found:
        actor.model.float()
    return found


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_loss_and_the_gradient_of_every_weight_are_upstreams(model, rows, packing, temperature):
    """The policy loss on rows of different lengths, padded and packed. float32: to 1e-5 of the gradient's size."""
    torch.manual_seed(0)
    old = torch.randn(rows.action_mask.shape) * 0.1 - 3
    advantages = torch.randn(rows.action_mask.shape)
    found = []
    for actor in actors(model, packing_samples=packing, temperature=temperature):
        logprobs, output = actor(
            rows.sequences, rows.action_mask, rows.attention_mask, return_output=True
        )
        loss = PolicyLoss()(logprobs, old, advantages, action_mask=rows.action_mask)[0]
        loss.backward()
        found.append(
            (
                logprobs.detach(),
                loss.detach(),
                {n: p.grad for n, p in actor.model.named_parameters()},
                output,
            )
        )
    (expected, expected_loss, expected_gradients, _), (logprobs, loss, gradients, output) = (
        found
    )
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-6)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        error = (gradient - expected_gradients[name]).norm() / expected_gradients[name].norm()
        assert error < 1e-5, name
    assert output["logits"].shape[-1] == 1  # no logits were kept


@pytest.mark.parametrize("packing", [False, True])
def test_logprobs_and_entropy_of_the_old_policy(model, rows, packing):
    stock, ours = actors(model, packing_samples=packing, temperature=0.7)
    with torch.no_grad():
        expected = logprobs_and_entropy(
            stock, rows.sequences, rows.action_mask, rows.attention_mask
        )
        found = logprobs_and_entropy(
            ours, rows.sequences, rows.action_mask, rows.attention_mask
        )
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    mask = rows.action_mask.bool()
    torch.testing.assert_close(found[1][mask], expected[1][mask], rtol=1e-5, atol=1e-5)
    assert found[2] > 0


def test_what_needs_logits_gets_them(model, rows):
    """A call without an action mask."""
    arguments = {
        "attention_mask": rows.attention_mask,
        "return_output": True,
        "return_logprobs": True,
    }
    with torch.no_grad():
        expected, found = (actor(rows.sequences, **arguments) for actor in actors(model))
    torch.testing.assert_close(found[0], expected[0])
    assert found[1]["logits"].shape == expected[1]["logits"].shape


def test_a_head_that_does_more_than_a_product_is_found_at_once(model, rows):
    """A model that caps its logits, as some do, would be trained on another policy."""
    ours = actors(model)[1]
    plain = ours.model.forward

    def capped(*args, **kwargs):
        output = plain(*args, **kwargs)
        if output["logits"].shape[-1] > 1:
            output["logits"] = 2 * torch.tanh(output["logits"] / 2)
        return output

    ours.model.forward = capped
    with pytest.raises(
        TrainingStopped, match="they differ by .* nats; use train.logits_chunk_tokens=null"
    ):
        ours(rows.sequences, rows.action_mask, rows.attention_mask)


def test_another_last_layer_is_refused(model, monkeypatch):
    monkeypatch.setattr(
        "transformers.Qwen2ForCausalLM.get_output_embeddings", lambda self: torch.nn.Identity()
    )
    with pytest.raises(TrainingStopped, match="this model's last layer is a Identity"):
        actors(model)


def test_upstream_builds_its_actor_from_the_name_that_is_replaced():
    """And passes what our `forward` takes: contract with trainer/ray/ppo_actor.py:245-254, 513, 537, 619."""
    source = inspect.getsource(ppo_actor)
    assert source.count(" = Actor(\n") == 2 and ppo_actor.Actor is Actor
    theirs = list(inspect.signature(Actor.forward).parameters)
    assert theirs[:5] == ["self", "sequences", "action_mask", "attention_mask", "return_output"]
    assert 'output["logits"] = output["logits"].to(torch.float32)' in inspect.getsource(
        Actor.forward
    )
