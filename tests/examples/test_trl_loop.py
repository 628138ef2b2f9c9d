"""What examples/trl_loop.py gives TRL's loss to train on, worked out by hand. trl_probe.py makes the trainings."""

import math
import os
import statistics
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
import torch
from pytest import approx

from r3_openrlhf import ranking_rewards

REPOSITORY = Path(__file__).parents[2]
WORDS = [*"0123456789+=", "<pad>", "<eos>"]
RECALLED, LOGPROBS = [1, 2, 3, 4, 5, 13], [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6]  # of the stored success of 1+1
GROUP = 4
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An environment with TRL in front of the packages that are here, because no pin of the stack is for it."""
    directory = tmp_path_factory.mktemp("trl")
    venv.create(directory, symlinks=True)
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (pin,) = [line for line in extras["trl"] if line.startswith("trl")]
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", directory / "bin" / "python", "install", "--no-deps")
    subprocess.run([*pip, pin], check=True)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "stack.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin" / "python"


@pytest.fixture(scope="module")
def seen(python, tmp_path_factory):
    """case -> what the loss got. Two ranks look at the same problems as the case "replay"."""
    directory = tmp_path_factory.mktemp("seen")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    probe = (Path(__file__).parent / "trl_probe.py", directory)
    for launch in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]):
        done = subprocess.run([python, *launch, *probe], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-5000:]
    return torch.load(directory / "seen.pt") | {"ranks": [torch.load(directory / f"rank{i}.pt") for i in range(2)]}


def rows_of(log):
    """Every row of these losses: prompt, ids, advantage, old log-probs, and the vocabulary's log-probs at each token."""
    found = []
    for inputs in log:
        for i in range(len(inputs["advantages"])):
            mask = inputs["completion_mask"][i].bool()
            assert mask.tolist() == sorted(mask.tolist(), reverse=True)  # padded on the right
            assert set(inputs["completion_ids"][i][~mask].tolist()) <= {WORDS.index("<pad>")}
            ids = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()]
            old = inputs.get("old_per_token_logps")
            reference = inputs.get("ref_per_token_logps")
            prompt = "".join(WORDS[token] for token in ids)
            row = dict(
                prompt=prompt, ids=inputs["completion_ids"][i][mask].tolist(), advantage=inputs["advantages"][i].item()
            )
            row["old"] = None if old is None else old[i][mask].tolist()
            row["reference"] = None if reference is None else reference[i][mask].tolist()
            found.append(row | {"distribution": inputs["distribution"][i][mask]})
    return found


def groups_of(log):
    groups = {}
    for row in rows_of(log):
        groups.setdefault(row["prompt"], []).append(row)
    return groups


def current(row):
    """The model's log-probs of the row's tokens."""
    return row["distribution"].gather(1, torch.tensor(row["ids"])[:, None])[:, 0].tolist()


def advantages(rows):
    return approx(sorted(row["advantage"] for row in rows), abs=1e-5)


def eq3(*rewards):
    return [(reward - statistics.fmean(rewards)) / statistics.stdev(rewards) for reward in rewards]


@pytest.mark.parametrize("case", ["replay", "split", "reused"])
def test_a_collapsed_group_gets_the_stored_success_and_nothing_is_lost(seen, case):
    """One step of 16 rows, four of 4 rows, and two of the same 16 rows."""
    log = seen[case]
    sizes = {"replay": [16], "split": [4] * 4, "reused": [16] * 2}
    assert [len(inputs["advantages"]) for inputs in log] == sizes[case]
    groups = groups_of(log[:1] if case == "reused" else log)
    sizes = {prompt: len(rows) for prompt, rows in groups.items()}
    assert sizes == dict.fromkeys(("1+1=", "2+2=", "3+3=", "4+4="), GROUP)
    recalled = [row for row in groups["1+1="] if row["ids"] == RECALLED]
    assert len(recalled) == 1 and recalled[0]["old"] == approx(LOGPROBS)
    for row in sum(groups.values(), []):
        if row is not recalled[0]:
            assert len(row["ids"]) <= 3 and row["old"] == approx(current(row), abs=1e-5)
    # four failures and the stored success: mean 0.2, std sqrt(0.2); one of the failures has given way
    assert eq3(0, 0, 0, 0, 1) == approx([-0.2 / 0.2**0.5] * 4 + [0.8 / 0.2**0.5])
    assert [-0.2 / 0.2**0.5] * 3 + [0.8 / 0.2**0.5] == advantages(groups["1+1="])
    assert recalled[0]["advantage"] > 0
    assert [-0.5, -0.5, -0.5, 1.5] == advantages(groups["2+2="])  # mean 1/4, std 1/2
    assert [-(3**-0.5), -(3**-0.5), 0.0, 2 * 3**-0.5] == advantages(groups["3+3="])  # one of four is not graded
    assert [0.0] * 4 == advantages(groups["4+4="])


def test_a_stored_failure_pulls_no_more_than_dual_clip(seen):
    """replay.dual_clip is 3: of a row with A < 0 a token's gain is at least 3 A."""
    (inputs,) = seen["failure"]
    rows, gains = rows_of([inputs]), []
    assert min(rows, key=lambda row: row["advantage"])["old"] == [-20.0] * 3
    for row in rows:
        for now, old in zip(current(row), row["old"], strict=True):
            ratio, advantage = math.exp(now - old), row["advantage"]
            gain = min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
            gains.append(max(gain, 3 * advantage) if advantage < 0 else gain)
    assert inputs["loss"].item() == approx(-statistics.fmean(gains), rel=1e-4)


def test_two_ranks_train_on_the_rows_of_one_and_share_their_history(seen):
    ranks = seen["ranks"]
    rows = [groups_of(rank["log"]) for rank in ranks]
    assert [sorted(groups) for groups in rows] == [["1+1=", "2+2="], ["3+3=", "4+4="]]
    assert [row["ids"] for row in rows[0]["1+1="]].count(RECALLED) == 1
    assert [-0.2 / 0.2**0.5] * 3 + [0.8 / 0.2**0.5] == advantages(rows[0]["1+1="])
    assert [-0.5, -0.5, -0.5, 1.5] == advantages(rows[0]["2+2="])
    assert [-(3**-0.5), -(3**-0.5), 0.0, 2 * 3**-0.5] == advantages(rows[1]["3+3="])
    tokens = sum(int(rank["log"][0]["completion_mask"].sum()) for rank in ranks)
    assert {int(rank["log"][0]["num_items_in_batch"]) for rank in ranks} == {tokens}
    assert [rank["known"] for rank in ranks] == [["1+1=", "2+2=", "3+3="]] * 2


@pytest.mark.parametrize("case", ["replay", "split"])
def test_the_loss_is_divided_by_the_tokens_that_are_trained(seen, case):
    tokens = sum(int(inputs["completion_mask"].sum()) for inputs in seen[case])
    assert {int(inputs["num_items_in_batch"]) for inputs in seen[case]} == {tokens}


@pytest.mark.parametrize("case", ["vllm_rows", "vllm_tokens"])
def test_vllms_correction_is_not_that_of_the_text_that_gave_way(seen, case):
    """Its ratio, one for a row or one for a token, is of what was sampled; a stored row has been sampled by nobody."""
    (inputs,) = seen[case]
    (place,) = [i for i, row in enumerate(rows_of([inputs])) if row["ids"] == RECALLED]
    ratios = inputs["importance_sampling_ratio"]
    assert ratios.shape == (16, 1 if case == "vllm_rows" else len(RECALLED))
    assert ratios[place].tolist() == [1.0] * ratios.shape[1] and (ratios[:, 0] != 1).sum() == 15
    assert inputs["sampling_per_token_logps"][place].tolist() == approx(LOGPROBS)
    assert rows_of([inputs])[place]["old"] == approx(LOGPROBS)


def ranked_advantages(rows):
    """Reward by peak and global entropy, from the policy's own distribution; centred, not scaled (ranking.guard)."""
    entropies = [-(row["distribution"].exp() * row["distribution"]).sum(1) for row in rows]
    peaks = [max(one.tolist()) for one in entropies]  # 0.2 of 3 (and of 6) tokens is one token
    means = [one.mean().item() for one in entropies]
    rewards = ranking_rewards(peaks, means, max_reward=0.5)
    assert len(set(rewards)) > 1
    return [reward - statistics.fmean(rewards) for reward in rewards]


def test_a_stored_success_and_a_ranking_meet_in_one_group(seen):
    """The failure that gave way has reward 0 in the statistics, as has the mean of the three that are ranked."""
    (success,) = [row for row in rows_of(seen["both"]) if row["ids"] == RECALLED]
    rows = [row for row in rows_of(seen["both"]) if row["ids"] != RECALLED]
    expected = eq3(*ranked_advantages(rows), 0.0, 1.0)
    assert [row["advantage"] for row in rows] + [success["advantage"]] == approx(expected[:3] + expected[4:], abs=1e-5)


def test_with_everything_off_the_loss_gets_what_trl_gives_it(seen):
    """Four steps with learning, advantage.std_eps as TRL has it."""
    assert len(seen["off"]) == len(seen["stock"]) == 4
    for ours, stock in zip(seen["off"], seen["stock"], strict=True):
        assert list(ours) == list(stock)
        for key in ours:
            assert torch.allclose(torch.as_tensor(ours[key]), torch.as_tensor(stock[key]), atol=1e-5), key
    assert any(inputs["advantages"].abs().max() > 0.5 for inputs in seen["stock"])


def test_a_reflection_group_takes_the_turn_of_an_easy_problem(seen):
    first, second = seen["reflected"]["log"]
    assert set(groups_of([first])) == {"1+1=", "2+2="}
    groups = groups_of([second])
    (prompt,) = groups.keys() - {"1+1="}
    assert len(groups["1+1="]) == len(groups[prompt]) == GROUP
    answers = ["".join(WORDS[token] for token in row["ids"] if token < 12) for row in groups_of([first])["1+1="]]
    assert prompt.startswith("1+1=") and any(answer and answer in prompt for answer in answers)
    different = {tuple(row["ids"]): row["ids"] for row in groups[prompt]}
    assert sorted(seen["reflected"]["recalled"]) == sorted(different.values())


def test_a_resumed_run_forgets_what_came_after_the_checkpoint(seen):
    assert seen["resumed"] == dict(before=2, after=2, steps=[1])


def test_what_cannot_work_is_refused_in_a_sentence(seen):
    assert seen["refused"] == dict(
        add="R3Trainer: replay.mode is 'add'; use 'replace', TRL's split into steps loses added rows",
        drawn="R3Trainer: exploration is not supported here",
        unnamed="R3Trainer: the dataset has no column uid",
        many="R3Trainer: replay.k is 4; use less than num_generations",
        rehearsed="R3Trainer: replay.rehearse.share is 0.5; use 0, the number of rows is TRL's",
        bounded="R3Trainer: delta is 2.0 and replay.dual_clip 3.0; leave delta out",
        masked="R3Trainer: mask_truncated_completions hides the rows that are ranked",
        updates="R3Trainer: an update would need two generations",
    )
