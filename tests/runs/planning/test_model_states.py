"""Weights, optimizer and gradients of real DeepSpeed ranks, beside the formulas."""

import json

import pytest

from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.runs.planning import formulas as f
from r3_openrlhf.runs.planning.shapes import shape_of

WITHIN = 0.15


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "stage"), [("tiny", 2, 2), ("tiny", 1, 2)])
def test_model_states_are_deepspeeds_tensors(name, ranks, stage, tmp_path):
    """Real ranks of OpenRLHF's strategy after one backward pass: the bytes of their tensors."""
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    from tests.runs.planning import rank_states
    from tests.stack.ranks import on_ranks

    shape, model = shape_of(name), resolve_model(name)
    output = tmp_path / "found.json"
    on_ranks(rank_states.model_states, ranks, model, ranks, stage, output, folder=tmp_path)
    found = json.loads(output.read_text())
    zero = f.Zero(ranks, stage)
    assert found["bucket"] == f.Zero(1, stage).bucket(shape.params)  # whole, however small the model is
    assert zero.weights(shape.params) == pytest.approx(found["weights"], rel=WITHIN)
    assert zero.optimizer(shape.params) == pytest.approx(found["optimizer"], rel=WITHIN)
    assert zero.gradients(shape.params) == pytest.approx(found["gradients"], rel=WITHIN)
