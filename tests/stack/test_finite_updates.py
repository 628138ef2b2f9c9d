"""An update that is not finite ends the run, under every ZeRO stage, and the sentence names the cause."""

import math
from types import SimpleNamespace

import pytest
import torch

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.stack import finite_updates, trainer
from r3_openrlhf.stack.finite_advice import CRITIC, POLICY, check_loaded, check_update
from r3_openrlhf.stack.finite_updates import (
    ACTOR_NOT_FINITE,
    CRITIC_NOT_FINITE,
    NAMES,
    UpdateWatch,
)
from tests.stack import rank_worker
from tests.stack.updates_on_ranks import run_ranks

pytestmark = pytest.mark.stack
FOUR_A_STEP = {"train.batch_size": 4}  # two optimizer steps or more: the first one is at fault


# ── on real ranks ──


def norms_of(tmp_path, model, *, of_critic=False, **settings):
    """The gradient norm of each step, and which tensor was not finite first."""
    target = rank_worker.update_critic if of_critic else rank_worker.update
    result = run_ranks(tmp_path, model, target=target, critic=of_critic, **settings)
    names = (
        ("critic_grad_norm", CRITIC_NOT_FINITE)
        if of_critic
        else ("actor_grad_norm", ACTOR_NOT_FINITE)
    )
    return [(status[names[0]], status.get(names[1])) for status in result["statuses"]]


LAYOUTS = [
    {"ranks": 1, "stage": 2},
    {"ranks": 2, "stage": 2},
    {"ranks": 1, "stage": 3},
    {"ranks": 2, "stage": 3},
    {"ranks": 2, "stage": 2, "offload": True},
    {"ranks": 2, "stage": 3, "offload": True},
    {"ranks": 1, "stage": 0},
    {"ranks": 2, "stage": 1},
    {"ranks": 2, "stage": 1, "more": {"ds.grad_accum_dtype": "fp32"}},
    {"ranks": 2, "stage": 2, "dynamic": True},
    {"ranks": 2, "stage": 3, "lora": 4},
    {"ranks": 1, "stage": 2, "lora": 4},
]


@pytest.mark.parametrize(
    ("of_critic", "settings"),
    [(False, settings) for settings in LAYOUTS] + [(True, LAYOUTS[i]) for i in (1, 3, 4, 10)],
    ids=lambda value: (
        "-".join(map(str, value.values())) if isinstance(value, dict) else f"critic={value}"
    ),
)
def test_a_gradient_of_one_rank_that_is_not_finite_is_reported(
    tmp_path,
    model,
    critic,
    of_critic,
    settings,
):
    """Its loss is finite, and so is each gradient after it: of the other rank, of the next micro-batch."""
    settings = settings | {"more": FOUR_A_STEP | settings.get("more", {}), "rows_per_step": [7]}
    found = norms_of(
        tmp_path,
        critic if of_critic else model,
        of_critic=of_critic,
        loss="nan_gradient",
        **settings,
    )
    ((norm, first),) = found
    assert math.isnan(norm) and first in ("gradient", "weights")


@pytest.mark.parametrize(
    ("stage", "spoiled", "loss", "more", "first"),
    [
        (2, ("advantages", "rollout_log_probs"), "ppo", {}, "advantages"),
        (
            3,
            ("rollout_log_probs", "action_log_probs"),
            "ppo",
            {},
            "log-probs of the rollout engine",
        ),
        (2, ("action_log_probs",), "ppo", {}, "old log-probs"),
        (3, (), "nan_loss", {}, "loss"),
        (2, (), "ppo", {"actor.adam.lr": 1e60}, "weights"),
        (3, (), "ppo", {"actor.adam.lr": 1e60}, "weights"),
    ],
)
def test_the_first_tensor_is_named(tmp_path, model, stage, spoiled, loss, more, first):
    settings = {"ranks": 2, "stage": stage, "rows_per_step": [7], "loss": loss, "more": more}
    ((norm, found),) = norms_of(tmp_path, model, spoiled=spoiled, **settings)
    assert math.isnan(norm) and found == first


def test_what_no_loss_reads_ends_nothing(tmp_path, model):
    ((norm, found),) = norms_of(
        tmp_path, model, ranks=2, stage=2, rows_per_step=[7], spoiled=("rollout_log_probs",)
    )
    assert math.isfinite(norm) and found is None


@pytest.mark.parametrize(("ranks", "stage"), [(1, 2), (2, 2), (1, 3), (2, 3)])
def test_no_run_continues_from_weights_that_are_not_finite(tmp_path, model, ranks, stage):
    settings = {
        "ranks": ranks,
        "stage": stage,
        "rows_per_step": [7],
        "more": {"actor.adam.lr": 1e60},
    }
    said = run_ranks(tmp_path, model, target=rank_worker.ruined, **settings)["said"]
    assert said == said[:1] * ranks  # every rank ends, with the same sentence
    (sentence,) = said[0]  # the first checkpoint is good
    checkpoint = tmp_path / "checkpoints" / "_actor" / "global_step1"
    assert sentence.startswith(
        f"1: the checkpoint {checkpoint} holds a value that is not finite in model.embed_tokens"
    )
    assert sentence.endswith("restore an earlier one from a copy, or choose another run_dir")


# ── on this rank ──


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(finite_updates, "over_ranks", lambda numbers, *_: numbers)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))


@pytest.mark.parametrize("name", NAMES[:-2])
def test_each_tensor_is_seen(alone, name):
    watch = UpdateWatch(SimpleNamespace(skipped_steps=0, module=torch.nn.Linear(1, 1)))
    mask = torch.tensor([[1, 0]])
    good = dict.fromkeys(NAMES[:-2], torch.tensor([[1.0, math.nan]]))
    watch.look(good, mask)
    watch.look(good | {name: torch.tensor([[math.inf, 1.0]])}, mask)
    # the others alone are no failure
    assert (watch.first_not_finite() == name) is (name == "loss")
    assert math.isnan(watch.look_at_step(math.inf)) and watch.first_not_finite() == name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_is_named(alone, value):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert finite_updates.not_finite_weight(model) is None
    with torch.no_grad():
        model[1].weight[1, 0] = value
    assert finite_updates.not_finite_weight(model) == "1.weight"


def test_a_new_run_names_its_model(alone):
    model = torch.nn.Linear(1, 1)
    args = SimpleNamespace(ckpt=SimpleNamespace(path="/nowhere", load_enable=False))
    check_loaded(model, args, folder="_actor", path="my_model")
    with torch.no_grad():
        model.bias[0] = math.nan
    with pytest.raises(
        TrainingStopped,
        match="^my_model holds a value that is not finite in bias; use another model$",
    ):
        check_loaded(model, args, folder="_actor", path="my_model")


# ── what the run says ──


def test_the_run_ends_before_weights_are_sent_or_saved(monkeypatch):
    """Upstream's step goes on with the weight sync after the update, and a checkpoint."""
    config = load_config("cpu_smoke", ["algo=r3"])
    steps = object.__new__(trainer.RecordedSteps)
    steps.config, steps._announce = config, lambda phase: None
    status = {"policy_loss": -0.25, "actor_grad_norm": math.nan, ACTOR_NOT_FINITE: "gradient"}
    monkeypatch.setattr(trainer.ppo_trainer.BasePPOTrainer, "ppo_train", lambda *_: status)
    with pytest.raises(
        TrainingStopped, match="step 4: the policy's loss is -0.25, its gradient norm nan"
    ):
        steps.ppo_train(3)


LOWER = "A lower train.learning_rate usually helps"


@pytest.mark.parametrize(
    ("settings", "first", "said"),
    [
        ([], "gradient", LOWER),
        ([], "loss", LOWER),
        ([], "log-probs of the policy", LOWER),
        ([], "weights", LOWER),
        (
            ["train.loss=examples/own_cispo.py:cispo"],
            "gradient",
            "your train.loss=examples/own_cispo.py:cispo",
        ),
        (["train.loss=examples/own_cispo.py:cispo"], "log-probs of the policy", LOWER),
        ([], "rewards", "Repair what grades"),
        ([], "advantages", "They come from the rewards: repair"),
        (
            ["advantage.function=examples/own_maxrl.py:maxrl"],
            "advantages",
            "your advantage.function=",
        ),
        ([], "log-probs of the rollout engine", "The rollout engine returned them"),
        ([], "log-probs of the reference model", "They come from the reference model"),
    ],
)
def test_the_sentence_names_the_probable_cause(settings, first, said):
    status = {"policy_loss": 0.5, "actor_grad_norm": math.nan, ACTOR_NOT_FINITE: first}
    with pytest.raises(TrainingStopped) as stopped:
        check_update(status, POLICY, load_config("cpu_smoke", ["algo=r3", *settings]), step=2)
    sentence = str(stopped.value)
    assert said in sentence and f"the first that was not finite: {first}." in sentence
    assert (LOWER in sentence) is (said == LOWER)


def test_the_critic_has_its_own_sentence():
    config = load_config("cpu_smoke", ["algo=ppo"])
    status = {"critic_loss": 0.5, "critic_grad_norm": math.nan, CRITIC_NOT_FINITE: "gradient"}
    with pytest.raises(
        TrainingStopped,
        match="the critic's loss is 0.5, .* A lower openrlhf.critic.adam.lr usually",
    ):
        check_update(status, CRITIC, config, step=2)
    check_update(status | {"critic_grad_norm": 1.0}, CRITIC, config, step=2)
