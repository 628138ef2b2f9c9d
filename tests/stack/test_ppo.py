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
        tmp_path_factory.mktemp("rm") / "model",
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
    assert ["loss" in step for step in metrics] == [False, True, True, True]
    for step in metrics:
        assert all(math.isfinite(value) for value in step.values())
        assert step["critic_loss"] > 0
        assert step["critic_grad_norm"] > 0
        assert step["values"] != 0
        assert step["r3/sync/abs_logprob_gap"] < 0.02
        assert step["r3/critic/explained_variance"] < 1
    rows = list(rollouts_of(resumed))
    for step in metrics:
        check_advantages([row for row in rows if row["step"] == step["step"]])
    rewards = {row["outcome_reward"] for row in rows}
    assert len(rewards) > 16
    assert min(rewards) < 0
    penalised = {row["verdict"] for row in rows if row["outcome_reward"] < 0}
    assert penalised and "correct" not in penalised
    checkpoints = resumed / "checkpoints"
    # short batches are updates of their own
    assert updates(checkpoints / "_critic" / "global_step4") == 4
    assert updates(checkpoints / "_actor" / "global_step4") == 3


def check_advantages(rows):
    """GAE's advantages are normalised over the tokens of the step whose rows these are."""
    weighted = [(row["advantage"], row["num_tokens"] - row["prefix_tokens"]) for row in rows]
    assert len(set(weighted)) > 8  # equal responses have equal values
    tokens = sum(count for _, count in weighted)
    mean = sum(advantage * count for advantage, count in weighted) / tokens
    assert mean == pytest.approx(0, abs=1e-3)


def test_groups_start_from_states_that_the_critic_chose(resumed):
    metrics, rows = lines(resumed / "metrics.jsonl"), list(rollouts_of(resumed))
    # of the first epoch's second step 4 problems and 2 states
    assert metrics[1]["epoch"] == 1 and metrics[1]["r3/rrl/continued"] == 2
    cuts = {}  # (problem, state) -> its tokens
    for line in metrics:
        of_step = [row for row in rows if row["step"] == line["step"]]
        check_groups(of_step, line, cuts)
        cuts |= checked_cuts(of_step)
        for row in of_step:
            check_prefix(row, cuts)
    with HistoryStore.open(resumed / "history.sqlite", writer=False) as history:
        continuations = history.continuations()
    for uid in {row["uid"] for row in rows}:
        known = [counts for (of, _), counts in continuations.items() if of == uid]
        check_continuations([row for row in rows if row["uid"] == uid], known)
    assert verify(resumed / "history.sqlite").findings == []


def check_groups(rows, line, cuts):
    """A step's groups are of its problems, and of states that were cut in an earlier step."""
    states = {(row["uid"], row["prefix_state"]) for row in rows if row["context"] == "prefix"}
    plain = {row["uid"] for row in rows if row["context"] == "plain"}
    assert len(rows) == 8 * (len(states) + len(plain))
    assert len(states) == line["r3/rrl/continued"] <= 2
    assert {uid for uid, _ in states} <= {uid for uid, _ in cuts}
    sampled = sum(row["num_tokens"] - row["prefix_tokens"] for row in rows)
    assert line["generated_tokens"] == sampled


def checked_cuts(rows):
    """The states that a step cut: one of each problem without a success."""
    solved = {row["uid"] for row in rows if row["verdict"] == "correct"}
    cut = [row for row in rows if row["cut_tokens"] is not None]
    assert len({row["uid"] for row in cut}) == len(cut) > 0
    for row in cut:
        assert row["verdict"] == "wrong" and row["uid"] not in solved
        assert row["prefix_tokens"] < row["cut_tokens"] < row["num_tokens"]
        assert math.isfinite(row["cut_value"])
    return {(row["uid"], row["cut_state"]): row["cut_tokens"] for row in cut}


def check_continuations(rows, known):
    """The history counts each graded response of a problem that began with a prefix; known: (tries, successes)."""
    graded = [row for row in rows if row["prefix_tokens"] and row["verdict"] != "ungraded"]
    right = [row for row in graded if row["verdict"] == "correct"]
    assert sum(tries for tries, _ in known) == len(graded)
    assert sum(successes for _, successes in known) == len(right)


def check_prefix(row, cuts):
    """A response continues a state that was cut, or none; after failures from an earlier token on."""
    tokens = row["prefix_tokens"]
    longest = max((cut for (uid, _), cut in cuts.items() if uid == row["uid"]), default=0)
    assert tokens == cuts.get((row["uid"], row["prefix_state"]), tokens) <= longest
    assert tokens <= 12  # half of the limit


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
