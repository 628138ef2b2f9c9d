"""PPO with RRL's states and a LoRA adapter on the real stack, and the rewards of a reward model: the critic warms up, both models are
trained on a short batch, stopped by a second Ctrl-C in step 3, and continue from step 2."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
import torch

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.operations.store.verification import verify
from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.runs.stop_request import SAME_S
from tests.stack.training import ROOT, Run, lines, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow]
# 12 problems in batches of 8 groups, two of which start from states from step 2 on, which is short for that
SETTINGS = tomllib.loads(Path(__file__).with_name("tables.toml").read_text())["rrl"]["settings"]


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory):
    """The example, as its page starts it: the address of its reward model."""
    port = free_port()
    command = [
        sys.executable,
        "examples/reward_model.py",
        tmp_path_factory.mktemp("rm"),
        "--port",
        str(port),
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as server:
        said = []
        for line in server.stderr:
            said.append(line)
            if "Uvicorn running" in line:
                break
        assert server.poll() is None, "".join(said)
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield f"http://127.0.0.1:{port}/get_reward"
        server.kill()


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, reward_model):
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    settings = (*SETTINGS, f"reward.urls=[{reward_model}]")
    with Run(run_dir, *settings, held_in=3) as run:
        events = run_dir / "events.jsonl"
        run.wait_until(
            lambda: (
                events.is_file()
                and events.read_text().endswith('"weights to the engine", "step": 3}\n')
            )
        )
        os.killpg(run.process.pid, signal.SIGINT)
        for line in run.process.stderr:
            if line.endswith(" SIGINT: finishing step 3, then saving; again to stop now\n"):
                break
        time.sleep(SAME_S)  # the time after which it is a second one
        os.killpg(run.process.pid, signal.SIGINT)
        done = run.finish()  # although step 3 is held for ever
        assert done.returncode == 130, run.story(done.stderr)
        assert done.stderr.endswith(
            "stopped by a second SIGINT; the same command continues from the newest checkpoint, if there is one\n"
        )
    assert [step["step"] for step in lines(run_dir / "metrics.jsonl")] == [1, 2]
    train(run_dir, *settings)
    return run_dir


def updates(folder):
    return torch.load(folder / "mp_rank_00_model_states.pt", weights_only=False)["global_steps"]


def test_policy_and_critic_are_trained_stopped_and_continue(resumed):
    metrics = lines(resumed / "metrics.jsonl")
    assert [step["step"] for step in metrics] == [1, 2, 3, 4]
    # the critic alone in step 1
    assert ["loss" in step for step in metrics] == [
        False,
        True,
        True,
        True,
    ]
    for step in metrics:
        assert all(math.isfinite(value) for value in step.values())
        assert step["critic_loss"] > 0 and step["critic_grad_norm"] > 0 and step["values"] != 0
        assert step["r3/sync/abs_logprob_gap"] < 0.02
        assert step["r3/critic/explained_variance"] < 1
    rows = list(rollouts_of(resumed))
    for step in metrics:
        mine = [row for row in rows if row["step"] == step["step"]]
        tokens = [(row["advantage"], row["num_tokens"] - row["prefix_tokens"]) for row in mine]
        assert len(set(tokens)) > 8  # equal responses have equal values
        # GAE's advantages are normalised over the step's tokens
        assert sum(a * n for a, n in tokens) / sum(n for _, n in tokens) == pytest.approx(
            0, abs=1e-3
        )
    assert (
        len({row["outcome_reward"] for row in rows}) > 16
        and min(row["outcome_reward"] for row in rows) < 0
    )
    assert {row["verdict"] == "correct" for row in rows if row["outcome_reward"] < 0} == {False}
    checkpoints = resumed / "checkpoints"
    # short batches are updates of their own
    assert updates(checkpoints / "_critic" / "global_step4") == 4
    assert updates(checkpoints / "_actor" / "global_step4") == 3


def test_groups_start_from_states_that_the_critic_chose(resumed):
    metrics, rows = lines(resumed / "metrics.jsonl"), list(rollouts_of(resumed))
    # of the first epoch's second step 4 problems and 2 states
    assert metrics[1]["epoch"] == 1 and metrics[1]["r3/rrl/continued"] == 2
    cuts = {}
    for line in metrics:
        mine = [row for row in rows if row["step"] == line["step"]]
        states = {
            (row["uid"], row["prefix_state"]) for row in mine if row["context"] == "prefix"
        }
        plain = {row["uid"] for row in mine if row["context"] == "plain"}
        assert (
            len(mine) == 8 * (len(states) + len(plain))
            and len(states) == line["r3/rrl/continued"] <= 2
        )
        assert {uid for uid, _ in states} <= {uid for uid, _ in cuts}  # cut in an earlier step
        assert line["generated_tokens"] == sum(
            row["num_tokens"] - row["prefix_tokens"] for row in mine
        )
        solved = {row["uid"] for row in mine if row["verdict"] == "correct"}
        cut = [row for row in mine if row["cut_tokens"] is not None]
        assert len({row["uid"] for row in cut}) == len(cut) > 0  # one of each problem
        for row in cut:
            assert row["verdict"] == "wrong" and row["uid"] not in solved
            assert row["prefix_tokens"] < row["cut_tokens"] < row[
                "num_tokens"
            ] and math.isfinite(row["cut_value"])
            cuts[row["uid"], row["cut_state"]] = row["cut_tokens"]
        for row in mine:  # after failures from an earlier place
            longest = max(
                (length for (uid, _), length in cuts.items() if uid == row["uid"]), default=0
            )
            assert (
                row["prefix_tokens"]
                == cuts.get((row["uid"], row["prefix_state"]), row["prefix_tokens"])
                <= longest
            )
            assert row["prefix_tokens"] <= 12  # half of the limit
    with HistoryStore.open(resumed / "history.sqlite", writer=False) as history:
        for uid in {row["uid"] for row in rows}:
            graded = [
                row
                for row in rows
                if row["uid"] == uid and row["prefix_tokens"] and row["verdict"] != "ungraded"
            ]
            known = [one for (of, _), one in history.continuations().items() if of == uid]
            assert sum(tries for tries, _ in known) == len(graded)
            assert sum(right for _, right in known) == sum(
                row["verdict"] == "correct" for row in graded
            )
    assert verify(resumed / "history.sqlite").findings == []


def test_an_engine_without_the_adapter_would_have_been_noticed_and_the_final_model_has_it(
    resumed,
):
    """On tokens that nobody sampled: the log-probs of the base model's own responses are far from those of the final model.
    The test above would see that distance, and it sees less than 0.02 nats. The base stayed as it was."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, final = (
        AutoModelForCausalLM.from_pretrained(path)
        for path in (resolve_model("tiny"), resumed / "final_model")
    )
    ids = torch.randint(
        base.config.vocab_size, (1, 500), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        of_base, of_final = (
            model(ids).logits.float().log_softmax(-1) for model in (base, final)
        )
    assert (of_base.exp() * (of_base - of_final).abs()).sum(-1).mean() > 0.1
    adapted = PeftModel.from_pretrained(
        base, resumed / "final_model" / "adapter", autocast_adapter_dtype=False
    )
    saved = dict(final.named_parameters())
    for name, weight in adapted.merge_and_unload().named_parameters():
        assert torch.equal(weight.data, saved[name].data), name
