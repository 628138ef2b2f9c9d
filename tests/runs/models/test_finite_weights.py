"""A model with a weight that is not finite is no model: which file and which tensor."""

import math

import pytest
import torch
from safetensors.torch import save_file

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.evaluation import engine
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.models.finite_weights import check_weights, is_finite


@pytest.fixture
def saved(tmp_path):
    """A function that saves a model of two files, whose last weight has this value."""

    def save(value, dtype):
        weight = torch.ones(3, 2)
        save_file(
            {"a": weight, "b": torch.arange(3)}, tmp_path / "model-00001-of-00002.safetensors"
        )
        weight = weight.clone()
        weight[2, 1] = value
        save_file(
            {"c": torch.zeros(0, 2), "layers.1.weight": weight.to(dtype)},
            tmp_path / "model-00002-of-00002.safetensors",
        )
        return str(tmp_path)

    return save


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2], ids=str
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_file_and_tensor_are_named(saved, value, dtype):
    model = saved(value, dtype)
    with pytest.raises(ConfigError) as refused:
        check_weights(model)
    assert str(refused.value).startswith(
        f"{model}/model-00002-of-00002.safetensors holds a value that is not finite in 'layers.1.weight'"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_a_good_model_passes(saved, dtype):
    check_weights(saved(-2.0, dtype))
    check_weights("org/name-on-the-hub")


def test_a_damaged_file_is_left_to_the_engine(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    check_weights(str(tmp_path))


def test_extremes_are_finite():
    assert is_finite(
        torch.tensor([torch.finfo(torch.float32).max, torch.finfo(torch.float32).min])
    )


def test_an_evaluation_refuses_before_it_starts_an_engine(saved, monkeypatch):
    """The engine would sample noise, or die."""
    monkeypatch.setattr(engine, "is_needed", lambda: pytest.fail("an engine was started"))
    model = saved(math.nan, torch.bfloat16)
    sentence = "holds a value that is not finite in 'layers.1.weight'"
    with pytest.raises(ConfigError, match=sentence):
        engine.Engine(model, max_model_len=9, options=BenchmarkConfig())
