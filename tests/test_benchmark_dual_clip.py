"""benchmarks/dual_clip.py: both gradients of the same rows, on rows whose ratios are chosen."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from r3_openrlhf.lab.update import TrainedRow, accumulate_gradient

SOURCE = Path(__file__).parents[1] / "benchmarks" / "dual_clip.py"
SETTINGS = dict(temperature=1.0, eps_clip_low=0.2, eps_clip_high=0.2, micro_batch_size=4)


@pytest.fixture(scope="module")
def dual_clip():
    spec = importlib.util.spec_from_file_location("dual_clip", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model():
    torch.manual_seed(0)
    shape = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=20)
    return Qwen2ForCausalLM(Qwen2Config(**shape, num_key_value_heads=1))


def row(model, *, ratio, advantage):
    """Three tokens, each `ratio` times as likely now as when they were sampled."""
    given = TrainedRow(prompt_ids=np.array([1, 2]), response_ids=np.array([3, 4, 5]), advantage=advantage)
    (now,) = accumulate_gradient(model, [given], **SETTINGS).logprobs
    model.zero_grad(set_to_none=True)
    given.old_logprobs = now - np.float32(math.log(ratio))
    return given


@pytest.mark.parametrize(
    ("ratio", "advantage", "above"), [(7.0, -1.0, 3), (2.0, -1.0, 0), (7.0, 1.0, 0), (0.5, -1.0, 0)]
)
def test_the_bound_takes_what_is_above_it_and_nothing_else(dual_clip, model, ratio, advantage, above):
    found = []
    result = dual_clip.measured(found, 3.0)(model, [row(model, ratio=ratio, advantage=advantage)], **SETTINGS)
    (one,) = found
    assert one.above == above and one.largest == pytest.approx(ratio if advantage < 0 else 0, rel=1e-4)
    if above:  # the whole row is
        assert one.bounded_norm == 0 < one.norm
    else:
        assert one.bounded_norm == pytest.approx(one.norm)
    # what the run goes on with is the gradient without the bound
    assert dual_clip.flat_gradient(model).norm().item() == pytest.approx(one.norm)
    assert result.ratio_max == pytest.approx(ratio, rel=1e-4)
