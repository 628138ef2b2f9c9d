"""R3PPOTrainer on verl's own trainer, sampler, TransferQueue and loss, on a CPU: what reaches the actor's update.

The worker group alone is made up, because RayResourcePool asks for GPUs (verl/single_controller/ray/base.py:147), and the
responses are written down as AgentLoopWorkerTQ writes them (verl/trainer/ppo/v1/agent_loop_tq.py:150), because its server is
vLLM on a GPU."""

import inspect
import math
import os
import re
import signal
import statistics
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
import transfer_queue as tq
import verl
from hydra import compose, initialize_config_dir
from pytest import approx
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.tensordict_utils import assign_non_tensor, list_of_dict_to_tensordict
from verl.workers.utils.losses import ppo_loss

from r3_openrlhf import ConfigError, Context, uid_of
from r3_openrlhf.method.types import HardBy
from r3_openrlhf.verl import R3PPOTrainer
from tests.ports.trl_runs import tokenizer
from tests.tables import tables_beside

GROUP, LIMIT, END = 4, 3, 13
BASE = [
    "algorithm.adv_estimator=r3",
    "trainer.v1.trainer_mode=r3",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "actor_rollout_ref.rollout.calculate_log_probs=true",
    "data.train_batch_size=2",
    f"data.max_response_length={LIMIT}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.use_dynamic_bsz=true",
    "+r3.replay.mode=replace",
    "+r3.replay.k=1",
    "data.max_prompt_length=2000",
    "+r3.replay.dual_clip=2.5",
    "algorithm.rollout_correction.rollout_is=token",
]
pytestmark = [pytest.mark.slow, pytest.mark.stack]


def config_of(*overrides, base=BASE):
    with initialize_config_dir(f"{verl.__path__[0]}/trainer/config", version_base=None):
        return compose("ppo_trainer", [*base, *overrides])


class Workers:
    """The actor's forward pass: log-probs of -2 and entropies after a 1 and a 2; one rank."""

    _dispatch_info = {"actor": [0]}

    def compute_log_prob(self, batch):
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids"]
        )
        fields = [
            {
                "log_probs": torch.full((len(ids),), -2.0),
                "entropy": (ids == 1) * 2.0 + (ids == 2) * 1.2,
            }
            for ids in data["input_ids"].unbind()
        ]
        tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=list_of_dict_to_tensordict(fields),
        )
        return batch


@pytest.fixture(scope="module")
def queue():
    """Ray and TransferQueue, which takes three of the CPUs."""
    environment, on_term = dict(os.environ), signal.getsignal(signal.SIGTERM)
    ray.init(num_cpus=8, include_dashboard=False)
    tq.init()
    yield
    tq.close()
    ray.shutdown()
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGTERM, on_term)


def prompt(text):
    return [{"role": "user", "content": text}]


def columns(*texts):
    raw = np.empty(len(texts), dtype=object)
    raw[:] = [prompt(text) for text in texts]
    return {
        "raw_prompt": raw,
        "answer": np.array([f"answer of {text}" for text in texts], dtype=object),
    }


def trainer_in(directory, batches, *overrides):
    made = get_trainer_cls("r3")(
        config_of(
            f"trainer.default_local_dir={directory}", "trainer.resume_mode=disable", *overrides
        )
    )
    made.tokenizer, made.actor_rollout_wg, made.steps_per_epoch = tokenizer(), Workers(), 2
    made._load_checkpoint()
    made.global_steps, made.train_dataloader_it = 1, iter(batches)
    return made


def step(trainer, responses):
    """One step from the dataloader to the advantages. responses: text of a prompt -> (ids, reward) of each row. Returns
    prompt -> rows [ids, advantage of each token, old log-probs]."""
    batch = trainer._next_train_batch()
    for row in batch:
        text, ids = row["raw_prompt"][0]["content"], row["raw_prompt"][0]["content"][:4]
        prompt_ids = torch.tensor(trainer.tokenizer(text)["input_ids"])
        fields, keys, tags = [], [], []
        for session, (response, reward) in enumerate(responses[ids]):
            scores = torch.tensor([*[0.0] * (len(response) - 1), reward])
            ones, response = (
                torch.ones(len(response), dtype=torch.int64),
                torch.tensor(response),
            )
            all_ids = torch.cat([prompt_ids, response])
            fields.append(
                dict(
                    prompts=prompt_ids,
                    responses=response,
                    input_ids=all_ids,
                    position_ids=torch.arange(len(all_ids)),
                    response_mask=ones,
                    loss_mask=ones,
                    rm_scores=scores,
                    rollout_log_probs=-ones.float(),
                    uid=row["uid"],
                )
            )
            keys.append(f"{row['uid']}_{session}_0")
            sizes = dict(
                prompt_len=len(prompt_ids), response_len=len(ones), seq_len=len(all_ids)
            )
            tags.append({"status": "success", **sizes})
        tq.kv_batch_put(
            keys=keys,
            partition_id="train",
            fields=list_of_dict_to_tensordict(fields),
            tags=tags,
        )
        done = {"is_prompt": True, "status": "finished", "global_steps": 1}
        tq.kv_put(key=row["uid"], partition_id="train", tag=done)
    batch, metrics = trainer.replay_buffer.sample(trainer.global_steps, "train", 2)
    batch.extra_info["temperature"] = 1.0
    for call in (
        trainer._balance_batch,
        trainer._compute_old_log_prob,
        trainer._compute_advantage,
    ):
        batch = call(batch, metrics=metrics)
    fields = [
        "prompts",
        "responses",
        "advantages",
        "old_log_probs",
        "rollout_log_probs",
        "input_ids",
        "rm_scores",
    ]
    more = ["response_mask", "rollout_is_weights"]
    data = tq.kv_batch_get(
        keys=batch.keys, partition_id="train", select_fields=[*fields, *more]
    )
    rows = {}
    for row, tag in zip(
        zip(*(data[field].unbind() for field in fields), strict=True), batch.tags, strict=True
    ):
        assert (
            tag["seq_len"] == len(row[5])
            and len({len(one) for one in (*row[1:5], row[6])}) == 1
        )
        assert row[5].tolist() == [*row[0].tolist(), *row[1].tolist()]
        rows.setdefault(trainer.tokenizer.decode(row[0]), []).append(
            [one.tolist() for one in row[1:5]]
        )
    check_loss(trainer, data, [row for group in rows.values() for row in group])
    tq.kv_clear(keys=batch.keys, partition_id="train")
    trainer.global_steps += 1
    return rows, metrics


def check_loss(trainer, data, rows, now=-0.5):
    """verl's ppo_loss is the mean over all tokens of max(-r A, -clip(r) A), at most dual_clip |A| where A < 0, times the
    correction of the engine's log-probs, which is 1 for a stored row."""
    losses = []
    for _, advantages, old, sampled in rows:
        for advantage, before, engine in zip(advantages, old, sampled, strict=True):
            ratio = math.exp(now - before)
            loss = max(-ratio * advantage, -min(max(ratio, 0.8), 1.2) * advantage)
            bounded = min(loss, -2.5 * advantage) if advantage < 0 else loss
            losses.append(bounded * min(math.exp(before - engine), 2.0))
    assign_non_tensor(
        data, dp_size=1, batch_num_tokens=len(losses), global_batch_size=len(rows)
    )
    today = torch.nested.as_nested_tensor(
        [torch.full((len(ids),), now) for ids in data["input_ids"].unbind()]
    )
    actor = omega_conf_to_dataclass(trainer.config.actor_rollout_ref.actor)
    loss, _ = ppo_loss(actor, {"log_probs": today}, data)
    assert loss.item() == approx(statistics.fmean(losses), rel=1e-5)


def eq3(*rewards):
    return [
        (reward - statistics.fmean(rewards)) / statistics.stdev(rewards) for reward in rewards
    ]


WRONG = [(ids, 0.0) for ids in ([0, END], [1, 5, 5], [3, 4, END], [2, 2, 5])]
# of the two truncated ones the first has the higher peak, 2.0 over 1.2, and the lower mean, 0.67 under 0.8; the third ends
# with its last token
RANKED = {(0, END): 0.0, (1, 5, 5): 0.25, (3, 4, END): 0.0, (2, 2, 5): -0.25}
ONE_RIGHT = [([9, 9, END], 1.0), *WRONG[1:]]


def test_stored_and_reflection_rows_reach_the_actors_update(queue, tmp_path):
    batches = [columns("1+1=", "2+2="), columns("1+1=", "3+3="), columns("4+4=", "2+2=")]
    trainer = trainer_in(tmp_path, batches)
    assert trainer.config.actor_rollout_ref.actor.clip_ratio_c == 2.5
    rows, _ = step(trainer, {"1+1=": ONE_RIGHT, "2+2=": WRONG})
    assert {text: len(group) for text, group in rows.items()} == {"1+1=": GROUP, "2+2=": GROUP}
    assert sorted(row[1][-1] for row in rows["1+1="]) == approx(
        sorted(eq3(1, 0, 0, 0)), abs=1e-5
    )
    rows, metrics = step(trainer, {"1+1=": WRONG, "3+3=": WRONG})
    (recalled,) = [row for row in rows["1+1="] if row[0] == [9, 9, END]]
    others = {tuple(row[0]): row[1:3] for row in rows["1+1="] if row is not recalled}
    assert len(others) == 3 and all(set(old) == {-2.0} for _, old in others.values())
    assert recalled[2] == recalled[3] == [-1.0] * 3
    # one of the four failures gave way
    both = all(ids in others for ids in RANKED if ids[-1] == 5)
    expected = eq3(*(value * both for value in RANKED.values()), 1.0)
    assert recalled[1] == approx([expected[-1]] * 3)
    for ids, value in zip(RANKED, expected, strict=False):
        assert ids not in others or others[ids][0] == approx([value] * len(ids))
    assert (
        metrics["r3/replay/recalled"] == 1
        and {tuple(row[0]): row[1][0] for row in rows["3+3="]} == RANKED
    )
    # the second epoch: 2+2 was never right, and its reflection prompt takes the turn of 4+4
    rows, metrics = step(trainer, {"4+4=": WRONG, "2+2=": WRONG})
    (reflection,) = rows.keys() - {"2+2="}
    assert reflection.startswith("2+2=") and len(rows) == 2 and len(rows[reflection]) == GROUP
    assert metrics["r3/reflection/groups"] == 1
    assert trainer.r3.history.last_step == 3
    reflected = trainer.r3.history.means(HardBy.SUCCESS_RATE, contexts=[Context.REFLECTION])
    assert reflected == {uid_of({"prompt": prompt("2+2=")}): 0.0}
    trainer.r3.history.close()
    with resumed(tmp_path, 2) as history:
        assert history.last_step == 2
    with pytest.raises(
        ConfigError,
        match="history.sqlite ends at step 2, before the checkpoint's 5; put the history",
    ):
        resumed(tmp_path, 5)


def resumed(directory, step):
    """The history of a trainer that continues from this step's checkpoint."""
    late = get_trainer_cls("r3")(config_of(f"trainer.default_local_dir={directory}"))
    late.actor_rollout_wg = type("Loads", (), {"load_checkpoint": lambda *_, **__: None})()
    (directory / f"global_step_{step}").mkdir()
    (directory / "latest_checkpointed_iteration.txt").write_text(str(step))
    late._load_checkpoint()
    return late.r3.history


def test_the_command_of_the_example_is_taken():
    words = (Path(__file__).parents[2] / "examples" / "verl_r3.sh").read_text().split()
    overrides = [
        word
        for word in words
        if re.match(r"\+?[a-z_3]+[.][a-z_.3]+=", word) and "$" not in word
    ]
    config = config_of(*overrides, base=[])
    validate_config(config, use_reference_policy=False, use_critic=False)
    made = R3PPOTrainer(config)
    assert made.r3.settings.replay.k == 2 and made.correct_from == 1.0 and len(overrides) > 12


REFUSED = tables_beside(__file__)["refused"]


@pytest.mark.parametrize("override", REFUSED)
def test_what_verl_cannot_carry_is_refused_by_name(override):
    with pytest.raises(ConfigError, match=REFUSED[override]):
        R3PPOTrainer(config_of(override))


@pytest.mark.parametrize(
    "name",
    ["_balance_batch", "_compute_old_log_prob", "_compute_advantage", "_fetch_one_gen_batch"],
)
def test_verl_still_has_each_hook_with_these_parameters(name):
    ours, theirs = (
        inspect.signature(getattr(one, name)).parameters for one in (R3PPOTrainer, PPOTrainer)
    )
    assert list(ours)[:3] == list(theirs)[: len(list(ours)[:3])]


def test_a_step_calls_the_hooks_in_this_order():
    source = inspect.getsource(PPOTrainer._step_once)
    calls = [
        "replay_buffer.sample",
        "_balance_batch",
        "_compute_old_log_prob",
        "_compute_advantage",
        "_update_actor",
    ]
    assert sorted(calls, key=source.index) == calls
    assert "batch_keys=batch.keys" in inspect.getsource(PPOTrainer._compute_advantage)
