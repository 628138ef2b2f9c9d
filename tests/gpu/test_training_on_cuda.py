"""`r3 train experiment=cpu_smoke` on one CUDA device: Ray, vLLM, DeepSpeed and OpenRLHF as they are on GPUs, with nothing in
the place of CUDA, NCCL or flash attention. Minutes. Written without a GPU; nobody has run it yet.

Once with the experiment's own settings, stopped and gone on with; once with those of the full-size experiments, at which an
engine sleeps while the policy trains.
"""

import math

import pytest
import torch

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed here")
pytest.importorskip("vllm", reason="vLLM is not installed here")

from tests.stack.training import lines, rollouts_of, train  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
ON_CUDA = ("cluster.device=cuda", "cluster.gpus_per_node=1")
LIKE_FULL_SIZE = (
    *("cluster.enable_sleep=true", "train.packing=true", "train.dynamic_batch=true", "train.max_tokens_per_gpu=2048"),
    *("rollout.max_tokens_per_gpu=4096", "model.gradient_checkpointing=true", "train.logits_chunk_tokens=256"),
    *("openrlhf.ds.grad_accum_dtype=fp32", "ranking.entropy_source=exact"),
)


@pytest.fixture(scope="module", params=["cpu_smoke", "like full size"])
def run(request, tmp_path_factory):
    """Stopped after step 5, of which there is no checkpoint, and gone on with from step 4 to the end."""
    run_dir = tmp_path_factory.mktemp("cuda") / "run"
    settings = (*ON_CUDA, *(LIKE_FULL_SIZE if request.param == "like full size" else ()))
    train(run_dir, *settings, "train.max_steps=5")
    train(run_dir, *settings)
    return run_dir


def test_every_step_ends_with_finite_numbers(run):
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, 9))
    for line in metrics:
        assert all(math.isfinite(value) for value in line.values() if isinstance(value, float))


def test_the_engine_computes_with_the_weights_that_were_trained(run):
    """bfloat16 on both sides; a layer that is one step old shows 0.07 and more."""
    metrics = lines(run / "metrics.jsonl")
    assert max(line["r3/sync/abs_logprob_gap"] for line in metrics) < 0.05
    assert any(line["grad_norm"] > 0 for line in metrics)


def test_all_three_mechanisms_fire(run):
    metrics = lines(run / "metrics.jsonl")
    for key in ("r3/replay/recalled", "r3/reflection/groups", "r3/ranking/groups"):
        assert sum(line[key] for line in metrics) > 0, key
    recalled = sum(row["recalled_from"] is not None for row in rollouts_of(run))
    assert recalled == sum(line["r3/replay/recalled"] for line in metrics)


def test_the_model_that_is_left_loads_and_differs_from_the_first(run):
    from transformers import AutoModelForCausalLM

    from r3_openrlhf.runs.models.locate import resolve_model

    last, first = (AutoModelForCausalLM.from_pretrained(path) for path in (run / "final_model", resolve_model("tiny")))
    changed = [not torch.equal(a, b) for a, b in zip(last.parameters(), first.parameters(), strict=True)]
    assert any(changed) and all(parameter.isfinite().all() for parameter in last.parameters())
