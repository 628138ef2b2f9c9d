"""PPO with RRL's states on the real stack, and the rewards of a reward model: the critic warms up, both models are trained on a short
batch, killed, and go on."""

import math
import shutil
import subprocess
import sys
import threading

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from r3_openrlhf.machine.ports import free_port  # noqa: E402
from r3_openrlhf.method.history.store import HistoryStore  # noqa: E402
from r3_openrlhf.method.r3 import R3  # noqa: E402
from r3_openrlhf.operations.store.verification import verify  # noqa: E402
from r3_openrlhf.runs.directory import RunDirectory  # noqa: E402
from tests.stack.training import ROOT, Run, lines, rollouts_of, train  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
# 12 problems in batches of 8 groups, two of which start from states from step 2 on, which is short for that
SETTINGS = (
    "algo=rrl",
    "openrlhf.critic.freezing_steps=0",
    "data.max_samples=12",
    "train.max_steps=4",
    "checkpoint.save_steps=2",
    "reward.length_reward_max_tokens=null",
    "reward.correct_from=0",
)


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory):
    """The example, as its page starts it: the address of its reward model."""
    port = free_port()
    command = [sys.executable, "examples/reward_model.py", tmp_path_factory.mktemp("rm"), "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
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
    """Killed in step 3, and gone on with from step 2."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    settings = (*SETTINGS, f"reward.urls=[{reward_model}]")
    with Run(run_dir, *settings, held_in=3) as run:
        run.wait_until(
            (run_dir / "checkpoints" / "_critic" / "global_step2" / "r3.json").is_file
        )  # the checkpoint is whole
        run.kill()
    assert [step["step"] for step in lines(run_dir / "metrics.jsonl")] == [1, 2]
    train(run_dir, *settings)
    return run_dir


def updates(folder):
    return torch.load(folder / "mp_rank_00_model_states.pt", weights_only=False)["global_steps"]


def test_policy_and_critic_are_trained_killed_and_go_on(resumed):
    metrics = lines(resumed / "metrics.jsonl")
    assert [step["step"] for step in metrics] == [1, 2, 3, 4]
    assert ["loss" in step for step in metrics] == [False, True, True, True]  # the critic alone in step 1
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
        assert sum(a * n for a, n in tokens) / sum(n for _, n in tokens) == pytest.approx(0, abs=1e-3)
    assert len({row["outcome_reward"] for row in rows}) > 16 and min(row["outcome_reward"] for row in rows) < 0
    assert {row["verdict"] == "correct" for row in rows if row["outcome_reward"] < 0} == {False}
    checkpoints = resumed / "checkpoints"
    assert updates(checkpoints / "_critic" / "global_step4") == 4  # short batches are updates of their own
    assert updates(checkpoints / "_actor" / "global_step4") == 3


def test_groups_start_from_states_that_the_critic_chose(resumed):
    metrics, rows = lines(resumed / "metrics.jsonl"), list(rollouts_of(resumed))
    # of the first epoch's second step 4 problems and 2 states
    assert metrics[1]["epoch"] == 1 and metrics[1]["r3/rrl/continued"] == 2
    cuts = {}
    for line in metrics:
        mine = [row for row in rows if row["step"] == line["step"]]
        states = {(row["uid"], row["prefix_state"]) for row in mine if row["context"] == "prefix"}
        plain = {row["uid"] for row in mine if row["context"] == "plain"}
        assert len(mine) == 8 * (len(states) + len(plain)) and len(states) == line["r3/rrl/continued"] <= 2
        assert states <= cuts.keys()  # cut in an earlier step
        assert line["generated_tokens"] == sum(row["num_tokens"] - row["prefix_tokens"] for row in mine)
        solved = {row["uid"] for row in mine if row["verdict"] == "correct"}
        cut = [row for row in mine if row["cut_tokens"] is not None]
        assert len({row["uid"] for row in cut}) == len(cut) > 0  # one of each problem
        for row in cut:
            assert row["verdict"] == "wrong" and row["uid"] not in solved
            assert row["prefix_tokens"] < row["cut_tokens"] < row["num_tokens"] and math.isfinite(row["cut_value"])
            cuts[row["uid"], row["cut_state"]] = row["cut_tokens"]
        for row in mine:
            assert row["prefix_tokens"] == (cuts[row["uid"], row["prefix_state"]] if row["prefix_state"] else 0)
    assert metrics[-1]["r3/rrl/tried"] >= 2
    with HistoryStore.open(resumed / "history.sqlite", writer=False) as history:
        for uid in {row["uid"] for row in rows}:
            graded = [
                row for row in rows if row["uid"] == uid and row["prefix_tokens"] and row["verdict"] != "ungraded"
            ]
            known = history.continuations(uid).values()
            assert sum(one.tries for one in known) == len(graded)
            assert sum(one.successes for one in known) == sum(row["verdict"] == "correct" for row in graded)
    assert verify(resumed / "history.sqlite").findings == []


def test_the_resumed_step_starts_from_what_the_checkpoints_history_chooses(resumed, tmp_path):
    shutil.copy(resumed / "history.sqlite", tmp_path)
    config = RunDirectory(resumed).load_config()
    with HistoryStore.open(tmp_path / "history.sqlite") as history:
        history.roll_back(2)
        chosen = R3(config, history=history, seed=config.train.seed).states(count=8, step=2)
    third = {row["uid"] for row in rollouts_of(resumed) if row["step"] == 3 and row["context"] == "prefix"}
    assert third == set(chosen.uids) and len(third) == 2
