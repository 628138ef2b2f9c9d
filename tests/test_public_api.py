"""`import r3_openrlhf` is a library: names that load when they are used, and a loop that is not ours."""

import importlib.util
import math
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
import torch

import r3_openrlhf
from r3_openrlhf import R3, Verdict
from tests.method.history.samples import make_rollout

REPOSITORY = Path(__file__).parents[1]
OWN_LOOP = REPOSITORY / "examples" / "own_loop.py"


def test_every_public_name_is_there_and_is_the_one_of_its_home():
    from r3_openrlhf.method.core import mixed_batch, ranking

    for name in r3_openrlhf.__all__:
        assert getattr(r3_openrlhf, name) is not None and name in dir(r3_openrlhf)
    assert r3_openrlhf.MixedBatch is mixed_batch.MixedBatch
    assert r3_openrlhf.ranking_rewards is ranking.ranking_rewards
    with pytest.raises(AttributeError, match="no attribute 'MixdBatch'"):
        r3_openrlhf.MixdBatch  # noqa: B018


def test_importing_the_package_loads_nothing_else():
    code = "import sys; before = set(sys.modules); import r3_openrlhf; print(*sorted(m for m in set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert not {
        "torch",
        "numpy",
        "omegaconf",
        "r3_openrlhf.method.core",
        "r3_openrlhf.config",
    } & set(loaded.stdout.split())


@pytest.fixture(scope="module")
def own_loop():
    import torch

    threads = torch.get_num_threads()
    spec = importlib.util.spec_from_file_location("own_loop", OWN_LOOP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    torch.set_num_threads(threads)


def mean(lines, name):
    return sum(line[name] for line in lines) / len(lines)


def test_the_own_loop_learns_recalls_reflects_and_ranks(own_loop):
    """Chance is about 0.01; the same seed gives the same run. Reflection begins with the second epoch, step 6."""
    lines = own_loop.train(60)
    assert (
        mean(lines[:10], "fresh/accuracy") < 0.03 < 0.05 < mean(lines[-10:], "fresh/accuracy")
    )
    assert sum(line["r3/replay/recalled"] for line in lines) > 20
    assert sum(line["r3/ranking/rows"] for line in lines) > 20
    assert [line["r3/reflection/groups"] for line in lines[:5]] == [0] * 5
    assert [line["r3/reflection/before_first_epoch"] for line in lines[:6]] == [20.0] * 5 + [
        0.0
    ]
    assert mean(lines[5:], "r3/reflection/groups") > 0.9  # one of 20 problems a step, at most
    assert all(line["r3/grading/ungraded"] == 0 for line in lines)
    assert own_loop.train(8) == lines[:8]


@pytest.mark.parametrize("dual_clip", [3.0, None])
def test_the_own_loop_trains_each_row_with_its_prompt_and_bounds_what_a_stored_failure_pulls(
    own_loop, dual_clip
):
    """A group of two successes with a stored failure, and a rehearsed success of another problem: the loss, row by row."""
    prompts = {"1+2": (1, 12), "3+4": (3, 14)}

    def row(uid, ids, verdict="correct", logprob=-0.5):
        return make_rollout(
            uid,
            ids=ids,
            logprobs=[logprob] * len(ids),
            prompt=prompts[uid],
            verdict=Verdict(verdict),
        )

    r3 = R3({"replay": {"rehearse": {"share": 0.5}}}, history=":memory:")
    rare = [row("3+4", (i, 10), "wrong") for i in range(7)] + [row("3+4", (7, 10))]
    r3.remember([row("1+2", (5, 5, 10), "wrong", -9.0), *rare], step=0, epoch=1)
    batch = r3.mix([row("1+2", (3, 10)), row("1+2", (3, 11, 10))], step=1)
    assert [(one.recalled, one.rehearsed) for one in batch.trained] == [(False, False)] * 2 + [
        (True, False),
        (True, True),
    ]
    policy = own_loop.Policy()
    loss = own_loop.update(
        policy, torch.optim.SGD(policy.parameters(), lr=0.0), batch, dual_clip
    )
    found, gains = [parameter.grad.clone() for parameter in policy.parameters()], []
    for one in batch.trained:
        ids = torch.tensor(one.rollout.response_ids[None]).long()
        now = (
            policy(torch.tensor([prompts[one.rollout.uid]]), ids)
            .log_softmax(-1)
            .gather(-1, ids[..., None])
            .flatten()
        )
        old = now.detach() if one.old_logprobs is None else torch.tensor(one.old_logprobs)
        for ratio in (now - old).exp():
            gain = min(ratio * one.advantage, ratio.clip(0.8, 1.2) * one.advantage)
            bound = (
                -math.inf
                if dual_clip is None or one.advantage > 0
                else dual_clip * one.advantage
            )
            gains.append(gain if gain > bound else torch.tensor(bound))
    expected = -torch.stack(gains).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    policy.zero_grad()
    expected.backward()  # a rehearsed row's ratio is 1 whatever its prompt: the gradient tells
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    assert all(
        torch.allclose(a, b.grad, atol=1e-6)
        for a, b in zip(found, policy.parameters(), strict=True)
    )


def test_the_own_loop_is_short_and_needs_no_stack():
    with OWN_LOOP.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    assert len(tokens) <= 1_900
    text = OWN_LOOP.read_text()
    assert not re.search("r3_openrlhf.stack|import openrlhf|R3Config", text)
