"""Runs an agent of the user's, written for OpenRLHF (openrlhf.train.agent_func_path), and keeps what R³
needs of its row: one response, of which some runs of tokens were sampled and the others given.

OpenRLHF loads this file by path (trainer/ray/vllm_engine.py:_load_agent_executor), and this file the
user's. Answers the engine's loop, which does not know what graded a row, nor which problem it answers."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import pairwise

import numpy as np
from openrlhf.trainer.ray.vllm_engine import _load_agent_executor
from openrlhf.utils.agent import AgentExecutorBase

from r3_openrlhf.method.errors import DataError
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.stops import stop_at, stops_of
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.rewards.thinking import response_text
from r3_openrlhf.stack.convert import Run, response_of
from r3_openrlhf.stack.environment import config_from_environment

NO_ROW = (
    "the agent of openrlhf.train.agent_func_path returned {0}, not one response with observation_tokens, action_ranges, "
    "rollout_log_probs and reward; for prompts of their own in each turn use agents.environment"
)


class AgentExecutor(AgentExecutorBase):
    """Run the user's agent: an engine's actor makes one and calls it for each response."""

    def __init__(self) -> None:
        self.config = config_from_environment()
        self.agent = _load_agent_executor(str(self.config.flag("train.agent_func_path")))

    async def execute(self, prompt, label, sampling_params, max_length: int, hf_tokenizer, llm_engine, images=None):
        """Return the agent's row with its grade. The agent gets the reference answer as its label, several as JSON.

        Raises:
            DataError: it is not one response with a mask and log-probs."""
        record, step = Label.from_json(label), getattr(llm_engine, "policy_step", None)
        answer = record.references[0] if len(record.references) == 1 else json.dumps(record.references)
        params = deepcopy(sampling_params)  # an agent changes its own
        params.logprobs = 1  # what upstream's agents keep log-probs by
        stop_at(params, *stops_of(hf_tokenizer, self.config.data, self.config.rollout.stop))
        row = await self.agent.execute(prompt, answer, params, max_length, hf_tokenizer, llm_engine, images)
        try:
            ids = list(row["observation_tokens"])[:max_length]
            logprobs_T = np.asarray(row["rollout_log_probs"], dtype=np.float32)[: len(ids)]
            edges = [min(edge, len(ids)) for begin_end in row["action_ranges"] for edge in begin_end]
            begin, places = edges[0], [*edges, len(ids)]
            if places != sorted(places) or len(logprobs_T) < edges[-1]:
                raise ValueError("its ranges are not those of its tokens")
            spans = [
                Run(ids[a:b], None if number % 2 else logprobs_T[a:b])
                for number, (a, b) in enumerate(pairwise(places))
            ]
            grade = self._grade(row)
        except (TypeError, ValueError, LookupError) as error:
            raise DataError(NO_ROW.format(f"a {type(row).__name__} ({error})")) from error
        truncated = bool(row.get("truncated"))
        return response_of(
            ids[:begin],
            [span for span in spans if span.ids],
            grade,
            prompt=prompt,
            label=label,
            truncated=truncated,
            text=response_text(hf_tokenizer, ids[begin:]),
            finish_reason="length" if truncated else "stop",
            entropy_bounds=None,
            seconds=0.0,
            policy_step=step,
        )

    def _grade(self, row: dict) -> Grade:
        """Return the agent's reward; correct is a score from reward.correct_from on. Without a reward: ungraded."""
        reward, score = row["reward"], row.get("scores")
        if reward is None or not np.isfinite(float(reward)):
            return Grade(verdict=Verdict.UNGRADED, reason=f"the agent's reward is {reward}", score=None, reward=None)
        score = float(reward if score is None else score)
        correct = score >= self.config.reward.correct_from
        extras: dict[str, float | str] = {name: float(value) for name, value in (row.get("extra_logs") or {}).items()}
        verdict = Verdict.CORRECT if correct else Verdict.WRONG
        reason = "correct" if correct else "wrong"
        return Grade(verdict=verdict, reason=reason, score=score, reward=float(reward), extras=extras)
