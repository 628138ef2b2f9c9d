"""PPO on the real stack with a LoRA adapter: the critic warms up, both are trained on a short batch, stopped at once by a second
SIGINT, and continue."""

import math
import os
import signal
import time

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from r3_openrlhf.runs.models.locate import resolve_model  # noqa: E402
from r3_openrlhf.runs.stop_request import SAME_S  # noqa: E402
from tests.stack.training import Run, lines, rollouts_of, train  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
# 12 problems in batches of 8: steps 2 and 4 are short
SETTINGS = (
    "algo=ppo",
    "openrlhf.critic.freezing_steps=0",
    "data.max_samples=12",
    "train.max_steps=4",
    "checkpoint.save_steps=2",
)
SETTINGS += ("openrlhf.ds.lora.rank=8", "train.learning_rate=1e-2")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """(run directory, steps that it had made when it was stopped)"""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    with Run(run_dir, *SETTINGS, held_in=3) as run:
        run.wait_until(
            lambda: (
                (run_dir / "events.jsonl").is_file()
                and (run_dir / "events.jsonl").read_text().endswith('"weights to the engine", "step": 3}\n')
            )
        )
        os.killpg(run.process.pid, signal.SIGINT)
        for line in run.process.stderr:
            if line.endswith(" SIGINT: finishing step 3, then saving; again to stop now\n"):
                break
        time.sleep(SAME_S)  # the time after which it is a second one
        os.killpg(run.process.pid, signal.SIGINT)
        began = time.monotonic()
        done = run.finish()
        assert (done.returncode, time.monotonic() - began < 10) == (130, True), run.story(done.stderr)
        assert done.stderr.endswith(
            "stopped by a second SIGINT; the same command continues from the newest checkpoint, if there is one\n"
        )
    return run_dir, [line["step"] for line in lines(run_dir / "metrics.jsonl")]


@pytest.fixture(scope="module")
def resumed(stopped):
    train(stopped[0], *SETTINGS)
    return stopped[0]


def updates(folder):
    return torch.load(folder / "mp_rank_00_model_states.pt", weights_only=False)["global_steps"]


def test_policy_and_critic_are_trained_stopped_and_continue(stopped, resumed):
    assert stopped[1] == [1, 2]
    metrics = lines(resumed / "metrics.jsonl")
    assert [step["step"] for step in metrics] == [1, 2, 3, 4]
    assert ["loss" in step for step in metrics] == [False, True, True, True]  # the critic alone in step 1
    for step in metrics:
        assert all(math.isfinite(value) for value in step.values())
        assert step["critic_loss"] > 0 and step["critic_grad_norm"] > 0 and step["values"] != 0
        assert step["r3/sync/abs_logprob_gap"] < 0.02
        assert step["r3/critic/explained_variance"] < 1
    rows = list(rollouts_of(resumed))
    for step, size in enumerate((64, 32, 64, 32), start=1):
        tokens = [(row["advantage"], row["num_tokens"]) for row in rows if row["step"] == step]
        # equal responses have equal values: rows vary if there are more values than the size / 8 problems
        assert len(tokens) == size and len(set(tokens)) > size // 8
        # GAE's advantages are normalised over the step's tokens
        assert sum(a * n for a, n in tokens) / sum(n for _, n in tokens) == pytest.approx(0, abs=1e-3)
    checkpoints = resumed / "checkpoints"
    assert updates(checkpoints / "_critic" / "global_step4") == 4  # short batches are updates of their own
    assert updates(checkpoints / "_actor" / "global_step4") == 3


def test_an_engine_without_the_adapter_would_have_been_noticed_and_the_final_model_has_it(resumed):
    """On tokens that nobody sampled: the log-probs of the base model's own responses are far from those of the final model.
    The test above would see that distance, and it sees less than 0.02 nats. The base stayed as it was."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, final = (
        AutoModelForCausalLM.from_pretrained(path) for path in (resolve_model("tiny"), resumed / "final_model")
    )
    ids = torch.randint(base.config.vocab_size, (1, 500), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        of_base, of_final = (model(ids).logits.float().log_softmax(-1) for model in (base, final))
    assert (of_base.exp() * (of_base - of_final).abs()).sum(-1).mean() > 0.1
    adapted = PeftModel.from_pretrained(base, resumed / "final_model" / "adapter", autocast_adapter_dtype=False)
    saved = dict(final.named_parameters())
    for name, weight in adapted.merge_and_unload().named_parameters():
        assert torch.equal(weight.data, saved[name].data), name
