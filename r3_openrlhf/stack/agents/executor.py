"""Plays one trajectory in an environment; each turn is a sample of its own, with the prompt that
its memory gives.

OpenRLHF loads this file by path (`--train.agent_func_path`, trainer/ray/vllm_engine.py) and calls
`execute` per trajectory. Answers utils/agent.py:MultiTurnAgentExecutor, which makes one row of all
turns, gives each turn all the context left (:84), adds up rewards (:112), and reports the
truncation of the last turn alone. rollout_engine.py hands the turns on as responses."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.machine.processes.pool import ItemLost
from r3_openrlhf.method.types import TurnFacts, Verdict
from r3_openrlhf.problems.agents.environment import Observation, Step, environment_pool
from r3_openrlhf.problems.agents.trajectory import End, Episode, Trajectory
from r3_openrlhf.problems.prompts import count_tokens, problem_message, render
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.stack.convert import Run, response_of
from r3_openrlhf.stack.rollout_executor import SamplingExecutor, logprobs_array


class Sampled(NamedTuple):
    """One response of the engine."""

    prompt: str
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs_T: np.ndarray  # float32
    text: str
    finish_reason: str
    state: str  # what it acts in

    @property
    def truncated(self) -> bool:
        """True if the token limit stopped it."""
        return self.finish_reason == "length"


class AgentExecutor(SamplingExecutor):
    """Play trajectories: an engine's actor makes one and calls it for each."""

    def __init__(self) -> None:
        super().__init__()
        agents = self.config.agents
        self.environments = environment_pool(str(agents.environment), agents.options, timeout_s=agents.timeout_s)
        self._numbers = itertools.count()

    async def execute(self, prompt, label, sampling_params, max_length: int, hf_tokenizer, llm_engine, **_images):
        """One trajectory: the responses of its turns, in order; without any turn one response
        without tokens.

        An environment that hangs or crashes costs its trajectory, whose turns are then ungraded."""
        task = Label.from_json(label)
        uid = str(next(self._numbers))
        policy_step = getattr(llm_engine, "policy_step", None)
        reflects = self.config.reflection.enabled and prompt != task.problem  # samples_generator.py
        attempt = prompt if reflects else ""
        trajectory, sampled = await self._play(
            task, uid, attempt, sampling_params, max_length, hf_tokenizer, llm_engine
        )
        found = responses_of(
            trajectory, sampled, self.config.agents, prompt=prompt, label=label, pad=hf_tokenizer.pad_token_id
        )
        for response in found:
            response["r3"]["policy_step"] = policy_step
        return found

    async def _play(
        self, task: Label, uid: str, attempt: str, sampling_params, max_length: int, hf_tokenizer, llm_engine
    ) -> tuple[Trajectory, list[Sampled]]:
        """Play the task. Returns the trajectory and a response per turn, plus one whose answer was lost, if any."""
        room = max_length - sampling_params.max_tokens  # of a prompt: a turn may use its tokens
        sampled: list[Sampled] = []

        def final_prompt(message: str) -> str:
            return render(hf_tokenizer, self.config.data, problem_message(self.config.data, message))

        async def ask(item: int | str) -> Step:
            return await asyncio.wrap_future(environment.submit(item))

        environment, episode = self.environments.session(), None
        count = lambda message: count_tokens(hf_tokenizer, final_prompt(message))  # noqa: E731
        begun = partial(Episode, task_uid=task.uid, trajectory_uid=uid, settings=self.config.agents, attempt=attempt)
        try:
            episode = begun((await ask((task.metadata or {})["seed"])).observation)
            while (message := episode.next_prompt(count=count, max_tokens=room)) is not None:
                state = episode.observation.anchor
                one = await self._sample(final_prompt(message), state, sampling_params, hf_tokenizer, llm_engine)
                sampled.append(one)
                episode.advance(await ask(episode.act(one.text, truncated=one.truncated)))
        except ItemLost as lost:
            episode = episode or begun(Observation(text=""))  # it never began
            episode.lose(lost.reason)
        finally:
            environment.close()
        return episode.trajectory(), sampled

    async def _sample(self, prompt: str, state: str, sampling_params, hf_tokenizer, llm_engine) -> Sampled:
        params = self.sampling(sampling_params, hf_tokenizer, logprobs=0)  # the sampled token's alone
        prompt_ids = hf_tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
        output = (await llm_engine.generate(prompt_ids, params)).outputs[0]
        response_ids = list(output.token_ids)
        logprobs_T = logprobs_array(output.logprobs, len(response_ids))[:, 0]
        text = hf_tokenizer.decode(response_ids, skip_special_tokens=True)
        return Sampled(prompt, prompt_ids, response_ids, logprobs_T, text, str(output.finish_reason), state)


def grade_of(trajectory: Trajectory) -> Grade:
    """Return the verdict on a trajectory, shared by its turns; the reward is the environment's sum.
    A lost trajectory is ungraded."""
    if trajectory.end is End.LOST:
        return Grade(verdict=Verdict.UNGRADED, reason=f"environment: {trajectory.reason}", score=None, reward=None)
    reward = sum(trajectory.rewards())
    success = bool(trajectory.success)
    return Grade(
        verdict=Verdict.CORRECT if success else Verdict.WRONG,
        reason="success" if success else "failure" if trajectory.end is End.DONE else str(trajectory.end),
        score=float(success),
        reward=reward,
    )


def responses_of(
    trajectory: Trajectory, sampled: list[Sampled], settings: AgentsConfig, *, prompt: str, label: str, pad: int
) -> list[dict[str, Any]]:
    """One dict per sampled response, for OpenRLHF's generator; the first has the trajectory.

    A trajectory without a response (lost, or no prompt fits) has two padding tokens and no action.
    """
    grade = grade_of(trajectory)
    returns = []
    if trajectory.end is not End.LOST:
        returns = trajectory.returns(gamma=settings.gamma, invalid_penalty=settings.invalid_penalty)
    nothing = Sampled("", [pad, pad], [], np.zeros(0, dtype=np.float32), "", str(trajectory.end), "")
    responses = []
    # of a lost trajectory the last response has no turn: the environment gave no answer
    for index, (one, turn, step_return) in enumerate(
        itertools.zip_longest(sampled or [nothing], trajectory.turns, returns)
    ):
        facts = TurnFacts(
            trajectory=trajectory.uid,
            index=index,
            state=one.state,
            reward=None if turn is None else turn.reward,
            step_return=step_return,
            valid=None if turn is None else turn.valid,
        )
        response = response_of(
            one.prompt_ids,
            [Run(one.response_ids, one.logprobs_T)],
            replace(grade, extracted=(turn.action or None) if turn is not None else None),
            prompt=prompt,
            label=label,
            truncated=one.truncated,
            text=one.text,
            turn_prompt=one.prompt,
            finish_reason=one.finish_reason,
            entropy_bounds=None,
            seconds=0.0,
            turn=facts,
        )
        responses.append(response)
    responses[0]["r3"]["trajectory"] = trajectory
    return responses
