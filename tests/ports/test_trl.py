"""What R3Trainer gives TRL's loss to train on, worked out by hand, through `train()`."""

import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pytest import approx
from transformers import TrainerCallback
from trl import GRPOTrainer

from r3_openrlhf import (
    ConfigError,
    Context,
    HistoryStore,
    RowPrompts,
    Verdict,
    ranking_rewards,
    uid_of,
)
from r3_openrlhf.method.types import HardBy
from r3_openrlhf.trl import R3Trainer
from tests.ports import trl_runs as runs
from tests.ports.trl_runs import END, FEW, GROUP, by_content, rows_of, settings, stored

REPOSITORY = Path(__file__).parents[2]
# longer than a fresh one may be
RECALLED, LOGPROBS = (
    [1, 2, 3, 4, 5, END],
    [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6],
)
SUCCESS = [stored("1+1=", RECALLED, LOGPROBS)]
WRONG, RIGHT = [0.0] * GROUP, [1.0] * GROUP
FOUR = {
    "1+1=": WRONG,
    "2+2=": [1.0, 0.0, 0.0, 0.0],
    "3+3=": [None, 1.0, 0.0, 0.0],
    "4+4=": [None] * GROUP,
}
REPLAY = settings(replay={"k": 1})
NO_END = {"suppress_tokens": [12, 13]}  # every response is truncated
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trl")
    runs.save_model(directory / "model")
    return directory


@pytest.fixture
def train(there):
    return lambda *args, **options: runs.train(there, *args, **options)[1]


def groups_of(log):
    groups = {}
    for row in rows_of(log):
        if row["ids"]:  # rows without tokens fill a process up
            groups.setdefault(row["prompt"], []).append(row)
    return groups


def current(row):
    """The model's log-probs of the row's tokens."""
    return row["distribution"].gather(1, torch.tensor(row["ids"])[:, None])[:, 0].tolist()


def advantages(rows):
    return approx(sorted(row["advantage"] for row in rows), abs=1e-5)


def eq3(*rewards):
    return [
        (reward - statistics.fmean(rewards)) / statistics.stdev(rewards) for reward in rewards
    ]


def gains_of(row, *, dual_clip=3.0):
    """Of each token min(r A, clip(r) A), at least dual_clip A where A < 0. Without old log-probs r is 1."""
    gains, advantage = [], row["advantage"]
    for now, old in zip(current(row), row["old"] or current(row), strict=True):
        ratio = math.exp(now - old)
        gain = min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
        gains.append(max(gain, dual_clip * advantage) if advantage < 0 else gain)
    return gains


def check_token_mean(log):
    """TRL's loss of all steps is the mean over the tokens of all rows."""
    gains = [gain for row in rows_of(log) for gain in gains_of(row)]
    # TRL divides by the tokens of the generation, and a step by its share of them
    assert sum(inputs["loss"].item() for inputs in log) == approx(
        -statistics.fmean(gains), rel=1e-4, abs=1e-6
    )
    assert {int(inputs["num_items_in_batch"]) for inputs in log} == {len(gains)}


@pytest.mark.parametrize("steps", [1, 4, 5])
def test_an_uneven_group_has_the_stored_success_and_no_row_is_lost(train, steps):
    """12 rows: 4 failures and the stored success, 4 and 3 graded rows; in 5 steps they are cut from 15 rows."""
    options = (
        dict(per_device_train_batch_size=20 // steps, gradient_accumulation_steps=steps)
        if steps > 1
        else {}
    )
    log = train({**FOUR, "5+5=": [None] * GROUP}, r3=REPLAY, history=SUCCESS, **options)
    assert [len(inputs["advantages"]) for inputs in log] == [-(-12 // steps)] * steps
    groups = groups_of(log)
    assert {prompt: len(rows) for prompt, rows in groups.items()} == {
        "1+1=": 5,
        "2+2=": 4,
        "3+3=": 3,
    }
    (recalled,) = [row for row in groups["1+1="] if row["ids"] == RECALLED]
    assert recalled["old"] == approx(LOGPROBS)
    for row in sum(groups.values(), []):
        assert row is recalled or row["old"] == approx(current(row), abs=1e-5)
    assert (
        sorted(eq3(0, 0, 0, 0, 1)) == advantages(groups["1+1="]) and recalled["advantage"] > 0
    )
    assert sorted(eq3(0, 0, 0, 1)) == advantages(groups["2+2="])
    # one of four is not graded, and not trained
    assert sorted(eq3(0, 0, 1)) == advantages(groups["3+3="])
    check_token_mean(log)


@pytest.mark.parametrize("loss", ["grpo", "sapo", "dr_grpo", "luspo"])
def test_rows_that_fill_up_do_not_lower_a_mean_over_rows(train, loss):
    """The same rows cut in one step (no filling) and in five (3 of 15 rows fill) give the same sum of losses."""
    level = "sequence" if loss == "luspo" else "token"
    options = dict(r3=REPLAY, history=SUCCESS, loss_type=loss, importance_sampling_level=level)
    sums = []
    for steps in (1, 5):
        log = train(
            {**FOUR, "5+5=": [None] * GROUP},
            per_device_train_batch_size=20 // steps,
            gradient_accumulation_steps=steps,
            **options,
        )
        sums.append(sum(inputs["loss"].item() for inputs in log) / steps)
    means = [statistics.fmean(gains_of(row)) for row in rows_of(log) if row["ids"]]
    assert sums[1] == approx(sums[0] / 5, rel=1e-4)
    if loss == "grpo":
        assert sums[0] == approx(-statistics.fmean(means), rel=1e-4)


def test_replace_keeps_the_number_of_rows_and_another_pass_uses_them_again(train):
    log = train(
        FOUR,
        r3=settings(replay={"k": 1, "mode": "replace"}),
        history=SUCCESS,
        num_iterations=2,
        max_steps=2,
    )
    first, again = (
        sorted(map(str, ((row["prompt"], row["ids"], row["old"]) for row in rows_of([inputs]))))
        for inputs in log
    )
    assert first == again and len(first) == 11
    groups = groups_of(log[:1])
    assert [-0.2 / 0.2**0.5] * 3 + [0.8 / 0.2**0.5] == advantages(groups["1+1="])
    check_token_mean(log[:1])


def test_a_stored_failure_pulls_no_more_than_dual_clip(train):
    failure = stored("1+1=", [1, 2, END], [-20.0] * 3, verdict=Verdict.WRONG)
    log = train({"1+1=": RIGHT}, history=[failure], r3=REPLAY)
    assert min(rows_of(log), key=lambda row: row["advantage"])["old"] == [-20.0] * 3
    check_token_mean(log)


def test_a_row_without_log_probs_has_those_of_today_and_a_rehearsed_row_its_own_prompt(train):
    """7 has one success of 8, sampled from another prompt; 1+1's success is of a reflection prompt."""
    rare = [
        stored("7", [i, END], [-9.0] * 2, verdict=Verdict.WRONG, prompt="7=") for i in range(7)
    ]
    rare.append(stored("7", [7, 8, END], [-9.0] * 3, prompt="7="))
    other = stored("1+1=", RECALLED, LOGPROBS, prompt="9+9=", context=Context.REFLECTION)
    replay = {"k": 2, "include_reflection": True, "rehearse": {"share": 0.25}}
    log = train({"1+1=": WRONG}, history=[*SUCCESS, other, *rare], r3=settings(replay=replay))
    groups = groups_of(log)
    (rehearsed,) = groups["7="]
    assert rehearsed["ids"] == [7, 8, END] and rehearsed["advantage"] == 1.0
    assert rehearsed["old"] == approx(current(rehearsed), abs=1e-5)
    recalled = [row["old"] for row in groups["1+1="] if row["ids"] == RECALLED]
    # the same response is recalled once, with the log-probs that apply
    assert recalled == [approx(LOGPROBS)]
    check_token_mean(log)
    log = train({"1+1=": WRONG}, history=[other], r3=settings(replay=replay))
    (alone,) = [row for row in rows_of(log) if row["ids"] == RECALLED]
    # nothing is stored: every ratio is 1
    assert alone["prompt"] == "1+1=" and alone["old"] is None
    check_token_mean(log)


def test_a_stored_success_and_a_ranking_of_truncated_rows_meet_in_one_group(train):
    options = dict(generation_kwargs=NO_END, seed=1, max_completion_length=6)
    log = train(
        {"1+1=": WRONG}, history=SUCCESS, r3=settings(replay={"k": 1}, ranking={}), **options
    )
    rows = sorted(rows_of(log), key=lambda row: row["ids"] == RECALLED)
    entropies = [
        -(row["distribution"].exp() * row["distribution"]).sum(1) for row in rows[:GROUP]
    ]
    peaks = [max(one.tolist()) for one in entropies]  # 0.2 of 6 tokens is one
    rewards = ranking_rewards(peaks, [one.mean().item() for one in entropies], max_reward=0.5)
    assert len(set(rewards)) > 1
    centred = [reward - statistics.fmean(rewards) for reward in rewards]
    assert [row["advantage"] for row in rows] == approx(eq3(*centred, 1.0), abs=1e-5)
    check_token_mean(log)


@pytest.mark.parametrize("weight", ["equal", "confident"])
def test_a_failure_learns_from_its_groups_success_token_by_token(there, weight):
    """What the model says of the failure's tokens after "success+problem", less what it says after the problem."""
    distill = {"coef": 0.5, "bound": 1.0, "weight": weight, "template": "{solution}+{problem}"}
    trainer, log = runs.train(
        there, {"2+2=": [1.0, 0.0, 0.0, 0.0]}, r3=runs.OFF | {"distill": distill}
    )
    (rows,) = groups_of(log).values()
    right, *wrong = sorted(rows, key=lambda row: -row["advantage"][0])
    success = "".join(runs.WORDS[token] for token in right["ids"] if token != END)
    prompt = runs.tokenizer()(f"{success}+2+2=")["input_ids"]
    assert right["advantage"] == approx([eq3(1, 0, 0, 0)[0]] * len(right["ids"]))
    for row in wrong:
        sequence = torch.tensor([[*prompt, *row["ids"]]])
        with torch.no_grad():
            logits = trainer.model(input_ids=sequence).logits[0, len(prompt) - 1 : -1]
        taught = logits.log_softmax(-1)
        said = taught.gather(1, torch.tensor(row["ids"])[:, None])[:, 0]
        gap = (said - torch.tensor(current(row))).clamp(-1, 1)
        certain = (taught.exp() * taught).sum(-1).exp()
        if weight == "confident":
            gap *= certain / certain.mean()
        value = eq3(1, 0, 0, 0)[1]
        assert row["advantage"] == approx((value + 0.5 * gap).tolist(), abs=1e-4)
    (metrics,) = [line for line in trainer.state.log_history if "r3/distill/taught" in line]
    assert metrics["r3/distill/taught"] == 3


def test_a_hard_problem_has_a_further_group_whose_prompt_shows_an_error(train):
    """Two epochs; 1+1 is hard in the second. Its plain group stays, and so does the other problem's."""
    log = train({"1+1=": WRONG, "2+2=": RIGHT}, r3=settings(reflection={}), max_steps=2)
    assert set(groups_of(log[:1])) == {"1+1=", "2+2="}
    groups = groups_of(log[1:])
    (prompt,) = groups.keys() - {"1+1=", "2+2="}
    assert {len(rows) for rows in groups.values()} == {GROUP}
    answers = [
        "".join(runs.WORDS[token] for token in row["ids"] if token < 12)
        for row in groups_of(log[:1])["1+1="]
    ]
    assert prompt.startswith("1+1=") and any(answer and answer in prompt for answer in answers)
    check_token_mean(log[1:])


def test_a_prompt_of_messages_keeps_its_form(train):
    problem = type(
        "Problem",
        (),
        {"prompt": [{"role": "system", "content": "1"}, {"role": "user", "content": "2+2="}]},
    )
    error = stored("2+2=", [7], [-1.0], verdict=Verdict.WRONG)
    system, user = RowPrompts(runs.tokenizer(), max_prompt_tokens=2000).reflection(
        problem, error
    )
    assert (
        system == problem.prompt[0]
        and user["role"] == "user"
        and user["content"].startswith("2+2=\n\n")
    )
    assert RowPrompts(runs.tokenizer(), max_prompt_tokens=10).reflection(problem, error) is None


def test_with_everything_off_the_loss_gets_what_trl_gives_it(train):
    plain = dict(
        uids=[f"{a}+1=" for a in range(4)],
        max_steps=4,
        learning_rate=0.01,
        per_device_train_batch_size=8,
    )
    ours = train(by_content, r3=settings(advantage={"std_eps": 1e-4}), **plain)
    stock = train(by_content, GRPOTrainer, **plain)
    assert len(ours) == len(stock) == 4 and any(
        inputs["advantages"].abs().max() > 0.5 for inputs in stock
    )
    for one, other in zip(ours, stock, strict=True):
        assert set(one) == set(other)
        for key in one:
            assert torch.allclose(
                torch.as_tensor(one[key]), torch.as_tensor(other[key]), atol=1e-5
            ), key


class WithVllm(R3Trainer):
    """As if vLLM had sampled: each token with log-prob -0.1, so that most responses are cut from the loss."""

    def _generate_single_turn(self, *args, **kwargs):
        self.use_vllm = False
        ids, _ = super()._generate_single_turn(*args, **kwargs)
        self.use_vllm = True
        return ids, [[-0.1] * len(one) for one in ids]


@pytest.mark.parametrize(
    ("mode", "columns"), [("sequence_mask", 1), ("token_truncate", len(RECALLED))]
)
def test_vllms_correction_of_a_stored_row_is_one(train, mode, columns):
    (inputs,) = train(
        FOUR, WithVllm, r3=REPLAY, history=SUCCESS, vllm_importance_sampling_mode=mode
    )
    rows = rows_of([inputs])
    (place,) = [i for i, row in enumerate(rows) if row["ids"] == RECALLED]
    ratios = inputs["importance_sampling_ratio"]
    assert ratios.shape == (12, columns)
    assert ratios[place].tolist() == [1.0] * columns and (ratios[:, 0] != 1).sum() == 11
    assert inputs["sampling_per_token_logps"][place].tolist() == approx(LOGPROBS)
    assert rows[place]["old"] == approx(LOGPROBS)


@pytest.mark.parametrize("peft", [False, True])
def test_the_references_log_probs_are_of_the_trained_rows(train, there, peft):
    """At the first step the policy is its reference; a new adapter adds nothing."""
    from peft import LoraConfig

    options = {"peft_config": LoraConfig(r=2, target_modules=["q_proj"])} if peft else {}
    log = train(FOUR, r3=REPLAY, history=SUCCESS, beta=0.1, **options)
    rows = rows_of(log)
    assert len(rows) == 12 and RECALLED in [row["ids"] for row in rows]
    assert all(row["ref"] == approx(current(row), abs=1e-5) for row in rows)


class Kill(TrainerCallback):
    """End the training in the middle of a step."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, **_):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("case", ["second epoch", "inside a generation"])
def test_a_run_that_was_killed_and_resumed_has_the_same_rows_and_losses(there, tmp_path, case):
    """Problems are shuffled, responses sampled, and each generation is used once or twice. The run is killed in the
    middle of step 9; the checkpoint of step 7 is inside a generation, that of step 8 in a later epoch."""
    options = dict(
        uids=FEW[:4],
        max_steps=12,
        learning_rate=0.01,
        shuffle_dataset=True,
        history=None,
        r3=runs.THROUGHOUT,
    )
    options |= dict(
        save_strategy="steps",
        save_steps=4,
        save_total_limit=1,
        per_device_train_batch_size=2 * GROUP,
    )
    options |= dict(save_steps=7, num_iterations=2) if case == "inside a generation" else {}
    whole, expected = runs.train(
        there, runs.fading, output_dir=str(tmp_path / "whole"), **options
    )
    options["output_dir"] = str(tmp_path / "killed")
    runs.train(there, runs.fading, callbacks=[Kill(8)], **options)
    resumed, log = runs.train(there, runs.fading, resume=True, **options)
    first = options["save_steps"] if case == "inside a generation" else 8
    assert [inputs["step"] for inputs in log] == list(range(first, 12))
    for one, other in zip(log, expected[-len(log) :], strict=True):
        assert all(
            torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in other
        ), one["step"]
    lines = [
        [line | {"step_time": 0} for line in run.state.log_history[first:-1]]
        for run in (whole, resumed)
    ]
    assert (
        lines[0] == lines[1] and sum(line.get("r3/replay/recalled", 0) for line in lines[0]) > 0
    )


def test_a_checkpoint_needs_its_history_and_its_processes(there, tmp_path):
    options = dict(
        output_dir=str(tmp_path), history=None, save_strategy="steps", save_steps=1, r3=REPLAY
    )
    runs.train(there, {"1+1=": WRONG}, **options)
    (tmp_path / "history.sqlite").rename(tmp_path / "kept.sqlite")
    with pytest.raises(
        ConfigError, match="history.sqlite ends at step None, before the step 1 of"
    ):
        runs.train(there, {"1+1=": WRONG}, resume=True, **options | {"max_steps": 2})
    (tmp_path / "checkpoint-1" / "r3_0_of_1.pt").unlink()
    with pytest.raises(
        ConfigError, match="checkpoint-1 has no r3_0_of_1.pt; resume with the trainer"
    ):
        runs.train(there, {"1+1=": WRONG}, resume=True, **options)


def test_a_second_start_says_what_it_forgets(train, caplog):
    with HistoryStore.open(":memory:") as store:
        for _ in range(2):
            train({"1+1=": WRONG}, history=store, r3=REPLAY)
        assert (
            store.last_step == 1
            and ":memory:: the rollouts of the steps 1 to 1 go" in caplog.text
        )


def test_the_prompt_is_the_id_where_no_column_names_it(train):
    with HistoryStore.open(":memory:") as store:
        train(by_content, uids=["1+1=", "2+2="], column="name", history=store, r3=REPLAY)
        assert set(store.means(HardBy.REWARD)) == {
            uid_of({"prompt": prompt}) for prompt in ("1+1=", "2+2=")
        }


def test_two_processes_train_what_one_trains(there):
    """Recorded rollouts of all mechanisms; a group has half of its rows in each process."""
    one = runs.on_ranks(there, per_device_train_batch_size=12)
    launch = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "-m",
        runs.__name__,
    )
    done = subprocess.run([*launch, there], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    two = [torch.load(there / f"rank{rank}.pt") for rank in range(2)]
    for name, value in one["weights"].items():
        assert torch.allclose(value, two[0]["weights"][name], atol=1e-5), name
        assert torch.equal(two[0]["weights"][name], two[1]["weights"][name])
    assert [line | {"r3/ranking/reward_std": 0} for line in two[0]["metrics"]] == approx_lines(
        one["metrics"]
    )
    trained = [row for row in two[0]["rows"] + two[1]["rows"] if row[1]]
    assert sorted(trained) == sorted(row for row in one["rows"] if row[1])
    for name in (
        "r3/replay/recalled",
        "r3/replay/rehearsed",
        "r3/reflection/groups",
        "r3/ranking/rows",
        "r3/distill/taught",
    ):
        assert sum(line[name] for line in one["metrics"]) > 0, name


def approx_lines(lines):
    return [approx(line | {"r3/ranking/reward_std": 0}, abs=1e-4) for line in lines]


def two(completions, **_):
    return [1.0] * len(completions)


REFUSED = {
    "mask_truncated_completions": (
        dict(mask_truncated_completions=True),
        "mask_truncated_completions, which hides the responses that",
    ),
    "two generations": (
        dict(gradient_accumulation_steps=2, steps_per_generation=1),
        "steps_per_generation below 2 gradient_accumulation_steps; one generation an update",
    ),
    "no std": (
        dict(scale_rewards="none"),
        "scale_rewards; R3 makes the advantages, by advantage.function",
    ),
    "delta": (dict(delta=2.0), "delta 2.0 with replay.dual_clip 3.0, which is delta here"),
    "states": (
        dict(r3=REPLAY | {"exploration": {"rrl": {"ratio": 0.5}}}),
        "exploration.rrl.ratio, which needs a critic",
    ),
    "a teacher's logits": (
        dict(r3=REPLAY | {"distill": {"coef": 1.0, "loss": "reverse_kl"}}),
        "distill.loss reverse_kl; use policy_gradient",
    ),
    "a teacher's average": (
        dict(r3=REPLAY | {"distill": {"coef": 1.0, "teacher": "average"}}),
        "distill.teacher average; use policy",
    ),
    "a teacher and a ratio of responses": (
        dict(r3=REPLAY | {"distill": {"coef": 1.0}}, importance_sampling_level="sequence"),
        "distill beside importance_sampling_level other than token",
    ),
    "several rewards": (
        dict(rewards=[by_content, two]),
        "correct_by is None; name the reward function that says .*: by_content, two",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_trl_cannot_carry_is_refused_by_name(train, case):
    options, sentence = REFUSED[case]
    options = {"r3": REPLAY, "rewards": {"1+1=": WRONG}} | options
    with pytest.raises(ConfigError, match=sentence):
        train(uids=["1+1="], **options)


def test_of_several_rewards_the_named_one_decides(train):
    """`two` pays every response; that none of them is right is said by the other."""
    with HistoryStore.open(":memory:") as store:
        wrong = runs.scripted({"1+1=": WRONG})
        train([two, wrong], uids=["1+1="], history=store, r3=REPLAY, correct_by="accuracy")
        assert [store.means(by) for by in (HardBy.REWARD, HardBy.SUCCESS_RATE)] == [
            {"1+1=": 1.0},
            {"1+1=": 0.0},
        ]


def styled(completions, **_):
    """Pays every response but the last of a group, about which it says nothing."""
    return [None if i % GROUP == GROUP - 1 else 0.25 for i in range(len(completions))]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # three of four responses are graded, all right
        ([1.0, 1.0], {HardBy.REWARD: 1.25, HardBy.SUCCESS_RATE: 1.0}),
        # a reward of weight 0 is not missed
        ([0.0, 1.0], {HardBy.REWARD: 0.75, HardBy.SUCCESS_RATE: 0.75}),
    ],
)
def test_a_none_of_any_reward_function_is_no_zero(train, weights, expected):
    """TRL pays such a response with the sum of the others."""
    accuracy = runs.scripted({"1+1=": [1.0, 1.0, 1.0, 0.0]})
    with HistoryStore.open(":memory:") as store:
        train(
            [styled, accuracy],
            uids=["1+1="],
            history=store,
            r3=REPLAY,
            correct_by="accuracy",
            reward_weights=weights,
        )
        for by, mean in expected.items():
            assert store.means(by) == {"1+1=": approx(mean)}


def test_the_example_trains_in_ten_lines(there, tmp_path):
    """With a tiny model in place of SmolLM2: two processes of the step, its checkpoint and the resumed run."""
    from examples import trl_r3

    runs.save_model(tmp_path / "model")
    runs.tokenizer().save_pretrained(tmp_path / "model")
    options = dict(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=8,
        max_completion_length=4,
        use_cpu=True,
        bf16=False,
    )
    trl_r3.train(
        str(tmp_path / "model"), steps=2, save_strategy="steps", **options | {"save_steps": 1}
    )
    trainer = trl_r3.train(str(tmp_path / "model"), steps=3, resume=True, **options)
    assert (
        trainer.state.global_step == 3 and "r3/replay/recalled" in trainer.state.log_history[-2]
    )
    with HistoryStore.open(tmp_path / "run" / "history.sqlite", writer=False) as store:
        assert store.last_step == 3


def test_the_short_loop_runs_with_a_model_of_transformers(tmp_path, monkeypatch):
    from examples import short_loop

    monkeypatch.chdir(tmp_path)
    runs.save_model(tmp_path / "model")
    runs.tokenizer().save_pretrained(tmp_path / "model")
    lines = list(
        short_loop.train(str(tmp_path / "model"), steps=3, problems_per_step=32, limit=3)
    )
    assert lines[0]["r3/groups/none_correct"] > 0 and lines[2]["r3/reflection/groups"] > 0
