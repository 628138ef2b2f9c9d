"""Run an agent that was written for OpenRLHF (openrlhf.train.agent_func_path), and keep what R³ needs
of its row: one response, of which some runs of tokens were sampled and the others given.

OpenRLHF loads this file by path (trainer/ray/vllm_engine.py:_load_agent_executor), and this file the
agent's. Answers the rows of such agents, which have no uid, no verdict and log-probs only if asked."""

import json
import math
from copy import deepcopy
from itertools import cycle, pairwise

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


class AgentExecutor(AgentExecutorBase):
    """Run the agent: an engine's actor makes one and calls it for each response."""

    def __init__(self) -> None:
        self.config = config_from_environment()
        self.agent = _load_agent_executor(str(self.config.flag("train.agent_func_path")))

    async def execute(
        self,
        prompt,
        label,
        sampling_params,
        max_length: int,
        hf_tokenizer,
        llm_engine,
        images=None,
    ):
        """Return the agent's row, cut at max_length. Its label is the reference answer; of several, their JSON.

        Raises:
            DataError: it is not one response with a mask and log-probs."""
        record, policy_step = Label.from_json(label), getattr(llm_engine, "policy_step", None)
        answer = (
            record.references[0]
            if len(record.references) == 1
            else json.dumps(record.references)
        )
        params = deepcopy(sampling_params)  # agents change theirs
        params.logprobs = 1  # else upstream's agents keep none
        stop_at(params, *stops_of(hf_tokenizer, self.config.data, self.config.rollout.stop))
        row = await self.agent.execute(
            prompt, answer, params, max_length, hf_tokenizer, llm_engine, images
        )
        try:
            ids = list(row["observation_tokens"])[:max_length]
            logprobs_T = np.array(row["rollout_log_probs"], dtype=np.float32)
            edges = [min(edge, len(ids)) for span in row["action_ranges"] for edge in span] + [
                len(ids)
            ]
            # sampled and given in turn
            spans = list(zip(pairwise(edges), cycle((True, False)), strict=False))
            if edges != sorted(edges) or len(spans) % 2 or len(logprobs_T) < edges[-2]:
                raise ValueError("its ranges or log-probs are not those of its tokens")
            grade = self._grade(row)
        except (TypeError, ValueError, LookupError) as error:
            raise DataError(
                f"the agent of openrlhf.train.agent_func_path returned a {type(row).__name__} that is not one response with "
                f"observation_tokens, action_ranges, rollout_log_probs and reward ({error}); for turns with prompts of their "
                "own use agents.environment"
            ) from error
        runs = [
            Run(ids[a:b], logprobs_T[a:b] if sampled else None)
            for (a, b), sampled in spans
            if a < b
        ]
        truncated = bool(row.get("truncated"))
        return response_of(
            ids[: edges[0]],
            runs,
            grade,
            prompt=prompt,
            label=label,
            truncated=truncated,
            text=response_text(hf_tokenizer, ids[edges[0] :]),
            finish_reason="length" if truncated else "stop",
            entropy_bounds=None,
            seconds=0.0,
            policy_step=policy_step,
        )

    def _grade(self, row: dict) -> Grade:
        """Return the agent's reward; correct is a score from reward.correct_from on. Ungraded without a reward."""
        reward, score = row["reward"], row.get("scores")
        if reward is None or not math.isfinite(reward):
            return Grade(
                verdict=Verdict.UNGRADED,
                reason=f"the agent's reward is {reward}",
                score=None,
                reward=None,
            )
        score = float(reward if score is None else score)
        verdict = Verdict.CORRECT if score >= self.config.reward.correct_from else Verdict.WRONG
        extras = {name: float(value) for name, value in (row.get("extra_logs") or {}).items()}
        return Grade(
            verdict=verdict,
            reason=str(verdict),
            score=score,
            reward=float(reward),
            extras={**extras},
        )
