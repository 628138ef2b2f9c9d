"""An agent file of OpenRLHF (openrlhf.train.agent_func_path): its row is one response with given tokens, by upstream's own loop."""

import asyncio
from types import SimpleNamespace

import pytest
from openrlhf.trainer.ray import vllm_engine
from vllm import SamplingParams

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError, DataError
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.arguments import openrlhf_arguments
from r3_openrlhf.stack.convert import rollout_from_response
from r3_openrlhf.stack.work import work_of

pytestmark = pytest.mark.stack
LABEL = Label(uid="u1", problem="1+1", references=["2"], task="exact").to_json()
TURNS = """
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

class Guess(AgentInstanceBase):
    '''Says "no" until the label is written.'''
    def __init__(self):
        self.turns = 0

    async def step(self, states, **_):
        self.turns += 1
        right = states["action_text"] == states["label"]
        return {"rewards": torch.tensor(float(right)), "scores": torch.tensor([float(right)]), "done": right,
                "environment_feedback": "" if right else "no", "extra_logs": {"turns": torch.tensor(self.turns)}}

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(Guess)
"""
ROW = """
from openrlhf.utils.agent import AgentExecutorBase

class AgentExecutor(AgentExecutorBase):
    async def execute(self, *_):
        return {row}
"""


class Engine:
    """Writes these texts, a byte a token; the log-prob of each is -1/2."""

    policy_step = 7

    def __init__(self, tokenizer, *texts):
        self.tokenizer, self.texts = tokenizer, list(texts)

    async def generate(self, prompt_ids, params, **_):
        text = self.texts.pop(0)
        ids = self.tokenizer(text=text, add_special_tokens=False)["input_ids"]
        assert params.logprobs == 1 and params.stop_token_ids == [5]
        logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in ids]
        output = SimpleNamespace(
            token_ids=ids, text=text, logprobs=logprobs, finish_reason="stop"
        )
        return SimpleNamespace(outputs=[output])


def respond(tmp_path, in_a_job, tokenizer, agent, *texts, algo="r3", max_length=64):
    (tmp_path / "agent.py").write_text(agent)
    settings = [
        f"algo={algo}",
        "run_dir=/runs/x",
        f"openrlhf.train.agent_func_path={tmp_path}/agent.py",
    ]
    config = load_config("grpo_cpu_smoke" if algo != "r3" else "cpu_smoke", settings)
    in_a_job(config)
    arguments = openrlhf_arguments(
        config, RunDirectory("/runs/x"), model_dir="/m", platform="cpu"
    )
    executor = vllm_engine._load_agent_executor(
        arguments[arguments.index("--train.agent_func_path") + 1]
    )
    params, engine = (
        SamplingParams(max_tokens=9, logprobs=None, stop_token_ids=[5]),
        Engine(tokenizer, *texts),
    )
    tokenizer.chat_template = None
    return asyncio.run(executor.execute("ab", LABEL, params, max_length, tokenizer, engine))


@pytest.mark.parametrize("algo", ["r3", "grpo", "ppo", "dapo"])
def test_what_the_agent_answers_is_given(tmp_path, in_a_job, byte_tokenizer, algo):
    response = respond(tmp_path, in_a_job, byte_tokenizer, TURNS, "3", "44", "2", algo=algo)
    rollout = rollout_from_response(
        response, context=Context.PLAIN, step=response["r3"]["policy_step"], epoch=1
    )
    assert (
        byte_tokenizer.decode(rollout.response_ids.tolist()) == "3no44no2" == rollout.text
        and rollout.policy_step == 7
    )
    assert rollout.given == ((1, 3), (5, 7)) and rollout.num_sampled_tokens == 4
    assert rollout.response_logprobs.tolist() == [-0.5, 0, 0, -0.5, -0.5, 0, 0, -0.5]
    assert (rollout.verdict, rollout.reward, rollout.extras) == (
        Verdict.CORRECT,
        1.0,
        {"turns": 3.0},
    )
    assert rollout.uid == "u1" and not rollout.truncated


def test_a_row_is_cut_where_upstream_cuts_it(tmp_path, in_a_job, byte_tokenizer):
    response = respond(tmp_path, in_a_job, byte_tokenizer, TURNS, "3", "4" * 11, max_length=16)
    rollout = rollout_from_response(response, context=Context.PLAIN, step=0, epoch=1)
    assert (
        rollout.num_tokens == 14
        and rollout.given == ((1, 3),)
        and rollout.verdict is Verdict.WRONG
    )


GOOD = (
    "observation_tokens=[1, 2, 3], action_ranges=[(1, 3)], rollout_log_probs=[0.0, -1.0, -1.0]"
)


@pytest.mark.parametrize(
    ("reward", "verdict"),
    [("0.5", Verdict.WRONG), ("None", Verdict.UNGRADED), ("float('nan')", Verdict.UNGRADED)],
)
def test_a_reward_that_is_none_is_not_zero(tmp_path, in_a_job, byte_tokenizer, reward, verdict):
    response = respond(
        tmp_path, in_a_job, byte_tokenizer, ROW.format(row=f"dict({GOOD}, reward={reward})")
    )
    assert response["r3"]["grade"].verdict is verdict and (response["reward"] is None) == (
        verdict is Verdict.UNGRADED
    )


@pytest.mark.parametrize(
    "row",
    [
        "None",
        "[]",
        f"[dict({GOOD}, reward=1.0)]",
        "dict(reward=1.0)",
        f"dict({GOOD})",
        f"dict({GOOD}, reward='much')",
    ]
    + [
        f"dict(dict({GOOD}, reward=1.0), {other})"
        for other in (
            "rollout_log_probs=None",
            "rollout_log_probs=[0.0]",
            "action_ranges=[]",
            "action_ranges=[(2, 1)]",
            "action_ranges=[1]",
            "action_ranges=[(1, 3), (2, 3)]",
            "observation_tokens=None",
            "extra_logs={'a': 'b'}",
        )
    ],
)
def test_another_row_is_refused_with_the_key_to_use(tmp_path, in_a_job, byte_tokenizer, row):
    with pytest.raises(DataError, match="is not one response with .* use agents.environment"):
        respond(tmp_path, in_a_job, byte_tokenizer, ROW.format(row=row))


def test_a_file_that_is_none_is_refused_before_a_start():
    config = load_config(
        "cpu_smoke", ["run_dir=unused", "openrlhf.train.agent_func_path=nowhere.py"]
    )
    with pytest.raises(ConfigError, match="'nowhere.py', which is no Python file"):
        work_of(config).check(config)
    for other in ("agents.tools=[python]", "reward.urls=[http://localhost:9]"):
        with pytest.raises(
            ConfigError, match="is set and .*, but that file's agent .* use one of the two"
        ):
            load_config(
                "cpu_smoke",
                ["run_dir=unused", f"openrlhf.train.agent_func_path={__file__}", other],
            )
