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
        run.wait_for_step(2)
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
    assert [sum(row["step"] == step for row in rows) for step in (1, 2, 3, 4)] == [64, 32, 64, 32]
    assert len({row["advantage"] for row in rows}) > 100
    checkpoints = run_dir / "checkpoints"
    assert updates(checkpoints / "_critic" / "global_step4") == 4  # short batches are updates of their own
    assert updates(checkpoints / "_actor" / "global_step4") == 3
