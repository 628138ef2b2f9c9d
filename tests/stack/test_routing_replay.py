"""The engine's experts on their way: from the engine to the rollout, its row, the micro-batches and the store."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from transformers import AutoConfig
from vllm import SamplingParams

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Context
from r3_openrlhf.runs.first_page import algorithm_lines
from r3_openrlhf.runs.models.routers import ROUTERS, Experts, experts_of
from r3_openrlhf.stack.convert import rollout_from_response
from r3_openrlhf.stack.expert_routing import RoutingCounts, experts_tensor
from r3_openrlhf.stack.policy_update import R3ReplayBuffer
from r3_openrlhf.stack.recorded_rollouts import PLAYBACK, RECORD
from r3_openrlhf.stack.rollout_executor import AgentExecutor, checked_experts
from r3_openrlhf.stack.start_checks import check_context
from tests.stack.experience_makers import (
    OFF,
    C,
    Ours,
    Stock,
    W,
    config_with,
    group,
    maker,
    sample,
)
from tests.stack.mixed_rows import experience_of, mixed_rows
from tests.stack.scripted_endings import LABEL, Ends, Graders

pytestmark = pytest.mark.stack
LAYERS, TOP_K = 3, 2


def experts_for(tokens, *, first=0):
    """Experts of so many tokens, each token's different from the next one's."""
    numbers = np.arange(first, first + tokens * LAYERS * TOP_K) % 251
    return np.sort(numbers.reshape(tokens, LAYERS, TOP_K).astype(np.uint8), axis=-1)


# ---- from the engine to the rollout


class Routes(Ends):
    """An engine that returns experts, each set in descending order."""

    def __init__(self, *arguments, lost=0):
        super().__init__(*arguments)
        self.lost = lost

    async def generate(self, prompt_ids, params):
        found = await super().generate(prompt_ids, params)
        tokens = len(prompt_ids) + len(self.ids) - 1 - self.lost
        found.outputs[0].routed_experts = experts_for(tokens)[..., ::-1]
        return found


@pytest.fixture
def executor_of(in_a_job):
    def make(*settings):
        in_a_job(load_config("cpu_smoke", ["run_dir=unused", *settings]))
        made = AgentExecutor()
        made.grader = Graders()
        return made

    return make


def respond(executor, tokenizer, engine, **sampling):
    params = SamplingParams(max_tokens=9, **sampling)
    made = asyncio.run(executor.execute("ab", LABEL, params, 99, tokenizer, engine))
    if executor.reads_groups:
        (made,) = asyncio.run(executor.graded([made]))
    return rollout_from_response(made, context=Context.PLAIN, step=0, epoch=1)


def test_a_rollout_has_the_experts_of_all_tokens_but_the_last(executor_of, byte_tokenizer):
    executor = executor_of("rollout.routing_replay=true")
    rollout = respond(executor, byte_tokenizer, Routes(byte_tokenizer, "42!", "stop"))
    tokens = len(rollout.prompt_ids) + len(rollout.response_ids)
    assert rollout.experts.tolist() == experts_for(tokens - 1).tolist()


def test_a_run_without_the_key_keeps_none(executor_of, byte_tokenizer):
    rollout = respond(executor_of(), byte_tokenizer, Routes(byte_tokenizer, "42!", "stop"))
    assert rollout.experts is None


def test_an_engine_that_returns_fewer_is_noticed(executor_of, byte_tokenizer):
    executor = executor_of("rollout.routing_replay=true")
    engine = Routes(byte_tokenizer, "42!", "stop", lost=1)
    with pytest.raises(ValueError, match="the experts of 3 tokens for 5 tokens"):
        respond(executor, byte_tokenizer, engine)


def test_a_response_that_was_given_up_at_once_has_none():
    assert checked_experts(None, num_tokens=2) is None


def test_a_recording_has_the_experts(executor_of, byte_tokenizer, tmp_path, monkeypatch):
    settings = ("rollout.routing_replay=true", "train.deterministic=true")
    monkeypatch.setenv(RECORD, str(tmp_path))
    engine = Routes(byte_tokenizer, "42!", "stop")
    recorded = respond(executor_of(*settings), byte_tokenizer, engine, seed=3)
    monkeypatch.delenv(RECORD)
    monkeypatch.setenv(PLAYBACK, str(tmp_path))
    played = respond(executor_of(*settings), byte_tokenizer, engine, seed=3)
    assert played.experts.tolist() == recorded.experts.tolist()
    assert engine.asked == 1
    # a recording from before, or a run that asks for none
    (file,) = tmp_path.glob("*.npz")
    with np.load(file) as found:
        arrays = {name: found[name] for name in found if name != "experts"}
    np.savez(file, **arrays)
    played = respond(executor_of(*settings), byte_tokenizer, engine, seed=3)
    assert played.experts is None


# ---- micro-batches


@pytest.mark.parametrize("packing", [False, True])
def test_each_row_keeps_its_experts_through_the_micro_batches(packing):
    """Joined for the passes, taken apart in the buffer, dealt anew for the update."""
    rows = []
    for row in mixed_rows(6, seed=2):
        one = experience_of(row)
        length = len(row["tokens"])
        one.mm_train_inputs = [experts_tensor(experts_for(length - 1, first=length))]
        rows.append(one)
    rows[3].mm_train_inputs = [None]
    wanted = {tuple(one.sequences[0].tolist()): one.mm_train_inputs[0] for one in rows}
    joined = [
        Experience.concat_experiences(rows[:2], 0),
        Experience.concat_experiences(rows[2:], 0),
    ]
    buffer = R3ReplayBuffer(1, packing_samples=packing)
    for one in joined:
        buffer.append(one)
    buffer.lay_out(windows=1, micro_batch_size=2, seed=5)
    seen = 0
    for number in range(len(buffer)):
        batch = buffer.collate_fn([buffer[number]])
        for ids, mask, experts in zip(
            batch.sequences, batch.attention_mask, batch.mm_train_inputs, strict=True
        ):
            expected = wanted[tuple(ids[mask.bool()].tolist())]
            assert experts is expected or torch.equal(experts, expected)
            seen += 1
    assert seen == len(rows)


# ---- the experience maker


class Ranks:
    """The policy's ranks: what their passes counted."""

    def async_run_method(self, name):
        assert name == "pop_routing"
        return [
            RoutingCounts(tokens=6, differing_tokens=3, choices=12, differing_choices=3),
            RoutingCounts(tokens=4, differing_tokens=0, choices=8, differing_choices=1),
        ]


@pytest.fixture
def counting(monkeypatch):
    """A maker with routing replay. `Ours` without models is not asked for counts: its passes are made up."""
    monkeypatch.setattr("ray.get", lambda found: found)

    def make(*stored, **sections):
        from r3_openrlhf.method.history.store import HistoryStore

        store = HistoryStore.open(":memory:")
        store.commit_step(3, 1, list(stored))
        config = config_with(**({"rollout": {"routing_replay": True}} | sections))
        made = maker(Ours, history=store, config=config)
        made.actor_model_group = Ranks()
        return made

    return make


def fresh_rows(*verdicts):
    rows = group(*verdicts)
    for row in rows:
        row.r3_rollout.experts = experts_for(row.r3_rollout.num_tokens + 1)
        row.mm_train_inputs = [experts_tensor(row.r3_rollout.experts)]
    return rows


def stored_success(**changes):
    stored = sample(C, tokens=(9, 9), step=2).r3_rollout
    stored.experts = experts_for(3, first=7)
    for name, value in changes.items():
        setattr(stored, name, value)
    return stored


def experts_of_rows(experiences):
    return {
        index: experience.mm_train_inputs[place]
        for experience in experiences
        for place, index in enumerate(experience.index)
    }


def test_a_recalled_row_has_the_stored_experts(counting):
    made = counting(stored_success())
    found = experts_of_rows(made.make_experience_batch(fresh_rows(W, W, W, W)))
    assert found[4].tolist() == experts_for(3, first=7).tolist()
    assert all(found[row] is not None for row in range(4))
    assert made.metrics["r3/routing/recalled_own"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"experts": None},  # stored before there were any
        {"context": Context.REFLECTION, "prompt_ids": np.array([1, 8], np.int32)},
    ],
    ids=["without", "after another prompt"],
)
def test_a_recalled_row_chooses_itself_where_no_experts_are_its_own(counting, changes):
    made = counting(stored_success(**changes), replay={"include_reflection": True})
    found = experts_of_rows(made.make_experience_batch(fresh_rows(W, W, W, W)))
    assert found[4] is None
    assert made.metrics["r3/replay/recalled"] == 1
    assert made.metrics["r3/routing/recalled_own"] == 1


def test_the_metrics_by_hand(counting):
    made = counting(**OFF)
    made._routing_metrics = {}
    rows = fresh_rows(W, C)
    rows[1].mm_train_inputs = [None]
    made._count_routing(made.split_rollout_samples(rows))
    assert made._routing_metrics == {
        "r3/routing/given_rows": 0.5,
        "r3/routing/differing_tokens": 0.3,
        "r3/routing/differing_choices": 0.2,
    }


def test_a_reference_gets_no_experts(counting, monkeypatch):
    asked = []
    monkeypatch.setattr(
        Stock,
        "_dispatch_forward",
        lambda _self, group, _sync, **given: asked.append((group, given)),
    )
    monkeypatch.setattr(
        "openrlhf.trainer.ppo_utils.experience_maker.RemoteExperienceMaker._dispatch_forward",
        lambda _self, group, _sync, **given: asked.append((group, given)),
    )
    made = counting()
    reference = SimpleNamespace()
    for one in (made.actor_model_group, reference):
        made._dispatch_forward(one, False, sequences=[1], mm_train_inputs_list=[[None]])
    (_, of_policy), (_, of_reference) = asked
    assert of_policy == {"sequences": [1], "mm_train_inputs_list": [[None]]}
    assert of_reference == {"sequences": [1]}


# ---- settings


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["rollout.partial=1"], "rollout.partial is 1.0, but the experts of a paused response"),
        (["openrlhf.train.agent_func_path=x.py"], "that agent returns no experts"),
        (["openrlhf.ds.lora.rank=8"], "openrlhf.ds.lora.rank is 8, but the experts of its"),
        (["openrlhf.ds.ring_attn_size=2"], "openrlhf.ds.ring_attn_size is 2"),
        (["openrlhf.ds.tensor_parallel_size=2"], "openrlhf.ds.tensor_parallel_size is 2"),
        (
            ["openrlhf.train.async_enable=true", "cluster.gpus_per_node=2"],
            "openrlhf.train.async_enable is on",
        ),
    ],
)
def test_what_has_no_experts_is_refused_in_a_sentence(overrides, sentence):
    with pytest.raises(ConfigError) as error:
        load_config("cpu_smoke", ["run_dir=unused", "rollout.routing_replay=true", *overrides])
    assert "rollout.routing_replay is true and " in str(error.value)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("experiment", "sentence"),
    [
        ("agent_smoke", "the experts of turns are not kept"),
        ("tools_smoke", "the experts of a response in pieces are not kept"),
    ],
)
def test_environments_and_tools_are_refused(experiment, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_config(experiment, ["run_dir=unused", "rollout.routing_replay=true"])


def test_flags_that_are_off_are_no_reason():
    flags = ["openrlhf.ds.lora.rank=0", "openrlhf.ds.ring_attn_size=1"]
    load_config("cpu_smoke", ["run_dir=unused", "rollout.routing_replay=true", *flags])


def with_routing(tmp_path, kind, **more):
    AutoConfig.for_model(kind, **more).save_pretrained(tmp_path)
    config = load_config("cpu_smoke", ["run_dir=unused", "rollout.routing_replay=true"])
    return check_context(config, str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("qwen2", "has no experts; use rollout.routing_replay=false"),
        ("mixtral", "is of no type whose router is known"),
    ],
)
def test_a_model_without_a_known_router_is_refused(tmp_path, kind, sentence):
    with pytest.raises(ConfigError, match=sentence):
        with_routing(tmp_path, kind)


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_model_with_a_known_router_is_taken(tmp_path, kind):
    with_routing(tmp_path, kind)


def test_the_bytes_of_a_token():
    """Qwen3-30B-A3B: 48 layers, 8 of 128 experts, a byte each."""
    config = AutoConfig.for_model(
        "qwen3_moe", num_hidden_layers=48, num_experts=128, num_experts_per_tok=8
    )
    assert experts_of(config) == Experts(128, 8, 48)
    assert experts_of(config).bytes_per_token == 384
    assert Experts(257, 8, 48).bytes_per_token == 768
    assert experts_of(AutoConfig.for_model("qwen2")) is None


def test_the_first_page_says_it():
    for is_on in (True, False):
        config = config_with(rollout={"routing_replay": is_on})
        assert any(line.startswith("routing:") for line in algorithm_lines(config)) == is_on
