"""Problems in, samples.jsonl out. The engine has all of them from the beginning."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from r3_openrlhf.config import BenchmarkConfig, DataConfig
from r3_openrlhf.evaluation.sample_file import SampledProblem, SampleFile, sampled
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.prompts import prompt_of
from r3_openrlhf.problems.sources import Label

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from r3_openrlhf.evaluation.engine import Engine


class Work(NamedTuple):
    """One problem to be sampled."""

    benchmark: str
    label: Label
    prompt_ids: Sequence[int]
    content: str  # as SampledProblem.content

    @property
    def key(self) -> tuple[str, str]:
        """(benchmark, uid), as SampledProblem.key."""
        return self.benchmark, self.label.uid


@dataclass(slots=True, kw_only=True)
class Speed:
    """The counts of one call of `sample`; zeros when everything was there already."""

    num_responses: int = 0
    num_tokens: int = 0  # of responses
    seconds: float = 0.0  # from the first request to the last response


def make_work(
    benchmark: str, label: Label, data: DataConfig, tokenizer: PreTrainedTokenizerBase
) -> Work:
    """Make the work on a problem. Its prompt is made as in training, from `data`."""
    prompt = prompt_of(tokenizer, data, label)
    digest = hashlib.sha256(
        "\0".join([prompt, label.task, *label.references]).encode()
    ).hexdigest()[:16]
    prompt_ids = tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
    return Work(benchmark=benchmark, label=label, prompt_ids=prompt_ids, content=digest)


def outstanding(work: Iterable[Work], file: SampleFile, *, n_samples: int) -> list[Work]:
    """Return the part of `work` that `file` does not hold. Raises ConfigError when it holds
    another problem under the name of one of them."""
    stored = {problem.key: (problem.content, len(problem.responses)) for problem in file.read()}
    missing = [item for item in work if item.key not in stored]
    for item in work:
        if stored.get(item.key, (item.content, n_samples)) != (item.content, n_samples):
            raise ConfigError(
                f"{file.path} holds problem {item.label.uid} of {item.benchmark} with another prompt, reference or "
                "number of responses; choose another --output"
            )
    return missing


def response_seed(seed: int, work: Work, index: int) -> int:
    """Derive a seed for each response, the same in every run."""
    text = f"{seed}/{work.benchmark}/{work.label.uid}/{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def sample(
    work: Sequence[Work],
    engine: Engine,
    file: SampleFile,
    text_of: Callable[[Sequence[int]], str],
    options: BenchmarkConfig,
    *,
    on_problem: Callable[[Speed], None] = lambda speed: None,
) -> Speed:
    """Write options.n_samples responses to each problem, as soon as it has all of them."""
    speed, started = Speed(), time.perf_counter()
    requests = [
        (
            item.prompt_ids,
            [response_seed(options.seed, item, index) for index in range(options.n_samples)],
        )
        for item in work
    ]
    for number, completions in engine.sample(requests):
        item = work[number]
        responses = [
            sampled(text_of(token_ids), token_ids, reason) for token_ids, reason in completions
        ]
        file.append(
            SampledProblem(
                benchmark=item.benchmark,
                uid=item.label.uid,
                content=item.content,
                responses=responses,
            )
        )
        speed.num_responses += len(responses)
        speed.num_tokens += sum(response.num_tokens for response in responses)
        speed.seconds = time.perf_counter() - started
        on_problem(speed)
    return speed
