"""The commands after a run: each works as it is printed, and the pair that they make can be compared."""

import shlex

import pytest

from r3_openrlhf.comparison.arms import compare
from r3_openrlhf.comparison.runs import read_run
from r3_openrlhf.config.loading import load_config, split_settings
from r3_openrlhf.stack.next_commands import next_commands
from tests.comparison.synthetic import write_run

OWN = (
    "data.path=examples/own_problems.jsonl",
    "data.answer_key=total",
    "reward.function=examples/own_reward.py:is_right",
)
HELD_OUT = ("held_out.path=examples/data/gsm8k.jsonl", "held_out.every_steps=50")


def commands(experiment, *settings):
    config = load_config(experiment, list(settings))
    return [
        shlex.split(line) for line in next_commands(experiment, settings, config, last_step=8)
    ]


def test_the_first_one_opens_a_browser():
    view, show, *_ = commands("cpu_smoke", "run_dir=runs/my run")
    assert (view, show) == (
        ["r3", "view", "runs/my run"],
        ["r3", "show", "runs/my run", "--step", "8"],
    )


def test_without_held_out_problems_no_pair_is_suggested_that_could_not_be_compared():
    assert [words[1] for words in commands("cpu_smoke", *OWN)] == ["view", "show"]


def test_the_pair_keeps_data_and_reward_and_drops_what_belongs_to_the_arm(tmp_path):
    settings = (
        *OWN,
        *HELD_OUT,
        "replay.k=4",
        "train.seed=3",
        "train.learning_rate=1e-5",
        f"run_dir={tmp_path}/mine",
    )
    *_, train, compare_them = commands("cpu_smoke", *settings)
    kept = [one for one in settings if not one.startswith(("replay.", "run_dir="))]
    assert train == [
        "r3",
        "train",
        "experiment=cpu_smoke",
        "algo=grpo",
        *kept,
        f"run_dir={tmp_path}/mine_grpo",
    ]
    assert compare_them == ["r3", "compare", f"{tmp_path}/mine", f"{tmp_path}/mine_grpo"]
    experiment, others = split_settings(train[2:], command="train")
    assert load_config(experiment, others).algo == "grpo"


@pytest.mark.parametrize("algo", ["r3", "grpo", "dapo"])
def test_the_suggested_pair_can_be_compared(tmp_path, algo):
    """As far as settings decide: two runs with the configurations that the commands name."""
    settings = (f"algo={algo}", *HELD_OUT, f"run_dir={tmp_path}/one")
    *_, train, _ = commands("cpu_smoke", *settings)
    runs = []
    for name, words in (("one", settings), ("other", train[3:])):
        overrides = [word for word in words if not word.startswith(("algo=", "run_dir="))]
        chosen = next(word.partition("=")[2] for word in words if word.startswith("algo="))
        runs.append(read_run(write_run(tmp_path / name, *overrides, arm=chosen, seed=1)))
    assert len(compare(runs).arms) == 2


def test_agents_get_an_arm_of_theirs():
    *_, train, _ = commands("agent_smoke", "agents.estimator=hgpo", "held_out.max_samples=8")
    assert train[3] == "algo=gigpo"
