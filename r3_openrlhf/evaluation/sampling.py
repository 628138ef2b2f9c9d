"""Problems in, samples.jsonl out: the engine is full from the first request to the last, grading goes on beside it."""

from __future__ import annotations

import hashlib
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from r3_openrlhf.config import BenchmarkConfig, DataConfig
from r3_openrlhf.evaluation.grading_thread import GradingThread
from r3_openrlhf.evaluation.sample_file import SampledProblem, SampledResponse, SampleFile, cut, graded
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Grade
from r3_openrlhf.problems.prompts import prompt_of
from r3_openrlhf.problems.sources import Label

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from r3_openrlhf.evaluation.engine import Completion

Shortened = tuple[str, Sequence[int], Future[Grade]]  # text, token ids, the grade that is under way
WINDOW = 64  # problems whose shortened responses are being graded at a time


class SamplingEngine(Protocol):
    """What evaluation.engine.Engine does."""

    def submit(self, key: str, prompt_ids: Sequence[int], *, seed: int) -> None:
        """Queue one response under `key`."""

    @property
    def is_busy(self) -> bool:
        """Is a response unfinished?"""

    def finished(self) -> list[Completion]:
        """The responses that ended in its next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One problem to be sampled."""

    benchmark: str
    label: Label
    prompt_ids: Sequence[int]
    content: str  # as SampledProblem.content

    @property
    def key(self) -> tuple[str, str]:
        """(benchmark, uid), as SampledProblem.key."""
        return self.benchmark, self.label.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What one call of `sample` did; zeros when everything was there already."""

    num_responses: int
    num_tokens: int  # of responses
    seconds: float  # from the first request to the last response


def make_work(benchmark: str, label: Label, data: DataConfig, tokenizer: PreTrainedTokenizerBase) -> Work:
    """The prompt of training: template, system prompt, worked examples and chat template of `data`."""
    prompt = prompt_of(tokenizer, data, label)
    digest = hashlib.sha256("\0".join([prompt, label.task, *label.references]).encode()).hexdigest()[:16]
    prompt_ids = tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
    return Work(benchmark=benchmark, label=label, prompt_ids=prompt_ids, content=digest)


def outstanding(work: Iterable[Work], file: SampleFile, *, n_samples: int) -> list[Work]:
    """The part of `work` that `file` does not hold. Raises ConfigError when it holds another problem under the name of
    one of them."""
    stored = {problem.key: (problem.content, len(problem.responses)) for problem in file.read()}
    missing = []
    for item in work:
        found = stored.get(item.key)
        if found is None:
            missing.append(item)
        elif found != (item.content, n_samples):
            raise ConfigError(
                f"{file.path} holds problem {item.label.uid} of {item.benchmark} with another prompt, reference or "
                "number of responses; choose another --output"
            )
    return missing


def response_seed(seed: int, work: Work, index: int) -> int:
    """A seed of its own for each response, the same in every run."""
    text = f"{seed}/{work.benchmark}/{work.label.uid}/{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def sample(
    work: Sequence[Work],
    engine: SamplingEngine,
    grading: GradingThread,
    file: SampleFile,
    tokenizer: PreTrainedTokenizerBase,
    options: BenchmarkConfig,
    *,
    on_response: Callable[[int], None] = lambda num_tokens: None,
    on_problem: Callable[[SampledProblem], None] = lambda problem: None,
) -> Speed:
    """options.n_samples responses to each problem. A problem is written when its last response has been graded."""
    started = ended = time.perf_counter()
    unfinished: dict[int, dict[int, SampledResponse]] = {}  # place in `work` -> what has been graded of it
    for number, item in enumerate(work):
        unfinished[number] = {}
        for index in range(options.n_samples):
            engine.submit(f"{number}/{index}", item.prompt_ids, seed=response_seed(options.seed, item, index))
    answers: queue.SimpleQueue[tuple[Completion, str, Future[Grade]]] = queue.SimpleQueue()
    num_responses = num_tokens = 0
    while unfinished:
        if engine.is_busy:
            for completion in engine.finished():
                ended = time.perf_counter()
                num_responses += 1
                num_tokens += len(completion.token_ids)
                on_response(len(completion.token_ids))
                _ask_for_grade(completion, work, grading, tokenizer, answers)
        while not answers.empty() or (unfinished and not engine.is_busy):
            completion, text, future = answers.get()
            number, index = map(int, completion.key.split("/"))
            responses = unfinished[number]
            responses[index] = graded(text, completion.token_ids, completion.finish_reason, future.result())
            if len(responses) == options.n_samples:
                item = work[number]
                problem = SampledProblem(
                    benchmark=item.benchmark,
                    uid=item.label.uid,
                    content=item.content,
                    responses=[responses[i] for i in range(options.n_samples)],
                )
                file.append(problem)
                del unfinished[number]
                on_problem(problem)
    return Speed(num_responses=num_responses, num_tokens=num_tokens, seconds=ended - started if work else 0.0)


def _ask_for_grade(completion, work, grading, tokenizer, answers) -> None:
    label = work[int(completion.key.partition("/")[0])].label
    # with detokenize off the end token stays in token_ids; it is no text (as in training)
    text = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
    future = grading.submit(
        label, text, num_tokens=len(completion.token_ids), truncated=completion.finish_reason == "length"
    )
    future.add_done_callback(lambda done: answers.put((completion, text, done)))


def shorten(
    problems: Iterable[SampledProblem],
    limit: int,
    labels: dict[tuple[str, str], Label],
    grading: GradingThread,
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[SampledProblem]:
    """The same problems as if they had been sampled with the token limit `limit`; shortened responses are graded anew."""
    window: deque[tuple[SampledProblem, list[SampledResponse | Shortened]]] = deque()
    for problem in problems:
        if len(window) == WINDOW:
            yield _collect(*window.popleft())
        parts: list[SampledResponse | Shortened] = []
        for response in problem.responses:
            token_ids, truncated = cut(response, limit)
            if len(token_ids) == len(response.token_ids):
                parts.append(response)
                continue
            text = tokenizer.decode(token_ids, skip_special_tokens=True)
            future = grading.submit(labels[problem.key], text, num_tokens=len(token_ids), truncated=truncated)
            parts.append((text, token_ids, future))
        window.append((problem, parts))
    while window:
        yield _collect(*window.popleft())


def _collect(problem: SampledProblem, parts: list[SampledResponse | Shortened]) -> SampledProblem:
    responses = [
        part if isinstance(part, SampledResponse) else graded(part[0], part[1], "length", part[2].result())
        for part in parts
    ]
    return SampledProblem(benchmark=problem.benchmark, uid=problem.uid, content=problem.content, responses=responses)
