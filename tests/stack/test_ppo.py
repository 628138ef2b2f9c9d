"""PPO on the real stack: the critic warms up, both are trained on a short batch, killed, and go on."""

import math

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from tests.stack.training import Run, lines, rollouts_of, train  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
# 12 problems in batches of 8: steps 2 and 4 are short
SETTINGS = ("algo=ppo", "critic.warmup_steps=1", "data.max_samples=12", "train.max_steps=4", "checkpoint.save_steps=2")


def updates(folder):
    return torch.load(folder / "mp_rank_00_model_states.pt", weights_only=False)["global_steps"]


def test_policy_and_critic_are_trained_killed_and_go_on(tmp_path):
    run_dir = tmp_path / "run"
    with Run(run_dir, *SETTINGS, held_in=3) as run:
        run.wait_until(
            (run_dir / "checkpoints" / "_critic" / "global_step2" / "r3.json").is_file
        )  # the checkpoint is whole
        run.kill()
    assert [step["step"] for step in lines(run_dir / "metrics.jsonl")] == [1, 2]
    train(run_dir, *SETTINGS)
    metrics = lines(run_dir / "metrics.jsonl")
    assert [step["step"] for step in metrics] == [1, 2, 3, 4]
    assert ["loss" in step for step in metrics] == [False, True, True, True]  # the critic alone in step 1
    for step in metrics:
        assert all(math.isfinite(value) for value in step.values())
        assert step["critic_loss"] > 0 and step["critic_grad_norm"] > 0 and step["values"] != 0
        assert step["r3/sync/abs_logprob_gap"] < 0.02
        assert step["r3/critic/explained_variance"] < 1
    rows = list(rollouts_of(run_dir))
    for step, size in enumerate((64, 32, 64, 32), start=1):
        tokens = [(row["advantage"], row["num_tokens"]) for row in rows if row["step"] == step]
        assert len(tokens) == size and len(set(tokens)) > 8  # equal responses have equal values
        # GAE's advantages are normalised over the step's tokens
        assert sum(a * n for a, n in tokens) / sum(n for _, n in tokens) == pytest.approx(0, abs=1e-3)
    checkpoints = run_dir / "checkpoints"
    assert updates(checkpoints / "_critic" / "global_step4") == 4  # short batches are updates of their own
    assert updates(checkpoints / "_actor" / "global_step4") == 3
