"""A log-prob of the engine that is missing, NaN or infinite: the response is ungraded, and the engine is named."""

import asyncio
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from vllm import SamplingParams

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.stack.convert import rollout_from_response
from r3_openrlhf.stack.engine_faults import NOT_FINITE, checked_logprobs
from r3_openrlhf.stack.experience_maker import StockExperienceMaker
from r3_openrlhf.stack.rollout_executor import logprobs_array
from tests.stack import scripted_agents
from tests.stack.scripted_endings import LABEL, Ends

pytestmark = pytest.mark.stack
WRONG = [None, math.nan, math.inf, -math.inf]


class Spoils:
    """An engine that returns `value` as the log-prob of the second token of its answer `when`, for the sampled token or another."""

    def __init__(self, engine, value, *, place=0, when=0):
        self.engine, self.value, self.place, self.when, self.llm = (
            engine,
            value,
            place,
            when,
            Ends.llm,
        )
        self.texts, self.asked = getattr(engine, "texts", []), engine.asked
        self.number = 0

    async def generate(self, prompt_ids, params):
        output = await self.engine.generate(prompt_ids, params)
        flat = output.outputs[0].logprobs
        if self.number == self.when:
            flat.logprobs[1 + params.logprobs + self.place] = self.value
        self.number += 1
        return output


def respond(executor, tokenizer, text, value, **where):
    engine = Spoils(Ends(tokenizer, text, "stop"), value, **where)
    made = asyncio.run(
        executor.execute("ab", LABEL, SamplingParams(max_tokens=900), 999, tokenizer, engine)
    )
    if executor.reads_groups:
        (made,) = asyncio.run(executor.graded([made]))
    return engine, made, rollout_from_response(made, context=Context.PLAIN, step=0, epoch=1)


@pytest.mark.parametrize("value", WRONG)
def test_the_response_is_ungraded_and_names_the_engine(ends_executor, byte_tokenizer, value):
    _, made, rollout = respond(ends_executor, byte_tokenizer, "So \\boxed{42}", value)
    assert (rollout.verdict, rollout.reward, made["reward"]) == (Verdict.UNGRADED, None, None)
    assert (
        rollout.reason == "engine: log-probs not finite" and not ends_executor.grader.requests
    )
    assert (
        "the rollout engine in process" in rollout.extras["error"]
        and "not finite" in rollout.extras["error"]
    )
    assert np.isfinite(rollout.response_logprobs).all() and rollout.response_logprobs[1] == 0
    assert rollout.response_logprobs[0] == -0.5 and np.isfinite(made["rollout_log_probs"]).all()


@pytest.mark.parametrize("value", WRONG)
def test_a_token_that_was_not_sampled_may_be_impossible(ends_executor, byte_tokenizer, value):
    ends_executor.top_logprobs = 3
    ends_executor._bounds = lambda logprobs_Tk, **_: None
    _, _, rollout = respond(ends_executor, byte_tokenizer, "So \\boxed{42}", value, place=3)
    assert (rollout.verdict is Verdict.CORRECT) is (value == -math.inf)


@pytest.mark.parametrize("value", [*WRONG, -0.5])
def test_no_tool_is_called_by_such_a_response(tool_executor, byte_tokenizer, value):
    engine, made, rollout = respond(
        tool_executor, byte_tokenizer, "```python\nprint(6*7)\n```\n", value
    )
    assert (rollout.reason == "engine: log-probs not finite") is (value != -0.5)
    assert (made["r3"]["tools"]["r3/tools/calls"] > 0) == (engine.number > 1) == (value == -0.5)


@pytest.mark.parametrize("value", WRONG)
def test_such_a_turn_is_not_acted(agent_executor, byte_tokenizer, monkeypatch, value):
    plain = scripted_agents.Scripted
    monkeypatch.setattr(
        scripted_agents, "Scripted", lambda *args: Spoils(plain(*args), value, when=1)
    )
    responses, _ = scripted_agents.play(agent_executor(), byte_tokenizer, "up", "up")
    trajectory = responses[0]["r3"]["trajectory"]
    assert trajectory.reason == "engine: log-probs not finite" and len(trajectory.turns) == 1
    assert [one["r3"]["grade"].verdict for one in responses] == [Verdict.UNGRADED] * 2
    assert all(np.isfinite(one["rollout_log_probs"]).all() for one in responses)


def test_good_log_probs_stay_as_they_are():
    values_TK = np.array([[-0.5, -0.5, -np.inf], [0.0, -1.0, -2.0]], dtype=np.float32)
    found_TK, reason = checked_logprobs(values_TK, "stop")
    assert found_TK is values_TK and reason == "stop"
    empty = checked_logprobs(np.zeros((0, 1), dtype=np.float32), "abort")
    assert empty[0].shape == (0, 1) and empty[1] == "abort"
    missing = logprobs_array(SimpleNamespace(logprobs=[-1.0, None]), 2)
    assert checked_logprobs(missing, "stop")[1] == NOT_FINITE


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("is_masked", [False, True])
def test_log_probs_of_the_policy_that_are_not_finite_are_no_broken_sync(
    monkeypatch, value, is_masked
):
    logprobs = torch.tensor([[-1.0, -1.0], [-1.0, value]])
    experience = SimpleNamespace(
        action_log_probs=logprobs, action_mask=torch.tensor([[1, 1], [1, int(not is_masked)]])
    )
    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", lambda *_: [experience])
    made = object.__new__(StockExperienceMaker)
    made.step, made.config = 2, R3Config(run_dir="unused")
    if is_masked:
        assert made.make_experience([]) == [experience]
        return
    with pytest.raises(
        TrainingStopped,
        match="step 3: log-probs of the policy are not finite before the update",
    ) as e:
        made.make_experience([])
    assert "sync" not in str(e.value)
