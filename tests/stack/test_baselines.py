"""OpenRLHF's other estimators and losses on recorded rollouts: what a run of ours makes of them is what upstream makes of
them, and that is what the papers write down."""

import math

import numpy as np
import pytest

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")

import torch  # noqa: E402
from openrlhf.models.loss import PolicyLoss  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from r3_openrlhf.config.algorithms import ALGORITHMS  # noqa: E402
from r3_openrlhf.method.errors import ConfigError  # noqa: E402
from r3_openrlhf.method.types import Verdict  # noqa: E402
from r3_openrlhf.stack.experience_values import explained_variance  # noqa: E402
from tests.recordings import MODEL, STORY, recorded  # noqa: E402
from tests.stack.test_arguments import checked  # noqa: E402
from tests.stack.test_experience_maker import G, Recording, Stock, by_row, maker, sample  # noqa: E402

pytestmark = pytest.mark.stack
STOCK = [name for name, one in ALGORITHMS.items() if not one.own_advantages and not one.filters_groups]


@pytest.fixture(scope="module")
def rollouts():
    """16 groups of 4 recorded responses, each with the verdict and reward that its text got in the recorded run."""
    responses, about = recorded("r3")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    graded = {row["text"]: row for row in (dict(zip(STORY, one, strict=True)) for one in about["story"])}
    found = []
    for ids, logprobs, _ in responses.values():
        row = graded.get(tokenizer.decode(ids, skip_special_tokens=True))
        if row is not None and len(found) < 16 * G:
            found.append((ids, logprobs[:, 0].tolist(), row["verdict"], row["outcome_reward"]))
    assert {verdict for _, _, verdict, _ in found} == {"correct", "wrong"}
    return found


def samples_of(rollouts):
    made = []
    for i, (ids, logprobs, verdict, reward) in enumerate(rollouts):
        one = sample(Verdict(verdict), prompt=f"problem {i // G}", tokens=ids, reward=reward)
        one.rollout_log_probs = torch.tensor([[0.0, *logprobs]])
        made.append(one)
    return made


class Valued:
    """A critic that says something of every token."""

    def make_experience(self, samples_list):
        for samples in super().make_experience(samples_list):
            samples.values = torch.cos(7 * samples.rollout_log_probs) * samples.action_mask
        return samples_list


class ValuedRecording(Valued, Recording):
    pass


class ValuedStock(Valued, Stock):
    pass


def experiences_of(cls, rollouts, algo, *, gamma=1.0, lambd=1.0):
    if ALGORITHMS[algo].has_critic:
        cls = {Recording: ValuedRecording, Stock: ValuedStock}[cls]
    made = maker(cls)
    made.args.algo.advantage.gamma, made.args.algo.advantage.lambd = gamma, lambd
    made.advantage_estimator = made.args.algo.advantage.estimator = ALGORITHMS[algo].estimator
    return made.make_experience_batch(samples_of(rollouts))


@pytest.mark.parametrize("scale", [1.0, -7.3], ids=["rewards of verdicts", "any real numbers"])
@pytest.mark.parametrize("algo", STOCK)
def test_a_run_of_ours_has_upstreams_advantages_to_the_last_digit(rollouts, algo, scale):
    # as many micro-batches: upstream's mean over all tokens adds in their order
    whole = [(*row, scale * reward + math.log(scale**2)) for *row, reward in rollouts[: 15 * G]]
    ours, theirs = (experiences_of(cls, whole, algo) for cls in (Recording, Stock))
    for name in ("advantages", "returns"):
        for one, other in zip(by_row(ours, name), by_row(theirs, name), strict=True):
            assert torch.equal(one, other)


def written_out(algo, rollouts):
    """One advantage per response, as the papers have it."""
    rewards = [reward for *_, reward in rollouts]
    if algo == "dr_grpo":
        means = [math.fsum(rewards[i // G * G : i // G * G + G]) / G for i in range(len(rewards))]
        return [reward - mean for reward, mean in zip(rewards, means, strict=True)]
    lengths = [len(ids) for ids, *_ in rollouts]  # reinforce_pp: mean and deviation over the step's tokens
    mean = math.fsum(r * n for r, n in zip(rewards, lengths, strict=True)) / sum(lengths)
    variance = math.fsum((r - mean) ** 2 * n for r, n in zip(rewards, lengths, strict=True)) / sum(lengths)
    return [(reward - mean) / math.sqrt(variance) for reward in rewards]


@pytest.mark.parametrize("algo", ["dr_grpo", "reinforce_pp"])
def test_advantages_are_those_of_the_paper(rollouts, algo):
    found = by_row(experiences_of(Recording, rollouts, algo), "advantages")
    for values, expected in zip(found, written_out(algo, rollouts), strict=True):
        assert values.tolist() == pytest.approx([expected] * len(values), abs=1e-5)


def test_advantages_of_ppo_are_those_of_a_written_out_loop(rollouts):
    """GAE and the critic's targets (arXiv 1506.02438, eq. 16), then whitened over the step's tokens."""
    gamma, lambd = 0.99, 0.9
    made = experiences_of(Recording, rollouts, "ppo", gamma=gamma, lambd=lambd)
    advantages, returns = [], []
    for (_, logprobs, _, reward), values in zip(rollouts, by_row(made, "values"), strict=True):
        values = values.tolist()
        assert values == pytest.approx([math.cos(7 * logprob) for logprob in logprobs], abs=1e-5)
        rewards = [0.0] * (len(values) - 1) + [reward]
        deltas = [r + gamma * after - v for r, after, v in zip(rewards, [*values[1:], 0.0], values, strict=True)]
        mine = [sum((gamma * lambd) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]
        advantages.append(mine)
        returns.append([a + v for a, v in zip(mine, values, strict=True)])
    flat = sum(advantages, [])
    mean = math.fsum(flat) / len(flat)
    deviation = math.sqrt(math.fsum((a - mean) ** 2 for a in flat) / len(flat))
    for found, mine in zip(by_row(made, "advantages"), advantages, strict=True):
        assert found.tolist() == pytest.approx([(a - mean) / deviation for a in mine], abs=1e-4)
    for found, mine in zip(by_row(made, "returns"), returns, strict=True):
        assert found.tolist() == pytest.approx(mine, abs=1e-5)
    errors = [
        r - math.cos(7 * p)
        for rs, (_, ps, *_) in zip(returns, rollouts, strict=True)
        for r, p in zip(rs, ps, strict=True)
    ]
    told = 1 - np.var(errors) / np.var(sum(returns, []))
    assert explained_variance(made)["r3/critic/explained_variance"] == pytest.approx(told, abs=1e-4)
    assert explained_variance(experiences_of(Recording, rollouts, "grpo")) == {}


def test_eq_3_never_becomes_a_critics_returns(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from r3_openrlhf.config.algorithms import Algorithm\nMINE = Algorithm(estimator='gae', own_advantages=True)\n"
    )
    with pytest.raises(ConfigError, match="but the critic would learn eq. 3's advantages as returns"):
        ALGORITHMS[f"{tmp_path / 'mine.py'}:MINE"]


def test_gspo_has_one_ratio_for_a_whole_response(rollouts):
    """The loss that upstream makes of the flags of algo=gspo (ppo_actor.py:87), and its gradient, against a loop over responses:
    s = exp(mean of log-ratios), -min(s A, clip(s) A), a mean over responses."""
    args = checked("algo=gspo")
    low, high = args.actor.eps_clip_low_high
    assert (args.actor.policy_loss_type, low, high) == ("gspo", 3e-4, 4e-4)
    rows = rollouts[:6]
    width = max(len(ids) for ids, *_ in rows)
    mask_BA = torch.tensor([[float(t < len(ids)) for t in range(width)] for ids, *_ in rows])
    old_BA = torch.stack([torch.tensor(logprobs + [0.0] * (width - len(logprobs))) for _, logprobs, *_ in rows])
    shift_B = torch.tensor([0.0, 1e-4, 1.0, -1.0, 2e-4, 0.5])  # within the bounds, and beyond either of them
    drift_BA = shift_B[:, None] * torch.linspace(0.5, 1.5, width) * mask_BA
    now_BA = (old_BA + drift_BA).requires_grad_()
    advantages_B = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5])
    loss_of = PolicyLoss(
        clip_eps_low=low,
        clip_eps_high=high,
        dual_clip=args.actor.dual_clip,
        token_level_loss=args.actor.loss_agg_mode == "token-mean",
        policy_loss_type=args.actor.policy_loss_type,
    )
    loss = loss_of(now_BA, old_BA, advantages_B[:, None].expand(-1, width), action_mask=mask_BA)[0]
    loss.backward()
    expected, gradient_BA = 0.0, torch.zeros_like(old_BA)
    for i, (ids, *_) in enumerate(rows):
        s = math.exp(drift_BA[i].sum().item() / len(ids))
        a = advantages_B[i].item()
        clipped = min(max(s, 1 - low), 1 + high)
        expected -= min(s * a, clipped * a) / len(rows)
        if s * a <= clipped * a:
            gradient_BA[i, : len(ids)] = -s * a / len(ids) / len(rows)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(now_BA.grad, gradient_BA, rtol=1e-4, atol=1e-6)
    assert 0 < (gradient_BA.abs().sum(-1) > 0).sum() < len(rows)  # some were clipped
