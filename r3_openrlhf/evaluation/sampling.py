"""Problems in, samples.jsonl out: the engine is full from the first request to the last, while grading continues."""

from __future__ import annotations

import hashlib
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from r3_openrlhf.config import BenchmarkConfig, DataConfig
from r3_openrlhf.evaluation.grading_thread import GradingThread
from r3_openrlhf.evaluation.sample_file import SampledProblem, SampledResponse, SampleFile, cut, graded
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.prompts import prompt_of
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.rewards.exchange import Grade

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from r3_openrlhf.evaluation.engine import Completion

Shortened = tuple[str, Sequence[int], Future[Grade]]  # text, token ids, the grade that is under way
SILENCE_S = 30.0  # of servers that are waited for: they are gone
LOOK_S = 1.0
AWAY = frozenset({"unreachable", "unavailable", "closed"})  # reasons that say nothing about a response
WINDOW = 64  # problems whose shortened responses are being graded at a time

GONE = Grade(verdict=Verdict.UNGRADED, reason="unreachable", score=None, reward=None)


class SamplingEngine(Protocol):
    """What evaluation.engine.Engine does."""

    def submit(self, key: str, prompt_ids: Sequence[int], *, seed: int) -> None:
        """Queue one response under `key`."""

    @property
    def is_busy(self) -> bool:
        """True if a response is unfinished."""

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
    ungraded: SampleFile | None = None,
    on_response: Callable[[int], None] = lambda num_tokens: None,
    on_problem: Callable[[SampledProblem], None] = lambda problem: None,
) -> Speed:
    """options.n_samples responses to each problem. A problem is written when its last response has been graded; to
    `ungraded`, if there is one, where nothing answers that grades."""
    started = ended = time.perf_counter()
    unfinished: dict[int, dict[int, SampledResponse]] = {}  # place in `work` -> what has been graded of it
    for number, item in enumerate(work):
        unfinished[number] = {}
        for index in range(options.n_samples):
            engine.submit(f"{number}/{index}", item.prompt_ids, seed=response_seed(options.seed, item, index))
    answers: queue.SimpleQueue[tuple[str, Future[Grade]]] = queue.SimpleQueue()
    asked: dict[str, tuple[Completion, str]] = {}
    num_responses = num_tokens = 0
    while unfinished:
        waited_since = time.monotonic()
        if engine.is_busy:
            for completion in engine.finished():
                ended = time.perf_counter()
                num_responses += 1
                num_tokens += len(completion.token_ids)
                on_response(len(completion.token_ids))
                asked[completion.key] = completion, _ask_for_grade(completion, work, grading, tokenizer, answers)
        while not answers.empty() or (unfinished and not engine.is_busy):
            try:
                key, future = answers.get(timeout=LOOK_S)
                waited_since, grades = time.monotonic(), {key: future.result()}
            except queue.Empty:
                if time.monotonic() - waited_since < SILENCE_S or not grading.is_silent(SILENCE_S):
                    continue
                grades = dict.fromkeys(asked, GONE)
            for key, grade in grades.items():
                completion, text = asked.pop(key)
                number, index = map(int, key.split("/"))
                responses = unfinished[number]
                responses[index] = graded(text, completion.token_ids, completion.finish_reason, grade)
                if len(responses) == options.n_samples:
                    item = work[number]
                    problem = SampledProblem(
                        benchmark=item.benchmark,
                        uid=item.label.uid,
                        content=item.content,
                        responses=[responses[i] for i in range(options.n_samples)],
                    )
                    (ungraded if ungraded is not None and is_away(problem) else file).append(problem)
                    del unfinished[number]
                    on_problem(problem)
    return Speed(num_responses=num_responses, num_tokens=num_tokens, seconds=ended - started if work else 0.0)


def is_away(problem: SampledProblem) -> bool:
    """True if a response is ungraded for a reason outside of the response."""
    return any(one.verdict is Verdict.UNGRADED and one.reason in AWAY for one in problem.responses)


def grade_kept(
    missing: Sequence[Work], ungraded: SampleFile, file: SampleFile, grading: GradingThread
) -> tuple[list[Work], int]:
    """Grade what an earlier call sampled and could not have graded; the grades go to `file`.

    Returns the part of `missing` that was never sampled, and how many problems still have no grade."""
    left = {item.key: item for item in missing}
    is_gone, num_left = False, 0
    for problem in ungraded.read():
        item = left.get(problem.key)
        if item is None or item.content != problem.content:
            continue
        del left[problem.key]
        if is_gone:
            num_left += 1
            continue
        futures = [
            grading.submit(item.label, one.text, num_tokens=len(one.token_ids), truncated=one.truncated)
            for one in problem.responses
        ]
        began = time.monotonic()
        while not is_gone and wait(futures, timeout=LOOK_S).not_done:
            is_gone = time.monotonic() - began >= SILENCE_S and grading.is_silent(SILENCE_S)
        if is_gone:
            num_left += 1
            continue
        responses = [
            graded(one.text, one.token_ids, one.finish_reason, future.result())
            for one, future in zip(problem.responses, futures, strict=True)
        ]
        again = replace(problem, responses=responses)
        if is_away(again):
            is_gone, num_left = True, num_left + 1
        else:
            file.append(again)
    return list(left.values()), num_left


def _ask_for_grade(completion, work, grading, tokenizer, answers) -> str:
    label = work[int(completion.key.partition("/")[0])].label
    # with detokenize off the end token stays in token_ids; it is no text (as in training)
    text = grading.text_of(tokenizer, completion.token_ids)
    future = grading.submit(
        label, text, num_tokens=len(completion.token_ids), truncated=completion.finish_reason == "length"
    )
    future.add_done_callback(lambda done: answers.put((completion.key, done)))
    return text


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
            text = grading.text_of(tokenizer, token_ids)
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
