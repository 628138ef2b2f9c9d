"""LoRA: what engines and saved models get is the base model with the adapter merged into it, as PEFT itself merges."""

import copy

import pytest
import torch
from openrlhf.models import Actor
from peft import PeftModel
from transformers import AutoModelForCausalLM

from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.stack import lora
from tests.stack import rank_worker
from tests.stack.updates_on_ranks import run_ranks

pytestmark = pytest.mark.stack


def adapted(model, *, dtype=torch.bfloat16, targets="all-linear"):
    """A model with an adapter that is not zero."""
    torch.manual_seed(0)
    found = Actor(
        model, attn_implementation="sdpa", lora_rank=4, lora_alpha=16, target_modules=targets
    ).model.to(dtype)
    for name, parameter in found.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_merged_weights_are_those_of_peft_and_the_trained_ones_stay(model, dtype):
    ours = adapted(model, dtype=dtype)
    before = {
        name: (parameter.data_ptr(), parameter.data.clone())
        for name, parameter in ours.named_parameters()
    }
    merged = {name: parameter.data.clone() for name, parameter in lora.merged_parameters(ours)}
    # ZeRO's weights are views: another storage would never be trained
    for (
        name,
        parameter,
    ) in ours.named_parameters():
        assert parameter.data_ptr() == before[name][0] and torch.equal(
            parameter.data, before[name][1]
        ), name
    expected = dict(copy.deepcopy(ours).merge_and_unload().named_parameters())
    assert list(merged) == list(expected)
    for name, weight in expected.items():
        assert merged[name].dtype == dtype and torch.equal(merged[name], weight.data), name
    plain = dict(AutoModelForCausalLM.from_pretrained(model, dtype=dtype).named_parameters())
    changed = {name for name in merged if not torch.equal(merged[name], plain[name].data)}
    assert changed == {name for name in merged if "_proj.weight" in name}


def lost_of(base, change):
    loss = lora.MergeLoss()
    loss.count(base, change, (base + change).to(base.dtype))
    return loss.share


def test_what_the_type_of_the_weights_loses_of_a_change_by_hand():
    """Half a step of bfloat16 is 1/256 of 1, of 1/2 and of 1/4: .0039, .002 and .00098. A change of .001 moves the last two."""
    base, change = torch.tensor([1.0, 0.5, 0.25, 0.125]), torch.tensor([1e-3] * 4)
    assert lost_of(base.bfloat16(), change) == 0.5
    assert lost_of(base, change) == 0.0
    assert lost_of(base.bfloat16(), 0 * change) == 0.0


@pytest.mark.parametrize(("size", "lost"), [(2e-4, 0.18), (2e-6, 0.98)])
def test_what_bfloat16_loses_of_small_changes_of_a_model(size, lost):
    """The figures of docs/usage.md: weights with a deviation of .05."""
    torch.manual_seed(0)
    base = (0.05 * torch.randn(512, 512)).bfloat16()
    assert lost_of(base, size * torch.randn(512, 512)) == pytest.approx(lost, abs=0.01)


def test_an_adapter_on_something_else_than_a_linear_layer_is_refused(model):
    with pytest.raises(
        TrainingStopped,
        match="names model.embed_tokens, a Embedding; LoRA is for linear layers here",
    ):
        lora.check_layers(adapted(model, targets=["embed_tokens", "q_proj"]))


def test_an_adapter_on_a_head_that_is_the_embedding_too_is_refused(model, tmp_path):
    tied = AutoModelForCausalLM.from_pretrained(model)
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    tied.save_pretrained(tmp_path)
    with pytest.raises(
        TrainingStopped,
        match="names lm_head, whose weight is another layer's too; leave it out",
    ):
        lora.check_layers(adapted(str(tmp_path), targets=["lm_head"]))


def lost_share(peft, sent):
    """The change of an unmerged model's adapter at weights that were sent as the base has them, of all change."""
    total = lost = 0.0
    for name, module in peft.get_base_model().named_modules():
        if hasattr(module, "get_delta_weight"):
            change = module.get_delta_weight("default").detach().abs().double()
            base = module.get_base_layer().weight.data
            total += change.sum().item()
            lost += change[sent[f"{name}.weight"] == base].sum().item()
    return lost / total


@pytest.mark.parametrize("stage", [2, 3])
def test_trained_sent_saved_and_resumed_on_two_ranks(tmp_path, model, stage):
    """Upstream's own sync under ZeRO 2 and 3: base names, merged values, nothing of the base trained. PEFT makes an adapter
    in float32; DeepSpeed takes it to bfloat16, but not under ZeRO 3."""
    found = run_ranks(tmp_path, model, target=rank_worker.adapted, ranks=2, stage=stage, lora=4)
    assert {
        name
        for name in found["start"]
        if not torch.equal(found["start"][name], found["trained"][name])
    } == {name for name in found["start"] if ".lora_" in name}
    peft = adapted(model)
    for name, parameter in peft.named_parameters():
        parameter.data = found["trained"][name]
    expected = dict(copy.deepcopy(peft).merge_and_unload().named_parameters())
    assert list(found["sent"]) == list(expected)
    assert found["lost"] == [pytest.approx(lost_share(peft, found["sent"]))] * 2
    assert 0 < found["lost"][0] < 1
    saved = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "saved").named_parameters())
    for name, weight in expected.items():
        assert torch.equal(found["sent"][name], weight.data), name
        assert torch.equal(found["resumed"][name], weight.data), name
        assert torch.equal(saved[name].data, weight.data), name
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    alone = PeftModel.from_pretrained(
        plain, tmp_path / "saved" / "adapter", autocast_adapter_dtype=stage == 3
    )
    for name, weight in alone.merge_and_unload().named_parameters():
        assert torch.equal(weight.data, expected[name].data), name
