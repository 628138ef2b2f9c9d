"""OpenRLHF's other estimators and losses on recorded rollouts: what a run of ours makes of them is what upstream makes of
them, and that is what the papers write down."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from r3_openrlhf.config.algorithms import ALGORITHMS
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.estimators import ESTIMATORS
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.stack.experience_values import explained_variance
from r3_openrlhf.stack.launch import plan
from tests.recordings import MODEL, STORY, recorded
from tests.stack.experience_makers import (
    G,
    Recording,
    Stock,
    Valued,
    ValuedRecording,
    by_row,
    maker,
    sample,
)

pytestmark = pytest.mark.stack
STOCK = [
    name
    for name, one in ALGORITHMS.items()
    if not one.own_advantages and not one.filters_groups
]


@pytest.fixture(scope="module")
def rollouts():
    """16 groups of 4 recorded responses, each with the verdict and reward that its text got in the recorded run."""
    responses, about = recorded("r3")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    graded = {
        row["text"]: row
        for row in (dict(zip(STORY, one, strict=True)) for one in about["story"])
    }
    found = []
    for ids, logprobs, _ in responses.values():
        row = graded.get(tokenizer.decode(ids, skip_special_tokens=True))
        if row is not None and len(found) < 16 * G:
            found.append((ids, logprobs[:, 0].tolist(), row["verdict"], row["outcome_reward"]))
    assert {verdict for _, _, verdict, _ in found} == {"correct", "wrong"}
    return found


def samples_of(rollouts, group_size):
    made = []
    for i, (ids, logprobs, verdict, reward) in enumerate(rollouts):
        prompt = f"problem {i // group_size}"
        one = sample(Verdict(verdict), prompt=prompt, tokens=ids, reward=reward)
        one.rollout_log_probs = torch.tensor([[0.0, *logprobs]])
        made.append(one)
    return made


class ValuedStock(Valued, Stock):
    pass


def experiences_of(cls, rollouts, algo, *, gamma=1.0, lambd=1.0, group_size=G, holes=()):
    if ALGORITHMS[algo].has_critic:
        cls = {Recording: ValuedRecording, Stock: ValuedStock}[cls]
    made = maker(cls)
    made.args.rollout.n_samples_per_prompt = group_size
    made.args.algo.advantage.gamma, made.args.algo.advantage.lambd = gamma, lambd
    made.advantage_estimator = made.args.algo.advantage.estimator = ALGORITHMS[algo].estimator
    samples = samples_of(rollouts, group_size)
    for i, places in enumerate(holes):
        samples[i] = with_given(samples[i], places)
    return made.make_experience_batch(samples)


@pytest.mark.parametrize("scale", [1.0, -7.3], ids=["rewards of verdicts", "any real numbers"])
@pytest.mark.parametrize("algo", STOCK)
def test_a_run_of_ours_has_upstreams_advantages_to_the_last_digit(rollouts, algo, scale):
    # as many micro-batches: upstream's mean over all tokens adds in their order
    whole = [(*row, scale * reward + math.log(scale**2)) for *row, reward in rollouts[: 15 * G]]
    assert_upstreams(whole, algo)


@pytest.mark.parametrize(
    "algo", [name for name in STOCK if not ALGORITHMS[name].compares_groups]
)
def test_so_has_a_run_with_one_response_a_prompt(rollouts, algo):
    assert_upstreams(rollouts[: 15 * G], algo, group_size=1)


def test_a_step_of_single_responses_is_recorded_and_counted():
    """Rewards 1.3333, 0 and 1.3333 of the graded ones: a mean of .8889."""
    made = maker(Recording, config=load_config("cpu_smoke", ["algo=flash_reinforce"]))
    made.args.rollout.n_samples_per_prompt = 1
    made.advantage_estimator = made.args.algo.advantage.estimator = "flash_reinforce"
    made.config.reward.max_ungraded_rate = 0.5
    verdicts = (Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED, Verdict.CORRECT)
    made.make_experience_batch(
        [sample(verdict, prompt=f"problem {i}") for i, verdict in enumerate(verdicts)]
    )
    by_uid = {record["uid"]: record["advantage"] for record in made.records}
    assert by_uid["problem 2"] is None and [
        by_uid[f"problem {i}"] for i in (0, 1, 3)
    ] == pytest.approx([4 / 9, -8 / 9, 4 / 9])
    numbers = {"single": 3, "mixed": 0, "all_correct": 0, "none_correct": 0, "left_out": 1}
    assert {name: made.metrics[f"r3/groups/{name}"] for name in numbers} == numbers
    assert made.metrics["r3/tokens/single"] == 9


def assert_upstreams(rollouts, algo, **settings):
    ours, theirs = (
        experiences_of(cls, rollouts, algo, **settings) for cls in (Recording, Stock)
    )
    compares = ALGORITHMS[algo].estimator in ESTIMATORS
    collapsed = rows_of_equal_rewards(rollouts, settings.get("group_size", G))
    for name in ("advantages", "returns"):
        pairs = zip(by_row(ours, name), by_row(theirs, name), strict=True)
        for i, (one, other) in enumerate(pairs):
            if compares and i in collapsed:
                assert not one.any()
            else:
                assert torch.equal(one, other)


def rows_of_equal_rewards(rollouts, group_size):
    """Rows of groups whose rewards are equal, of which upstream may make noise."""
    rewards = [reward for *_, reward in rollouts]
    found = set()
    for begin in range(0, len(rewards), group_size):
        if len(set(rewards[begin : begin + group_size])) == 1:
            found.update(range(begin, begin + group_size))
    return found


@pytest.mark.parametrize("reward", [0.1, 0.3, -0.7, 1.9])
@pytest.mark.parametrize("algo", ["grpo", "rloo", "dr_grpo"])
def test_equal_rewards_give_exactly_zero(rollouts, algo, reward):
    """Upstream's float32 mean of eight rewards of .1 is .1 + 7e-9, their float32 deviation is 0, and the rest is divided by 1e-9."""
    rows = [(*row, reward) for *row, _ in rollouts[: 2 * 8]]
    ours, theirs = (experiences_of(cls, rows, algo, group_size=8) for cls in (Recording, Stock))
    assert not any(row.any() for row in by_row(ours, "advantages"))
    assert not any(row.any() for row in by_row(ours, "returns"))
    if (algo, reward) == ("grpo", 0.1):
        assert by_row(theirs, "advantages")[0][0].item() == pytest.approx(-7.45, abs=0.01)


def test_advantages_of_ppo_are_those_of_a_written_out_loop(rollouts):
    """GAE and the critic's targets (arXiv 1506.02438, eq. 16), then whitened over the step's tokens."""
    gamma, lambd = 0.99, 0.9
    made = experiences_of(Recording, rollouts, "ppo", gamma=gamma, lambd=lambd)
    advantages, returns = [], []
    for (_, logprobs, _, reward), values in zip(rollouts, by_row(made, "values"), strict=True):
        values = values.tolist()
        assert values == pytest.approx(
            [math.cos(7 * logprob) for logprob in logprobs], abs=1e-5
        )
        rewards = [0.0] * (len(values) - 1) + [reward]
        deltas = [
            r + gamma * after - v
            for r, after, v in zip(rewards, [*values[1:], 0.0], values, strict=True)
        ]
        mine = [
            sum((gamma * lambd) ** k * d for k, d in enumerate(deltas[t:]))
            for t in range(len(deltas))
        ]
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
    assert explained_variance(made)["r3/critic/explained_variance"] == pytest.approx(
        told, abs=1e-4
    )
    assert explained_variance(experiences_of(Recording, rollouts, "grpo")) == {}


def test_gae_by_hand_goes_over_given_tokens():
    """.2, then .1 + .95 times the next one: three given tokens are no step."""
    values = torch.tensor([[0.5, 0.6, 9.0, 9.0, 9.0, 0.7, 0.8]])
    mask = torch.tensor([[1, 1, 0, 0, 0, 1, 1]])
    rewards = torch.tensor([[0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 1.0]])
    advantages, returns = Recording.__new__(Recording).get_advantages_and_returns(
        values, rewards, mask, 1.0, 0.95
    )
    expected = [0.456725, 0.3755, 0, 0, 0, 0.29, 0.2]
    assert advantages[0].tolist() == pytest.approx(expected)
    assert returns[0].tolist() == pytest.approx([0.956725, 0.9755, 0, 0, 0, 0.99, 1.0])


@pytest.mark.parametrize("algo", ["ppo", "reinforce_pp"])
@pytest.mark.parametrize(("gamma", "lambd"), [(1.0, 0.95), (0.9, 1.0), (0.9, 0.8)])
def test_given_tokens_change_no_advantage_of_a_sampled_one(rollouts, algo, gamma, lambd):
    """Runs of given tokens between the recorded ones, in every other row, at the beginning, inside and at
    the end: OpenRLHF's own advantages of the rows without them, to the last digit."""
    rows = rollouts[: 15 * G]
    plain = experiences_of(Stock, rows, algo, gamma=gamma, lambd=lambd)
    holes = [sorted({0, 1 + i % 5, 3 + i % 7}) if i % 2 else [] for i in range(len(rows))]
    found = experiences_of(Recording, rows, algo, gamma=gamma, lambd=lambd, holes=holes)
    for name in ("advantages", "returns"):
        for one, other in zip(by_row(found, name), by_row(plain, name), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-6)
    stock = experiences_of(Stock, rows, algo, gamma=gamma, lambd=lambd, holes=holes)
    if algo == "ppo" or gamma < 1:  # which has them fade
        pairs = zip(by_row(stock, "returns"), by_row(plain, "returns"), strict=True)
        assert max((one - other).abs().max().item() for one, other in pairs) > 0.1


def with_given(sample, places, *, length=6):
    """The sample with runs of given tokens before these of its sampled ones."""
    start = sample.sequences.size(1) - sample.r3_rollout.num_tokens
    parts = {"sequences": [], "logprobs": [], "mask": []}
    for t, token in enumerate(sample.sequences[0, start:].tolist()):
        given = length if t in places else 0
        parts["sequences"] += [7] * given + [token]
        parts["logprobs"] += [0.0] * given + [sample.rollout_log_probs[0, start - 1 + t].item()]
        parts["mask"] += [0] * given + [1]
    before = torch.zeros(start - 1)
    sample.sequences = torch.cat(
        [sample.sequences[:, :start], torch.tensor([parts["sequences"]])], dim=1
    )
    sample.attention_mask = torch.ones_like(sample.sequences)
    sample.rollout_log_probs = torch.cat([before, torch.tensor(parts["logprobs"])])[None]
    mask = torch.cat([before, torch.tensor(parts["mask"])])[None]
    sample.action_mask = mask.to(sample.action_mask.dtype)
    sample.total_length = torch.tensor([sample.sequences.size(1)])
    return sample


def test_eq_3_never_becomes_a_critics_returns(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from r3_openrlhf.config.algorithms import Algorithm\nMINE = Algorithm(estimator='gae', own_advantages=True)\n"
    )
    with pytest.raises(
        ConfigError, match="but the critic would learn eq. 3's advantages as returns"
    ):
        ALGORITHMS[f"{tmp_path / 'mine.py'}:MINE"]


@pytest.mark.parametrize(
    ("maker", "sentence"),
    [
        (
            "no_such_module:Maker",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "json:dumps",
            "is no subclass of r3_openrlhf.stack.experience_maker:StockExperienceMaker",
        ),
    ],
)
def test_a_dry_run_imports_the_experience_maker_as_a_start_does(
    tmp_path, monkeypatch, maker, sentence
):
    monkeypatch.chdir(tmp_path)  # a sentence shows a hundred characters of a value
    own = f"own_{maker.partition(':')[0]}.py"
    (tmp_path / own).write_text(
        f"from r3_openrlhf.config.algorithms import Algorithm\nMINE = Algorithm(experience_maker={maker!r})\n"
    )
    off = [f"{name}.enabled=false" for name in ("replay", "reflection", "ranking")]
    config = load_config("cpu_smoke", [f"algo={own}:MINE", "run_dir=run", *off])
    with pytest.raises(ConfigError) as refusal:
        plan(config)
    said = str(refusal.value)
    assert (
        f"'{own}:MINE', and its experience_maker is '{maker}', which {sentence}" in said
        and "\n" not in said
    )
