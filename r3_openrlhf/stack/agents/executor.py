"""Plays one trajectory in an environment; each turn is a sample of its own, with the prompt that
its memory gives.

OpenRLHF loads this file by path (`--train.agent_func_path`, trainer/ray/vllm_engine.py) and calls
`execute` per trajectory. Answers utils/agent.py:MultiTurnAgentExecutor, which makes one row of all
turns, gives each turn all the context left (:84), adds up rewards (:112), and reports the
truncation of the last turn alone. rollout_engine.py hands the turns on as responses."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.machine.processes.pool import ItemLost
from r3_openrlhf.method.types import TurnFacts, Verdict
from r3_openrlhf.problems.agents.environment import Observation, Step, environment_pool
from r3_openrlhf.problems.agents.trajectory import End, Episode, Trajectory
from r3_openrlhf.problems.prompts import count_tokens, problem_message, render
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.runs.endings import Ending, ending_of
from r3_openrlhf.stack.convert import Run, response_of
from r3_openrlhf.stack.engine_faults import checked_logprobs, fault_of, grade_of_fault, is_fault
from r3_openrlhf.stack.rollout_executor import SamplingExecutor, logprobs_array

# of a response without tokens
NOTHING = {"text": "", "turn_prompt": "", "entropy_bounds": None, "seconds": 0.0, "fault": ""}


class AgentExecutor(SamplingExecutor):
    """Play trajectories: an engine's actor makes one and calls it for each."""

    def __init__(self) -> None:
        super().__init__()
        agents = self.config.agents
        self.environments = environment_pool(
            str(agents.environment), agents.options, timeout_s=agents.timeout_s
        )
        self._numbers = itertools.count()

    async def execute(
        self,
        prompt,
        label,
        sampling_params,
        max_length: int,
        hf_tokenizer,
        llm_engine,
        images=None,  # noqa: ARG002
    ):
        """Play one trajectory. Returns the responses of its turns, in order; the first has the
        trajectory. If it is lost or no prompt fits, returns one response of two padding tokens
        without an action.

        An environment that hangs or crashes costs its trajectory, whose turns are then ungraded; so does
        an engine that gives up a turn, which is not acted."""
        trajectory, responses = await self._play(
            prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine
        )
        if not responses:
            pad = hf_tokenizer.pad_token_id
            nothing = Run([], np.zeros(0, dtype=np.float32))
            responses = [
                response_of(
                    [pad, pad],
                    [nothing],
                    None,
                    prompt=prompt,
                    label=label,
                    truncated=False,
                    **NOTHING,
                )
            ]
            responses[0]["r3"]["finish_reason"] = str(trajectory.end)
        complete(responses, trajectory, self.config.agents)
        for response in responses:
            response["r3"]["policy_step"] = getattr(llm_engine, "policy_step", None)
        return responses

    async def _play(
        self,
        prompt: str,
        label: str,
        sampling_params,
        max_length: int,
        hf_tokenizer,
        llm_engine,
    ) -> tuple[Trajectory, list[dict[str, Any]]]:
        """Play the task. Returns the trajectory and a response per turn, plus one whose answer was lost, if any."""
        task, responses = Label.from_json(label), []
        room = max_length - sampling_params.max_tokens  # of a prompt: a turn may use its tokens
        # samples_generator.py
        reflects = self.config.reflection.enabled and prompt != task.problem

        def final_prompt(message: str) -> str:
            return render(
                hf_tokenizer, self.config.data, problem_message(self.config.data, message)
            )

        async def ask(item: int | str) -> Step:
            return await asyncio.wrap_future(environment.submit(item))

        environment, episode = self.environments.session(), None
        count = lambda message: count_tokens(hf_tokenizer, final_prompt(message))  # noqa: E731
        begun = partial(
            Episode,
            task_uid=task.uid,
            trajectory_uid=str(next(self._numbers)),
            settings=self.config.agents,
            attempt=prompt if reflects else "",
        )
        try:
            episode = begun((await ask((task.metadata or {})["seed"])).observation)
            while (message := episode.next_prompt(count=count, max_tokens=room)) is not None:
                sample = partial(
                    response_of, prompt=prompt, label=label, state=episode.observation.anchor
                )
                one = await self._sample(
                    final_prompt(message), sample, sampling_params, hf_tokenizer, llm_engine
                )
                responses.append(one)
                if one["r3"]["fault"]:
                    episode.lose(one["r3"]["fault"])
                    break
                episode.advance(
                    await ask(episode.act(one["r3"]["text"], truncated=one["truncated"]))
                )
        except ItemLost as lost:
            episode = episode or begun(Observation(text=""))  # it never began
            episode.lose(lost.reason)
        finally:
            environment.close()
        return episode.trajectory(), responses

    async def _sample(
        self, prompt: str, made: Callable[..., dict], sampling_params, hf_tokenizer, llm_engine
    ) -> dict:
        # the sampled token's alone
        params = self.sampling(sampling_params, hf_tokenizer, logprobs=0)
        prompt_ids = hf_tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
        output = (await llm_engine.generate(prompt_ids, params)).outputs[0]
        ids = list(output.token_ids)
        logprobs_T1, reason = checked_logprobs(
            logprobs_array(output.logprobs, len(ids)), str(output.finish_reason)
        )
        fault = fault_of(reason, num_tokens=len(ids))
        run = Run(ids, logprobs_T1[:, 0])
        text = hf_tokenizer.decode(ids, skip_special_tokens=True)
        facts = {"turn_prompt": prompt, "text": text, "finish_reason": reason, "fault": fault}
        return made(
            prompt_ids,
            [run],
            None,
            truncated=not fault and ending_of(reason) is Ending.CUT,
            **NOTHING | facts,
        )


def complete(
    responses: list[dict[str, Any]], trajectory: Trajectory, settings: AgentsConfig
) -> None:
    """Put the trajectory's verdict, rewards and turns into the responses."""
    grade, returns = grade_of(trajectory), []
    if trajectory.end is not End.LOST:
        returns = trajectory.returns(
            gamma=settings.gamma, invalid_penalty=settings.invalid_penalty
        )
    # of a lost trajectory the last response has no turn: the environment gave no answer
    rows = itertools.zip_longest(responses, trajectory.turns, returns)
    for index, (response, turn, step_return) in enumerate(rows):
        facts = TurnFacts(
            trajectory=trajectory.uid,
            index=index,
            state=response["r3"].get("state", ""),
            reward=None if turn is None else turn.reward,
            step_return=step_return,
            valid=None if turn is None else turn.valid,
        )
        response |= {"reward": grade.reward, "scores": grade.score}
        extracted = (turn.action or None) if turn is not None else None
        response["r3"] |= {"grade": replace(grade, extracted=extracted), "turn": facts}
    responses[0]["r3"]["trajectory"] = trajectory


def grade_of(trajectory: Trajectory) -> Grade:
    """Return the verdict on a trajectory, shared by its turns; the reward is the environment's sum.
    A lost trajectory is ungraded."""
    if trajectory.end is End.LOST:
        if is_fault(trajectory.reason):
            return grade_of_fault(trajectory.reason)
        return Grade(
            verdict=Verdict.UNGRADED,
            reason=f"environment: {trajectory.reason}",
            score=None,
            reward=None,
        )
    reward, success = sum(trajectory.rewards()), bool(trajectory.success)
    return Grade(
        verdict=Verdict.CORRECT if success else Verdict.WRONG,
        reason="success"
        if success
        else "failure"
        if trajectory.end is End.DONE
        else str(trajectory.end),
        score=float(success),
        reward=reward,
    )
