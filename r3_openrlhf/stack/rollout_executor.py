"""Samples one response, grades it, and keeps what R³ needs of the engine's log-probs.

OpenRLHF loads this file by path (`--train.agent_func_path`,
trainer/ray/vllm_engine.py:_load_agent_executor) and calls `execute` for each response. Answers
utils/agent.py:SingleTurnAgentExecutor, which asks for one log-prob a token only with
importance-sampling correction on, cuts over-long prompts from the left, and continues with reward
None when a reward cannot be fetched.

The returned dict has the upstream keys; everything else is under "r3"."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
from openrlhf.utils.agent import AgentExecutorBase

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.core.entropy import entropy_statistics, topk_entropy_bounds
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.method.types import EntropyBounds, EntropySource
from r3_openrlhf.problems.stops import stop_at, stops_of
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader
from r3_openrlhf.rewards.exchange import in_group
from r3_openrlhf.rewards.thinking import as_graded, response_text
from r3_openrlhf.stack.environment import config_from_environment, on_cpu
from r3_openrlhf.stack.recorded_rollouts import PLAYBACK, RECORD, Recording


class SamplingExecutor(AgentExecutorBase):
    """Samples as R³ needs it."""

    def __init__(self) -> None:
        from vllm.sampling_params import RequestOutputKind  # logprobs_array does without vllm

        self.output_kind = RequestOutputKind.FINAL_ONLY
        self.config = config_from_environment()
        self.stops: tuple[list[int], list[str]] | None = None  # of the first request's tokenizer

    def sampling(self, params, tokenizer, *, logprobs: int):
        """A copy of OpenRLHF's parameters with this number of most likely tokens, and the run's stops."""
        params = deepcopy(params)
        params.logprobs = logprobs
        params.flat_logprobs = True  # one list a response, not a dict for each token
        params.output_kind = self.output_kind  # final only: else an output per token
        params.detokenize = False  # k texts cost more than log-probs; decoded once
        if self.stops is None:
            self.stops = stops_of(tokenizer, self.config.data, self.config.rollout.stop)
        stop_at(params, *self.stops)
        return params


class AgentExecutor(SamplingExecutor):
    """Sample and grade responses: an engine's actor makes one and calls it for each."""

    def __init__(self) -> None:
        super().__init__()
        self.grader = make_grader(self.config.reward)
        self.reads_groups = self.config.reward.reads_groups
        self.top_logprobs = top_logprobs_wanted(self.config)
        self.vocab_size: int | None = None
        self.record, self.playback = Recording.named_by(RECORD), Recording.named_by(PLAYBACK)
        self._asked: Counter = Counter()

    async def execute(self, prompt, label, sampling_params, max_length: int, hf_tokenizer, llm_engine, images=None):
        """Sample, measure, grade. DataError: the prompt leaves no room for the response."""
        record = Label.from_json(label)
        given = record.prefix or []  # exploration.rrl: first tokens, within its limit
        prompt_ids = hf_tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
        max_tokens = sampling_params.max_tokens or max_length - len(prompt_ids)
        if len(prompt_ids) + max_tokens > max_length:
            raise DataError(
                f"the prompt of problem {record.uid} has {len(prompt_ids)} tokens, which with {max_tokens} new ones "
                f"exceeds data.max_len={max_length}; raise data.max_len or lower rollout.max_new_tokens"
            )
        params = self.sampling(sampling_params, hf_tokenizer, logprobs=self.top_logprobs)
        params.max_tokens = max_tokens - len(given)
        if given:  # upstream's 1 (samples_generator.py:234) would forbid to end here
            params.min_tokens = 0
        policy_step = getattr(llm_engine, "policy_step", None)  # fixed in a response
        output, key = await self._generate(llm_engine, prompt, prompt_ids + given, given, params)
        response_ids = list(output.token_ids)
        truncated = output.finish_reason == "length"
        # without detokenize the end token stays in token_ids, as OpenRLHF trains on it; no text
        text = response_text(hf_tokenizer, given + response_ids)

        started = time.perf_counter()
        logprobs_TK = logprobs_array(output.logprobs, len(response_ids))  # column 0: sampled
        bounds = None
        if self.top_logprobs > 0:
            bounds = self._bounds(logprobs_TK[:, 1:], vocab_size=self.engine_vocab_size(llm_engine))
        seconds = time.perf_counter() - started
        if self.record is not None:
            self.record.write(key, response_ids, logprobs_TK, output.finish_reason)

        num_tokens = len(given) + len(response_ids)
        text_graded = as_graded(prompt, text)
        request = GradeRequest.about(record, text_graded, num_tokens=num_tokens, truncated=truncated, prompt=prompt)
        # Arrays, not upstream's lists: they become tensors without a loop over tokens.
        observation_ids = [*prompt_ids, *given, *response_ids]
        start, length = len(prompt_ids) + len(given), len(observation_ids)
        rollout_logprobs = np.zeros(length, dtype=np.float32)
        rollout_logprobs[start:] = logprobs_TK[:, 0]
        response = {
            "prompt": prompt,
            "label": label,
            "images": None,
            "mm_train_inputs": None,
            "observation_tokens": np.array(observation_ids, dtype=np.int32),
            "action_ranges": [(start, length)],
            "rollout_log_probs": rollout_logprobs,
            "truncated": truncated,
            "extra_logs": {},
            "r3": {
                "grade": request,
                "text": text,
                "finish_reason": str(output.finish_reason),
                "entropy_bounds": bounds,  # four numbers, not two for each token; or None
                "seconds": seconds,
                "policy_step": policy_step,  # of its weights; None: of the asking step
            },
        }
        return response if self.reads_groups else (await self.graded([response]))[0]

    async def graded(self, responses: list[dict]) -> list[dict]:
        """Replace the requests in the responses to one prompt by their grades; a reward function may
        look at all of them."""
        requests = in_group([response["r3"]["grade"] for response in responses])
        grades = await asyncio.gather(*map(self.grader.grade, requests))
        for response, grade in zip(responses, grades, strict=True):
            response |= {"reward": grade.reward, "scores": grade.score}
            response["r3"]["grade"] = grade
        return responses

    async def _generate(self, llm_engine, prompt: str, prompt_ids: list[int], given: list[int], params):
        """(completion, key of its recording). From the engine, or from a recording."""
        if given:  # one problem may be asked from its beginning and from a state in one step
            prompt = f"{prompt}\0{given}"
        if self.playback is not None:
            played = self.playback.key(params.seed, prompt)
            token_ids, logprobs_TK, finish_reason = await self.playback.read(played)
            flat = SimpleNamespace(logprobs=logprobs_TK.ravel())
            return SimpleNamespace(token_ids=token_ids, logprobs=flat, finish_reason=finish_reason), played
        key = self.record.key(params.seed, prompt) if self.record is not None else None
        if params.seed is not None:  # one seed per step arrives; responses must differ
            # vLLM 0.29 on a CPU dies of seeded requests in mixed batches (rollout_engine.py)
            seeded = self.config.train.deterministic or not on_cpu()
            params.seed = self._sample_seed(params.seed, prompt) if seeded else None
        request_output = await llm_engine.generate(prompt_ids, params)
        return request_output.outputs[0], key

    def _bounds(self, logprobs_Tk: np.ndarray, *, vocab_size: int) -> EntropyBounds:
        """Both statistics grow with every H_t: of lower bounds they are lower, of upper upper."""
        lower_T, upper_T = topk_entropy_bounds(logprobs_Tk, vocab_size=vocab_size)
        fraction = self.config.ranking.peak_fraction
        peak_lower, global_lower = entropy_statistics(lower_T, peak_fraction=fraction)
        peak_upper, global_upper = entropy_statistics(upper_T, peak_fraction=fraction)
        return EntropyBounds(
            peak_lower=peak_lower, peak_upper=peak_upper, global_lower=global_lower, global_upper=global_upper
        )

    def _sample_seed(self, step_seed: int, prompt: str) -> int:
        self._asked[step_seed, prompt] += 1
        text = f"{step_seed}/{self._asked[step_seed, prompt]}/{prompt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

    def engine_vocab_size(self, llm_engine) -> int:
        """Width of the engine's logits, for the tail bound; at least the tokenizer's size."""
        if self.vocab_size is None:
            self.vocab_size = llm_engine.llm.model_config.get_vocab_size()
        return self.vocab_size


# Most likely tokens per position for bounds on entropy (ranking.entropy_source=auto and topk).
TOP_LOGPROBS = 20


def top_logprobs_wanted(config: R3Config) -> int:
    """k: nothing but a ranking by bounds needs more than the sampled token's log-prob."""
    needed = (
        "ranking" in config.algorithm.mechanisms
        and config.ranks_by_entropy
        and config.ranking.entropy_source != EntropySource.EXACT
    )
    return TOP_LOGPROBS if needed else 0


def logprobs_array(logprobs, num_tokens: int) -> np.ndarray:
    """vLLM's flat log-probs, float32 [T, 1 + k]: the sampled token first, then the likeliest."""
    values = np.array(logprobs.logprobs, dtype=np.float32)
    if num_tokens == 0 or len(values) % num_tokens:
        raise ValueError(f"the engine returned {len(values)} log-probs for {num_tokens} tokens")
    return values.reshape(num_tokens, -1)
