"""Given experts in the policy's passes (rollout.routing_replay), against upstream's own routers."""

import contextlib
import importlib

import numpy as np
import pytest
import torch
from openrlhf.models import Actor
from transformers import AutoConfig, AutoModelForCausalLM

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.runs.models import routers
from r3_openrlhf.stack import chunked_actor
from r3_openrlhf.stack.chunked_actor import ChunkedActor
from r3_openrlhf.stack.expert_routing import (
    ROUTERS,
    ExpertRouting,
    RoutingCounts,
    add_counts,
    differing,
    experts_tensor,
)
from r3_openrlhf.stack.policy_actor import logprobs_and_entropy
from tests.stack.mixed_rows import VOCAB

pytestmark = pytest.mark.stack
LAYERS, EXPERTS, TOP_K = 3, 6, 2
DENSE = 1  # a layer without experts
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "mlp_only_layers": [DENSE],
    "initializer_range": 0.2,
}


def config_of(kind, **more):
    return AutoConfig.for_model(kind, **SIZES | more)


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    """A small Qwen3 MoE, far from uniform, in a directory; its middle layer has no experts."""
    path = tmp_path_factory.mktemp("moe")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of("qwen3_moe", norm_topk_prob=True))
    model.to(torch.bfloat16).save_pretrained(path)
    return str(path)


def actor_of(moe, *, kind=Actor, **settings):
    actor = kind(moe, attn_implementation="flash_attention_2", **settings)
    actor.model.float()
    return actor


def drawn_experts(rows, *, seed=0, dtype=torch.uint8):
    """Of each row experts of all tokens but the last, drawn by lot; of the second row none."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for mask in rows.attention_mask:
        shape = (int(mask.sum()) - 1, LAYERS, EXPERTS)
        found.append(torch.rand(shape, generator=generator).argsort(-1)[..., :TOP_K].to(dtype))
    found[1] = None
    return found


@contextlib.contextmanager
def seen_experts(actor):
    """Layer -> the experts [N, K] that the layer was asked for, of each pass. Their weights are the gate's."""
    seen: dict[int, list[torch.Tensor]] = {}
    logits: dict[int, torch.Tensor] = {}

    def look(number, experts_NK, weights_NK):
        seen.setdefault(number, []).append(experts_NK)
        chosen_NK = logits[number].softmax(-1).gather(-1, experts_NK)
        torch.testing.assert_close(weights_NK, chosen_NK / chosen_NK.sum(-1, keepdim=True))

    handles = [
        layer.mlp.gate.register_forward_hook(
            lambda _, inputs, found, number=number: logits.update({number: found[0]})
        )
        for number, layer in enumerate(actor.model.model.layers)
        if number != DENSE
    ]
    handles += [
        layer.mlp.experts.register_forward_pre_hook(
            lambda _, inputs, number=number: look(number, *inputs[1:])
        )
        for number, layer in enumerate(actor.model.model.layers)
        if number != DENSE
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


# ---- one router


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("kind", routers.ROUTERS)
def test_a_router_that_is_given_its_own_experts_is_upstreams(kind, normed):
    name = routers.ROUTERS[kind]
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    router = getattr(module, name)(config_of(kind, norm_topk_prob=normed))
    torch.manual_seed(1)
    torch.nn.init.normal_(router.weight)
    hidden_NH = torch.randn(11, 32)
    logits, weights, experts = router(hidden_NH)
    torch.testing.assert_close(ROUTERS[name](router, logits, experts), weights)
    # of other experts the weights are others
    assert not torch.allclose(ROUTERS[name](router, logits, (experts + 1) % EXPERTS), weights)


def test_weights_by_hand():
    """softmax of (ln 1, ln 2, ln 5) is (1, 2, 5) / 8."""
    router = torch.nn.Module()
    logits = torch.tensor([[1.0, 2.0, 5.0]]).log()
    experts = torch.tensor([[2, 0]])
    weights = ROUTERS["Qwen3MoeTopKRouter"]
    router.norm_topk_prob = False
    torch.testing.assert_close(weights(router, logits, experts), torch.tensor([[5 / 8, 1 / 8]]))
    router.norm_topk_prob = True
    torch.testing.assert_close(weights(router, logits, experts), torch.tensor([[5 / 6, 1 / 6]]))


def test_both_tables_name_the_same_routers():
    assert set(routers.ROUTERS.values()) == set(ROUTERS)


def test_the_order_of_a_set_says_nothing():
    first = torch.tensor([[1, 2], [1, 2], [0, 3]])
    second = torch.tensor([[2, 1], [1, 3], [0, 3]])
    assert differing(first, second).tolist() == [False, True, False]


# ---- a pass of the policy


@pytest.mark.parametrize("packing", [False, True])
def test_each_token_goes_to_its_given_experts_up_to_the_last(moe, rows, packing):
    """The last token of a row, padding and a row without experts choose for themselves."""
    actor = actor_of(moe, packing_samples=packing)
    given = drawn_experts(rows)
    routing = ExpertRouting(actor.model)
    mask = rows.attention_mask.bool()
    with (
        torch.no_grad(),
        seen_experts(actor) as seen,
        routing.given(given, rows.attention_mask, packed=packing, counts=True),
    ):
        logprobs, _, _ = logprobs_and_entropy(
            actor, rows.sequences, rows.action_mask, rows.attention_mask
        )
    for number, passes in seen.items():
        (found,) = passes
        if not packing:
            found = found[mask.flatten()]
        for row, experts in zip(found.split(mask.sum(-1).tolist()), given, strict=True):
            if experts is not None:
                assert row[:-1].tolist() == experts[:, number].tolist()
    assert len(seen) == LAYERS - 1
    # the row alone, without any other
    for row in range(len(given)):
        ids = rows.sequences[row : row + 1, mask[row]]
        ones = torch.ones_like(ids)
        with (
            torch.no_grad(),
            routing.given([given[row]], ones, packed=packing),
        ):
            alone = actor(ids, ones[:, 1:], ones)
        actions = rows.action_mask[row].bool()
        length = int(actions.sum())
        torch.testing.assert_close(
            logprobs[row][actions], alone[0, -length:], rtol=1e-4, atol=1e-4
        )
    counts = routing.take_counts()
    tokens = sum(len(one) for one in given if one is not None)
    assert counts.tokens == tokens
    assert counts.choices == tokens * (LAYERS - 1)
    assert 0 < counts.differing_tokens <= tokens
    assert counts.differing_tokens <= counts.differing_choices <= counts.choices
    assert routing.take_counts() == RoutingCounts()


def test_a_models_own_experts_change_nothing_and_none_differs(moe, rows):
    actor = actor_of(moe)
    arguments = (rows.sequences, rows.action_mask, rows.attention_mask)
    with torch.no_grad(), seen_experts(actor) as seen:
        expected = actor(*arguments)
    own_BTLK = torch.zeros(*rows.sequences.shape, LAYERS, TOP_K, dtype=torch.uint8)
    for number, (experts,) in seen.items():
        own_BTLK[:, :, number] = experts.view(*rows.sequences.shape, TOP_K)
    given = [
        own_TLK[mask.bool()][:-1]
        for own_TLK, mask in zip(own_BTLK, rows.attention_mask, strict=True)
    ]
    routing = ExpertRouting(actor.model)
    with (
        torch.no_grad(),
        routing.given(given, rows.attention_mask, packed=False, counts=True),
    ):
        torch.testing.assert_close(actor(*arguments), expected)
    counts = routing.take_counts()
    assert counts.tokens > 0
    assert counts.differing_tokens == counts.differing_choices == 0
    # one token of one layer
    layer = 2
    swapped = given[0].clone()
    others = set(range(EXPERTS)) - set(swapped[1, layer].tolist())
    swapped[1, layer, 0] = others.pop()
    with (
        torch.no_grad(),
        routing.given([swapped, *given[1:]], rows.attention_mask, packed=False, counts=True),
    ):
        actor(*arguments)
    counts = add_counts([routing.take_counts()])
    assert (counts.differing_tokens, counts.differing_choices) == (1, 1)


@pytest.mark.parametrize("kind", [Actor, ChunkedActor])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_with_checkpointing_are_those_without(
    moe, rows, monkeypatch, kind, reentrant
):
    """The second pass of gradient checkpointing sees the same experts; the gate has a gradient."""
    config = load_config("cpu_smoke", ["train.logits_chunk_tokens=7"])
    monkeypatch.setattr(chunked_actor, "config_from_environment", lambda: config)
    gradients = []
    for checkpoints in (False, True):
        actor = actor_of(moe, kind=kind, packing_samples=True)
        if checkpoints:
            actor.gradient_checkpointing_enable({"use_reentrant": reentrant})
        actor.train()
        routing = ExpertRouting(actor.model)
        if kind is ChunkedActor:
            actor.aside = routing.paused
        with (
            seen_experts(actor) as seen,
            routing.given(drawn_experts(rows), rows.attention_mask, packed=True),
        ):
            actor(rows.sequences, rows.action_mask, rows.attention_mask).sum().backward()
        # a chunked actor first compares its head on some tokens
        passes = [len(found) for found in seen.values()]
        assert min(passes) == (2 if checkpoints else 1) + 2 * (kind is ChunkedActor)
        gradients.append({name: one.grad for name, one in actor.model.named_parameters()})
    assert gradients[0]["model.layers.0.mlp.gate.weight"].abs().max() > 0
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-5)


def test_a_pass_over_other_tokens_is_refused(moe, rows):
    actor = actor_of(moe)
    routing = ExpertRouting(actor.model)
    with (
        pytest.raises(TrainingStopped, match="a pass has 3 tokens, and the experts of"),
        routing.given(drawn_experts(rows), rows.attention_mask, packed=False),
    ):
        actor.model(torch.tensor([[1, 2, 3]]))
    actor.model(torch.tensor([[1, 2, 3]]))  # afterwards it chooses for itself


def test_experts_of_another_model_are_refused(moe, rows):
    routing = ExpertRouting(actor_of(moe).model)
    of_another = [torch.zeros(3, LAYERS, TOP_K + 1, dtype=torch.uint8)] * len(rows.sequences)
    with (
        pytest.raises(TrainingStopped, match="has 3 experts of each token in 3 layers, but"),
        routing.given(of_another, rows.attention_mask, packed=False),
    ):
        pass


def test_a_model_without_experts_is_refused(model):
    with pytest.raises(TrainingStopped, match="Qwen2ForCausalLM has no router of experts"):
        ExpertRouting(Actor(model).model)


def test_two_bytes_pass_as_int16():
    experts = np.array([[[300, 2]]], dtype=np.uint16)
    found = experts_tensor(experts)
    assert found.dtype == torch.int16
    assert found.tolist() == [[[300, 2]]]
    assert experts_tensor(experts.astype(np.uint8)).dtype == torch.uint8
    assert experts_tensor(None) is None
