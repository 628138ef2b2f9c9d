"""What the engine's experts take, by hand (rollout.routing_replay)."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from transformers import AutoConfig

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.history.usage import blob_bytes
from r3_openrlhf.runs.models.routers import expert_bytes_of
from r3_openrlhf.runs.planning import history_forecast
from r3_openrlhf.runs.planning.cli import plan
from r3_openrlhf.runs.planning.forecast import EXPERT_COPIES, ROW_BYTES, make_plan
from r3_openrlhf.runs.planning.hardware import GPUS
from r3_openrlhf.runs.planning.shapes import shape_of
from r3_openrlhf.runs.planning.table import _experts

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "num_experts": 300,
    "num_experts_per_tok": 4,
}
A_TOKEN = 3 * 4 * 2  # layers, experts, bytes of a number beyond 255


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    path = tmp_path_factory.mktemp("moe")
    config = AutoConfig.for_model("qwen3_moe", architectures=["Qwen3MoeForCausalLM"], **SIZES)
    config.save_pretrained(path)
    return str(path)


def settings(moe, *, is_on):
    return ["run_dir=unused", f"model.path={moe}", f"rollout.routing_replay={is_on}"]


def test_a_plan_has_the_experts_of_rows_and_of_the_cache(moe):
    found = {}
    for is_on in (True, False):
        config = load_config("cpu_smoke", settings(moe, is_on=is_on))
        found[is_on] = make_plan(config, shape_of(moe), GPUS["h100-80gb"], num_problems=32)
    assert (found[True].expert_bytes, found[False].expert_bytes) == (A_TOKEN, 0)
    host = found[True].host_bytes
    assert host["experts of the engines' caches"] == found[True].kv_tokens * A_TOKEN
    tokens = host["rows in controller and object store"] / ROW_BYTES
    assert host["experts of the rows"] == pytest.approx(EXPERT_COPIES * A_TOKEN * tokens)
    others = {name: size for name, size in host.items() if "experts" not in name}
    assert others == found[False].host_bytes
    assert _experts(found[False]) == []
    ((_, said),) = _experts(found[True])
    assert said == "24 bytes a token of prompt and response, 16 in the history"


def test_the_forecast_of_the_history_counts_them(monkeypatch):
    """One of each verdict of one problem more, each of 200 + 100 tokens."""
    sizes = []
    monkeypatch.setattr(history_forecast, "live_bytes", lambda room, *, arrived: room)
    limits = SimpleNamespace(max_per_problem_and_verdict=1, max_bytes=10**12)
    given = dict(
        num_problems=1, problems_per_step=1, samples=2, mean_tokens=100, steps_to_floor=0
    )
    for a_token in (0, A_TOKEN):
        _, enough = history_forecast.forecast(limits, **given, expert_bytes=a_token)
        sizes.append(enough)
    assert sizes[1] - sizes[0] == 2 * blob_bytes(int(0.66 * 300 * A_TOKEN))


def test_a_run_counts_them_only_with_the_key(moe):
    found = [
        expert_bytes_of(load_config("cpu_smoke", settings(moe, is_on=is_on)), moe)
        for is_on in (True, False)
    ]
    assert found == [A_TOKEN, 0]


def test_the_plan_refuses_a_model_without_a_known_router():
    asked = ["experiment=r3_8b_qwen3_multinode", "rollout.routing_replay=true"]
    error = CliRunner().invoke(plan, asked).exception
    assert isinstance(error, ConfigError)
    assert "no type whose router is known (qwen3_moe, qwen2_moe, olmoe)" in str(error)
