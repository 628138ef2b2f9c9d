"""Samples one response, grades it, and keeps what R³ needs of the engine's log-probs.

OpenRLHF loads this file by path (`--train.agent_func_path`,
trainer/ray/vllm_engine.py:_load_agent_executor) and calls `execute` for each response. Answers
utils/agent.py:SingleTurnAgentExecutor, which asks for one log-prob a token only with
importance-sampling correction on, cuts over-long prompts from the left, and continues with reward
None when a reward cannot be fetched.

The returned dict has the upstream keys; everything else is under "r3"."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
from openrlhf.utils.agent import AgentExecutorBase
from vllm.sampling_params import RequestOutputKind

from r3_openrlhf.method.core.entropy import entropy_statistics, topk_entropy_bounds
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.method.types import EntropyBounds, EntropySource
from r3_openrlhf.problems.stops import stop_at, stops_of
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader
from r3_openrlhf.rewards.exchange import Grade, in_group
from r3_openrlhf.rewards.thinking import as_graded, response_text
from r3_openrlhf.runs.endings import Ending, ending_of
from r3_openrlhf.stack.convert import Run, response_of
from r3_openrlhf.stack.engine_faults import checked_logprobs, fault_of, grade_of_fault
from r3_openrlhf.stack.environment import config_from_environment, on_cpu
from r3_openrlhf.stack.partial_rollouts import PAUSED, Piece, run_lengths
from r3_openrlhf.stack.recorded_rollouts import (
    PLAYBACK,
    RECORD,
    folder_of,
    read_experts,
    read_response,
    response_key,
    write_response,
)
from r3_openrlhf.stack.step_metrics import TOOL_COUNTS
from r3_openrlhf.stack.tools.tools import Tools


class Sampled(NamedTuple):
    """What one request of an engine gave.

    experts_TLK: with rollout.routing_replay the experts of the request's tokens and of those that it
    sampled, but for the last one; uint8 or uint16 [tokens - 1, layers, experts of a token]."""

    ids: list[int]
    logprobs_TK: np.ndarray  # float32 [T, 1 + k]
    reason: str
    experts_TLK: np.ndarray | None = None


class Pieces(NamedTuple):
    """A response as it was sampled or given.

    pieces: (token ids, log-probs [T, 1 + k]; None: given), in order. reason: why it ended.
    experts_TLK: of the prompt and the response but for its last token, from the last request."""

    pieces: list[tuple[list[int], np.ndarray | None]]
    reason: str
    experts_TLK: np.ndarray | None = None


class SamplingExecutor(AgentExecutorBase):
    """Samples as R³ needs it."""

    def __init__(self) -> None:
        self.config = config_from_environment()
        self.stops: dict[tuple[str, ...], tuple[list[int], list[str]]] = {}

    def sampling(self, params, tokenizer, *, logprobs: int, stops: Sequence[str] = ()):
        """Copy OpenRLHF's parameters, with this number of most likely tokens, and the run's stops.
        stops: further ones, of tools."""
        params = deepcopy(params)
        params.logprobs = logprobs
        params.flat_logprobs = True  # one list a response, not a dict for each token
        # final only: else an output per token
        params.output_kind = RequestOutputKind.FINAL_ONLY
        params.detokenize = False  # k texts cost more than log-probs; decoded once
        texts = (*self.config.rollout.stop, *stops)
        if texts not in self.stops:
            self.stops[texts] = stops_of(tokenizer, self.config.data, texts)
        stop_at(params, *self.stops[texts])
        return params


class AgentExecutor(SamplingExecutor):
    """Sample and grade responses: an engine's actor makes one and calls it for each."""

    def __init__(self) -> None:
        super().__init__()
        self.grader = make_grader(self.config.reward)
        self.reads_groups = self.config.reward.reads_groups
        by_bounds = (
            self.config.ranks_by_entropy
            and self.config.ranking.entropy_source != EntropySource.EXACT
        )
        self.top_logprobs = (
            TOP_LOGPROBS if by_bounds and "ranking" in self.config.algorithm.mechanisms else 0
        )
        self.record, self.playback = folder_of(RECORD), folder_of(PLAYBACK)
        self._asked: Counter = Counter()  # of (seed of the step, prompt)
        self.tools = Tools(self.config) if self.config.agents.tools else None
        self.keeps_experts = self.config.rollout.routing_replay

    async def execute(
        self,
        prompt,
        label,
        sampling_params,
        max_length: int,
        hf_tokenizer,
        llm_engine,
        images=None,
        *,
        earlier: Sequence[Piece] | None = None,
        policy_step: int | None = None,
    ):
        """Sample, measure, grade. DataError: the prompt leaves no room for the response.

        With rollout.partial, returns a list of pieces where the engine paused the response.

        Args:
            earlier: with rollout.partial, what was sampled before: the response goes on after it.
            policy_step: of the engine's weights. None: what the engine was told."""
        record = Label.from_json(label)
        prefix = record.prefix or []  # exploration.rrl: first tokens, within its limit
        prompt_ids = hf_tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
        max_tokens = sampling_params.max_tokens or max_length - len(prompt_ids)
        if len(prompt_ids) + max_tokens > max_length:
            raise DataError(
                f"the prompt of problem {record.uid} has {len(prompt_ids)} tokens, which with {max_tokens} new ones "
                f"exceeds data.max_len={max_length}; raise data.max_len or lower rollout.max_new_tokens"
            )
        if policy_step is None:
            policy_step = getattr(llm_engine, "policy_step", None)  # fixed in a piece
        data = self.config.data.parts.get(record.source, self.config.data)
        calls = self.tools.calls(hf_tokenizer, data) if self.tools is not None else None
        pieces, finish_reason, experts_TLK = await self._pieces(
            llm_engine,
            prompt,
            prompt_ids,
            prefix,
            sampling_params,
            max_tokens,
            hf_tokenizer,
            calls,
            earlier or (),
        )
        partial: dict = {}
        if earlier is not None:
            assert policy_step is not None  # who asks says it, or has told the engine
            own = list(earlier)
            for ids, found_TK in pieces[bool(prefix) + len(earlier) :]:
                if found_TK is not None:
                    own.append(Piece(ids=ids, logprobs_TK=found_TK, policy_step=policy_step))
            if finish_reason == PAUSED:
                return own
            partial = {"pieces": run_lengths(own, given=len(prefix))}
            policy_step = own[0].policy_step
        # a tool's answer earns nothing: graded is what the policy wrote, after its prefix
        own_ids = [
            *prefix,
            *(one for ids, logprobs_TK in pieces if logprobs_TK is not None for one in ids),
        ]
        response_ids = [one for ids, _ in pieces for one in ids]
        num_sampled = len(own_ids) - len(prefix)
        last_ids, _ = pieces[-1]
        fault = fault_of(finish_reason, num_tokens=len(last_ids))
        truncated = not fault and ending_of(finish_reason) is Ending.CUT
        # without detokenize the end token stays in token_ids, as OpenRLHF trains on it; no text

        started = time.perf_counter()
        bounds = None
        if self.top_logprobs > 0 and not fault:
            logprobs_TK = np.concatenate(
                [logprobs_TK for _, logprobs_TK in pieces if logprobs_TK is not None]
            )
            bounds = self._bounds(
                logprobs_TK[:, 1:], vocab_size=llm_engine.llm.model_config.get_vocab_size()
            )
        seconds = time.perf_counter() - started

        given = len(response_ids) - num_sampled
        counts = (
            dict(zip(TOOL_COUNTS, (calls.number, calls.failed, given), strict=True))
            if calls
            else {}
        )
        text = as_graded(prompt, response_text(hf_tokenizer, own_ids))
        grade: Grade | GradeRequest = grade_of_fault(fault)
        if not fault:
            grade = GradeRequest.about(
                record, text, num_tokens=num_sampled, truncated=truncated, prompt=prompt
            )
        response = response_of(
            prompt_ids,
            [
                Run(ids, None if logprobs_TK is None else logprobs_TK[:, 0])
                for ids, logprobs_TK in pieces
            ],
            grade,
            prompt=prompt,
            label=label,
            truncated=truncated,
            text=response_text(hf_tokenizer, response_ids),
            finish_reason=finish_reason,
            entropy_bounds=bounds,  # four numbers, not two for each token; or None
            seconds=seconds,
            policy_step=policy_step,  # of its weights; None: of the asking step
            tools=counts,
            fault=fault,
            experts=experts_TLK,
            **partial,
        )
        return response if self.reads_groups else (await self.graded([response]))[0]

    async def graded(self, responses: list[dict]) -> list[dict]:
        """Replace the requests in the responses to one prompt by their grades; a reward function may
        look at all of them. What the engine gave up has its grade: none."""
        asked = [response for response in responses if not response["r3"].get("fault")]
        requests = in_group([response["r3"]["grade"] for response in asked])
        grades = await asyncio.gather(*map(self.grader.grade, requests))
        for response, grade in zip(asked, grades, strict=True):
            response |= {"reward": grade.reward, "scores": grade.score}
            response["r3"]["grade"] = grade
        return responses

    async def _pieces(
        self,
        llm_engine,
        prompt: str,
        prompt_ids,
        prefix,
        sampling_params,
        max_tokens: int,
        tokenizer,
        calls,
        earlier: Sequence[Piece] = (),
    ) -> Pieces:
        """Sample the response, in as many requests as it takes."""
        pieces: list[tuple[list[int], np.ndarray | None]] = [(prefix, None)] if prefix else []
        pieces += [(piece.ids, piece.logprobs_TK) for piece in earlier]
        so_far = [one for ids, _ in pieces for one in ids]
        while True:
            if getattr(llm_engine, "is_pausing", False):
                return Pieces(pieces, PAUSED)
            stops = calls.stops if calls is not None else ()
            params = self.sampling(
                sampling_params, tokenizer, logprobs=self.top_logprobs, stops=stops
            )
            params.max_tokens = max_tokens - len(so_far)
            if so_far:  # upstream's 1 (samples_generator.py:234) would forbid to end here
                params.min_tokens = 0
            ids, logprobs_TK, reason, experts_TLK = await self._generate(
                llm_engine, prompt, [*prompt_ids, *so_far], so_far, params
            )
            is_paused = reason == ABORTED and getattr(llm_engine, "is_pausing", False)
            if is_paused and not ids:
                return Pieces(pieces, PAUSED)
            pieces.append((ids, logprobs_TK))
            so_far += ids
            room = max_tokens - len(so_far)
            if is_paused:  # at the limit there is nothing to go on with
                return Pieces(pieces, PAUSED if room > 0 else "length")
            may_go_on = (
                calls is not None
                and ending_of(reason, num_tokens=len(ids)) is Ending.STOP
                and room > 0
            )
            answer = await calls.after(ids, room=room) if may_go_on else None
            if answer is None:
                return Pieces(pieces, reason, experts_TLK)
            if answer:
                pieces.append((answer, None))
                so_far += answer
            if len(so_far) == max_tokens:
                return Pieces(pieces, "length")

    async def _generate(
        self, llm_engine, prompt: str, prompt_ids: list[int], given: list[int], params
    ) -> Sampled:
        """Sample once, from the engine or a recording."""
        path = None
        if params.seed is not None:  # one seed per step arrives; responses must differ
            # after a state, or after a tool's answers
            prompt = f"{prompt}\0{given}" if given else prompt
            self._asked[params.seed, prompt] += 1
            key = response_key(params.seed, self._asked[params.seed, prompt], prompt)
            if self.playback is not None:
                # as many responses at once as with an engine, in the same order
                await asyncio.sleep(0)
                file = self.playback / f"{key}.npz"
                ids, logprobs_TK, reason = read_response(file)
                experts_TLK = read_experts(file) if self.keeps_experts else None
                return Sampled(ids, *checked_logprobs(logprobs_TK, reason), experts_TLK)
            path = self.record and self.record / f"{key}.npz"
            # vLLM 0.29 on a CPU dies of seeded requests in mixed batches (rollout_engine.py)
            seeded = self.config.train.deterministic or not on_cpu()
            params.seed = int(key[:14], 16) if seeded else None
        output = (await llm_engine.generate(prompt_ids, params)).outputs[0]
        ids, reason = list(output.token_ids), str(output.finish_reason)
        logprobs_TK = logprobs_array(output.logprobs, len(ids))  # column 0: sampled
        experts_TLK = None
        if self.keeps_experts:
            experts_TLK = checked_experts(
                output.routed_experts, num_tokens=len(prompt_ids) + len(ids)
            )
        if path is not None:
            write_response(path, ids, logprobs_TK, reason, experts_TLK)
        return Sampled(ids, *checked_logprobs(logprobs_TK, reason), experts_TLK)

    def _bounds(self, logprobs_Tk: np.ndarray, *, vocab_size: int) -> EntropyBounds:
        """Both statistics grow with every H_t: of lower bounds they are lower, of upper upper."""
        lower, upper = (
            entropy_statistics(bound_T, peak_fraction=self.config.ranking.peak_fraction)
            for bound_T in topk_entropy_bounds(logprobs_Tk, vocab_size=vocab_size)
        )
        return EntropyBounds(
            peak_lower=lower[0],
            peak_upper=upper[0],
            global_lower=lower[1],
            global_upper=upper[1],
        )


# vLLM's finish reason of a request that it was told to end (vllm/v1/engine/__init__.py:35)
ABORTED = "abort"
# Most likely tokens per position for bounds on entropy (ranking.entropy_source=auto and topk).
TOP_LOGPROBS = 20


def checked_experts(experts: np.ndarray | None, *, num_tokens: int) -> np.ndarray | None:
    """Return the engine's experts of all tokens but the last, uint8 or uint16 [num_tokens - 1, layers, k].

    None: the engine gave a response up before it had any. An expert's place in a token's set says
    nothing, so each set is sorted: it takes less room then."""
    if experts is None:
        return None
    if len(experts) != num_tokens - 1:
        raise ValueError(
            f"the engine returned the experts of {len(experts)} tokens for {num_tokens} tokens"
        )
    return np.sort(experts, axis=-1)


def logprobs_array(logprobs, num_tokens: int) -> np.ndarray:
    """vLLM's flat log-probs, float32 [T, 1 + k]: the sampled token first, then the likeliest. None becomes NaN."""
    values = np.array(logprobs.logprobs, dtype=np.float32)
    if num_tokens == 0 and len(values) == 0:  # given up before the first token
        return values.reshape(0, 1)
    if num_tokens == 0 or len(values) % num_tokens:
        raise ValueError(f"the engine returned {len(values)} log-probs for {num_tokens} tokens")
    return values.reshape(num_tokens, -1)
