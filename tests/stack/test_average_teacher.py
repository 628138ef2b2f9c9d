"""The moving average of the policy's weights on real ranks: what it is, that the model has it and then its own weights again,
and that a checkpoint keeps it."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy
from transformers import AutoModelForCausalLM

from r3_openrlhf.stack.average_teacher import FOLDER, forget_superseded
from tests.stack import rank_worker
from tests.stack.mixed_rows import mixed_rows
from tests.stack.updates_on_ranks import run_ranks

pytestmark = pytest.mark.stack
MOVING = {"actor.adam.lr": 0.01, "actor.adam.eps": 1e-8, "train.batch_size": 4}


@pytest.fixture(
    scope="module",
    params=[
        {"ranks": 1, "stage": 2},
        {"ranks": 2, "stage": 2, "dynamic": True},
        {"ranks": 2, "stage": 3},
        {"ranks": 2, "stage": 3, "lora": 4},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def found(request, tmp_path_factory, model):
    """Rate .3, four steps of several updates each."""
    more = MOVING | ({"actor.adam.lr": 0.1} if "lora" in request.param else {})
    result = run_ranks(
        tmp_path_factory.mktemp("average"),
        model,
        target=rank_worker.averaged,
        rate=0.3,
        rows_per_step=[7, 5, 12, 6],
        more=more,
        **request.param,
    )
    return result | {"lora": "lora" in request.param}


def average_of(policies, *, rate):
    found = {name: weight.float() for name, weight in policies[0].items()}
    for policy in policies[1:]:
        found = {
            name: mean + rate * (policy[name].float() - mean) for name, mean in found.items()
        }
    return found


def test_the_model_has_the_average_and_then_its_own_weights_again(found):
    """The average in float32, rounded once."""
    assert len(found["policies"]) == 1 + 4
    expected = average_of(found["policies"], rate=0.3)
    for name, weight in found["inside"].items():
        torch.testing.assert_close(weight, expected[name].to(weight.dtype))
        assert torch.equal(found["before"][name], found["after"][name]), name
    moved = [
        name
        for name in found["inside"]
        if not torch.equal(found["inside"][name], found["before"][name])
    ]
    assert moved and all(("lora_" in name) is found["lora"] for name in moved)


def test_the_pass_is_that_of_the_averages_weights(found, model):
    if found["lora"]:
        pytest.skip("a plain model has no adapter")
    alone = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    alone.load_state_dict(found["inside"])
    for row, logprobs in zip(mixed_rows(7, seed=7), found["scored"], strict=True):
        ids = torch.tensor([row["tokens"]])
        with torch.no_grad():
            logp = alone(ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        expected = logp.gather(1, ids[0, 1:, None])[row["prompt"] - 1 :, 0]
        torch.testing.assert_close(logprobs, expected, atol=0.15, rtol=0.02)
        assert (logprobs - expected).abs().mean() < 0.03


def test_a_run_that_goes_on_has_the_average_of_one_that_was_never_stopped(found):
    undisturbed, resumed = found["gone_on"]
    for name, weight in undisturbed.items():
        assert torch.equal(weight, resumed[name]), name
        assert (
            found["lora"] or not torch.equal(weight, found["inside"][name]) or weight.dim() < 2
        )


def test_an_average_that_cannot_be_read_is_one_sentence(found):
    missing, damaged, of_others = found["said"]
    assert "checkpoint step has no average for distill.teacher=average" in missing
    assert "is damaged" in damaged and "of another model or number of ranks" in of_others


def test_averages_go_with_their_checkpoints(tmp_path):
    for tag in ("global_step2", "global_step4"):
        (tmp_path / FOLDER / tag).mkdir(parents=True)
    (tmp_path / "_actor" / "global_step4").mkdir(parents=True)
    forget_superseded(tmp_path)
    assert [one.name for one in (tmp_path / FOLDER).iterdir()] == ["global_step4"]


def test_upstreams_average_does_not_follow_small_steps():
    """200 steps of 1e-6 on weights of a usual size, rate .05: its bfloat16 average makes 16% of the way that
    one in float32 makes. Contract with utils/deepspeed/deepspeed.py:503."""
    generator = torch.Generator().manual_seed(0)
    master = torch.randn(10_000, generator=generator) * 0.02
    policy = torch.nn.Linear(1, 10_000, bias=False).bfloat16()
    policy.weight.data = master[:, None].bfloat16()
    theirs = torch.nn.Linear(1, 10_000, bias=False).bfloat16()
    theirs.load_state_dict(policy.state_dict())
    exact, begun = policy.weight.data.float().clone(), policy.weight.data.float().clone()
    strategy = SimpleNamespace(
        time_steps={"ema": 0}, accumulated_gradient=1, use_dynamic_batch=False, stage=2
    )
    for _ in range(200):
        master += 1e-6
        policy.weight.data = master[:, None].bfloat16()
        DeepspeedStrategy.moving_average(strategy, policy, theirs, beta=0.95)
        exact.lerp_(policy.weight.data.float(), 0.05)
    followed = (theirs.weight.data.float() - begun).sum() / (exact - begun).sum()
    assert followed.item() == pytest.approx(0.16, abs=0.02)
    # and no checkpoint keeps it
    source = inspect.getsource(ppo_actor)
    assert source.count("save_ckpt(\n                self.actor.model,") == 1
    assert "self.ema_model if args.train.enable_ema else self.actor" in source
