"""Engine iterations of a step that pauses its longest responses, and of one that waits for them.

python benchmarks/partial_rollouts.py
python benchmarks/partial_rollouts.py --partial 1 1.7 --sigma 0.7
python benchmarks/partial_rollouts.py --vllm tiny --groups 16 --samples 8 --limit 128 --steps 16 --fill 4

The loop is the run's own (r3_openrlhf/stack/partial_rollouts.py). The engines are played: each iteration gives one
token to each running response, places that become free go to who waits, and lengths are lognormal, cut at the limit. With --vllm
they are a real vLLM that samples tokens of a model: it is told how many each response has, a pause aborts what runs,
and what goes on is asked with its tokens so far behind the prompt. Its iterations are calls of the engine's step.
The first steps fill the engine and are left out, as are the last ones of the run, which draw no new problem."""

from __future__ import annotations

import argparse
import heapq
import math
import os
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

from r3_openrlhf.machine.cpu.cpu_platform import (  # noqa: E402
    ENVIRONMENT,
    KV_CACHE_BYTES,
    is_needed,
)
from r3_openrlhf.method.types import Context  # noqa: E402
from r3_openrlhf.runs.models.locate import resolve_model  # noqa: E402
from r3_openrlhf.stack.partial_rollouts import (  # noqa: E402
    Drawn,
    Group,
    PartialSampler,
    Piece,
    num_sampled,
    run_lengths,
)


class PlayedEngines:
    """One engine without a model. Response `sample` to a prompt has a length of its own, whenever it is sampled.

    Args:
        length_of: (prompt, sample) -> tokens.
        places: responses that run at once."""

    def __init__(self, length_of, *, places: int) -> None:
        self.length_of = length_of
        self.places = places
        self.clock = 0  # iterations so far
        self.policy_step = 0
        self.taken = 0  # places, times iterations
        self._waiting: deque = deque()
        self._running: list = []  # a heap of (iteration of its end, order, group, place, iteration of its begin)
        self._open: dict[int, int] = {}  # group number -> responses that are not whole
        self._groups: dict[int, Group] = {}
        self._found: dict[int, list] = {}
        self._order = 0

    def ask(self, group: Group) -> None:
        self._groups[group.number] = group
        self._found[group.number] = [None] * len(group.samples)
        self._open[group.number] = group.num_unfinished
        for place, sample in enumerate(group.samples):
            if isinstance(sample, list):
                self._waiting.append((group.number, place, num_sampled(sample)))
        self._fill()

    def answers(self) -> list:
        """Iterate until a group is whole."""
        whole: list[int] = []
        while not whole:
            end = self._running[0][0]
            self.taken += len(self._running) * (end - self.clock)
            self.clock = end
            while self._running and self._running[0][0] == end:
                _, _, number, place, begin = heapq.heappop(self._running)
                self._found[number][place] = self._response(number, place, end - begin)
                self._open[number] -= 1
                if not self._open[number]:
                    whole.append(number)
            self._fill()
        return [self._answer(number) for number in sorted(whole)]

    def pause(self) -> list:
        for _, _, number, place, begin in self._running:
            self._found[number][place] = self._pieces(number, place, self.clock - begin)
        self._running, self._waiting = [], deque()
        return [self._answer(number) for number in sorted(self._open)]

    def _answer(self, number: int) -> tuple:
        del self._open[number]
        return self._groups.pop(number), self._found.pop(number)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.places:
            number, place, before = self._waiting.popleft()
            left = self.length_of(self._groups[number].prompt, place) - before
            self._order += 1
            entry = (self.clock + left, self._order, number, place, self.clock)
            heapq.heappush(self._running, entry)

    def _pieces(self, number: int, place: int, count: int) -> list:
        before = self._groups[number].samples[place]
        if not count:
            return before
        # no tokens and log-probs are kept: only how many there are
        piece = Piece(
            ids=range(count), logprobs_TK=np.zeros((count, 0)), policy_step=self.policy_step
        )
        return [*before, piece]

    def _response(self, number: int, place: int, count: int) -> dict:
        return _response_of(self._pieces(number, place, count))


class VllmEngines:
    """A vLLM in this process. Each response has the tokens of `length_of`, whatever they are."""

    def __init__(self, model: str, length_of, *, places: int, limit: int) -> None:
        self.length_of = length_of
        self.places = places
        self.clock = 0  # iterations so far
        self.policy_step = 0
        self.taken = 0  # running responses, times iterations
        self._groups: dict[int, Group] = {}
        self._new_ids: dict[str, list[int]] = {}  # of each request that runs or waits
        self._open: dict[int, int] = {}  # group number -> responses that are not whole
        self._found: dict[int, list] = {}
        self._engine = _vllm_engine(model, places=places, max_model_len=limit + PROMPT_TOKENS)

    def ask(self, group: Group) -> None:
        self._groups[group.number] = group
        self._open[group.number] = group.num_unfinished
        self._found[group.number] = [None] * len(group.samples)
        for place, sample in enumerate(group.samples):
            if not isinstance(sample, list):
                continue
            before = [token for piece in sample for token in piece.ids]
            left = self.length_of(group.prompt, place) - len(before)
            request = f"{group.number}/{place}"
            self._new_ids[request] = []
            self._engine.add_request(
                request,
                {"prompt_token_ids": [*_prompt_ids(group.prompt), *before]},
                _sampling_params(left),
            )

    def answers(self) -> list:
        """Iterate until a group is whole."""
        whole: list[int] = []
        while not whole:
            self.taken += min(len(self._new_ids), self.places)
            outputs = self._engine.step()
            self.clock += 1
            for output in outputs:
                self._new_ids[output.request_id] += output.outputs[0].token_ids
                if output.finished:
                    whole += self._ended(output.request_id)
        return [self._answer(number) for number in sorted(whole)]

    def _ended(self, request: str) -> list[int]:
        """Take the response of a finished request. Returns its group, if that is whole now."""
        number, place = map(int, request.split("/"))
        self._found[number][place] = _response_of(self._pieces(request))
        self._open[number] -= 1
        return [] if self._open[number] else [number]

    def pause(self) -> list:
        """Abort what runs and waits."""
        requests = list(self._new_ids)
        self._engine.abort_request(requests)
        for request in requests:
            number, place = map(int, request.split("/"))
            self._found[number][place] = self._pieces(request)
        return [self._answer(number) for number in sorted(self._open)]

    def restart(self) -> None:
        """Set the clock to 0; nothing may run."""
        self.clock = self.taken = self.policy_step = 0

    def _answer(self, number: int) -> tuple:
        del self._open[number]
        return self._groups.pop(number), self._found.pop(number)

    def _pieces(self, request: str) -> list:
        number, place = map(int, request.split("/"))
        before, ids = self._groups[number].samples[place], self._new_ids.pop(request)
        if not ids:
            return before
        piece = Piece(
            ids=ids, logprobs_TK=np.zeros((len(ids), 0)), policy_step=self.policy_step
        )
        return [*before, piece]


PROMPT_TOKENS = 8


def _prompt_ids(prompt: str) -> list[int]:
    return [1 + (int(prompt) + place) % 50 for place in range(PROMPT_TOKENS)]


def _vllm_engine(model: str, *, places: int, max_model_len: int):
    """Start a vLLM that runs `places` responses at once."""
    os.environ.update(
        {key: value for key, value in ENVIRONMENT.items() if key not in os.environ}
    )
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    settings = {}
    if is_needed():  # as r3_openrlhf/evaluation/engine.py
        settings = {
            "kv_cache_memory_bytes": KV_CACHE_BYTES,
            "enforce_eager": True,
            "distributed_executor_backend": UniProcExecutor,
        }
    llm = LLM(
        model=resolve_model(model),
        max_model_len=max_model_len,
        max_num_seqs=places,
        disable_log_stats=True,
        **settings,
    )
    return llm.llm_engine


def _sampling_params(tokens: int):
    """Exactly this many tokens, each as soon as it is there."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=1.0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _response_of(pieces: list) -> dict:
    length = sum(len(piece.ids) for piece in pieces)
    return {
        "action_ranges": [(0, length)],
        "r3": {"pieces": run_lengths(pieces, given=0)},
    }


def draw_from(prompts, n_samples: int):
    """Return a `draw` for PartialSampler: groups of the prompts of an iterator."""

    def draw(count: int) -> Drawn:
        groups = []
        for prompt in prompts:
            groups.append(
                Group(
                    number=-1,
                    prompt=prompt,
                    label="",
                    context=Context.PLAIN,
                    is_plain=True,
                    samples=[[] for _ in range(n_samples)],
                )
            )
            if len(groups) == count:
                return Drawn(groups, is_all=False)
        return Drawn(groups, is_all=True)

    return draw


def lognormal_lengths(*, sigma: float, at_limit: float, limit: int, seed: int):
    """Lengths of a seeded response, `at_limit` of which reach the limit."""
    normal = math.sqrt(2) * _inverse_erf(1 - 2 * at_limit)
    mean = math.log(limit) - sigma * normal
    known: dict[tuple[str, int], int] = {}

    def length_of(prompt: str, sample: int) -> int:
        if (prompt, sample) not in known:
            generator = np.random.default_rng([seed, int(prompt), sample])
            drawn = math.ceil(math.exp(generator.normal(mean, sigma)))
            known[prompt, sample] = min(max(1, drawn), limit)
        return known[prompt, sample]

    return length_of


def _inverse_erf(value: float) -> float:
    low, high = 0.0, 6.0
    for _ in range(80):
        middle = (low + high) / 2
        if math.erf(middle) < value:
            low = middle
        else:
            high = middle
    return low


def waiting_steps(engines: PlayedEngines | VllmEngines, options) -> tuple[list[int], float]:
    """Iterations of each step that waits for its longest response, and the mean share of its responses that run."""
    prompts = (str(number) for number in range(options.steps * options.groups))
    draw, iterations = draw_from(prompts, options.samples), []
    for step in range(options.steps):
        before, pending = engines.clock, options.groups
        for number, group in enumerate(draw(options.groups).groups):
            group.number = step * options.groups + number
            engines.ask(group)
        while pending:
            pending -= len(engines.answers())
        iterations.append(engines.clock - before)
    return iterations, engines.taken / (engines.clock * options.groups * options.samples)


def pausing_steps(
    engines: PlayedEngines | VllmEngines, options, *, partial: float
) -> dict[str, list[float]]:
    """Iterations, mean and largest age of trained tokens, paused responses, and share of responses that run, of each step."""
    prompts = (str(number) for number in range(10**9))
    draw = draw_from(prompts, options.samples)
    sampler = PartialSampler(
        batch_size=options.groups, partial=partial, max_pauses=options.max_pauses
    )
    found: dict[str, list[float]] = {}
    for step in range(options.steps):
        before, taken, engines.policy_step = engines.clock, engines.taken, step
        left = options.groups * (options.steps - step)
        done = sampler.sample(engines, draw=draw, keeps=lambda _: True, most=left)
        runs = [
            run
            for group in done.trained
            for sample in group.samples
            for run in sample["r3"]["pieces"]
        ]
        tokens = sum(count for count, _ in runs)
        iterations = engines.clock - before
        places = options.groups * options.samples
        values = {
            "iterations": iterations,
            "age": sum(count * (step - sampled) for count, sampled in runs) / tokens,
            "oldest": max(step - sampled for _, sampled in runs),
            "paused": done.paused,
            "taken": (engines.taken - taken) / (iterations * places) if iterations else 0.0,
            "tokens": tokens,
        }
        for key, value in values.items():
            found.setdefault(key, []).append(value)
    return found


def main() -> None:
    """Play both and print them side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=128, help="groups of a step")
    parser.add_argument("--samples", type=int, default=16, help="responses of a group")
    parser.add_argument("--limit", type=int, default=8192, help="tokens of a response at most")
    parser.add_argument(
        "--sigma", type=float, default=1.0, help="of the logarithm of the lengths"
    )
    parser.add_argument(
        "--at-limit", type=float, default=0.05, help="share of responses at the limit"
    )
    parser.add_argument(
        "--partial", type=float, nargs="+", default=[1, 1.7, 2], help="rollout.partial"
    )
    parser.add_argument("--max-pauses", type=int, default=2, help="rollout.max_pauses")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fill", type=int, default=8, help="first steps that are left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--vllm", metavar="MODEL", help="a directory or built-in model; default: played engines"
    )
    options = parser.parse_args()
    length_of = lognormal_lengths(
        sigma=options.sigma, at_limit=options.at_limit, limit=options.limit, seed=options.seed
    )
    places = math.ceil(1.25 * options.groups * options.samples)  # R3Config.sequences_per_engine
    real = None
    if options.vllm:
        real = VllmEngines(options.vllm, length_of, places=places, limit=options.limit)

    def engines() -> PlayedEngines | VllmEngines:
        if real is None:
            return PlayedEngines(length_of, places=places)
        real.restart()
        return real

    begun = time.perf_counter()
    waiting, occupancy = waiting_steps(engines(), options)
    waiting_s = time.perf_counter() - begun
    print(
        f"{options.groups} x {options.samples} responses a step, lognormal, sigma {options.sigma:g}, "
        f"{options.at_limit:.0%} at {options.limit:,} tokens; {places:,} places. `running`: mean responses at once, of a step's"
    )
    print(
        "| rollout.partial | iterations a step | ratio | of the whole run | mean age of trained tokens | oldest | "
        "responses paused | running |"
    )
    print("|---|---|---|---|---|---|---|---|")
    mean = np.mean(waiting)
    print(f"| 0 (waits) | {mean:,.0f} | 1 | 1 | 0 | 0 | 0 | {occupancy:.0%} |")
    for share in options.partial:
        begun = time.perf_counter()
        found = pausing_steps(engines(), options, partial=share)
        ratio_s = (time.perf_counter() - begun) / waiting_s
        last = math.ceil(share) + 1  # steps that draw nothing any more
        part = slice(options.fill, options.steps - last)
        iterations = np.mean(found["iterations"][part])
        age = np.average(found["age"][part], weights=found["tokens"][part])
        print(
            f"| {share:g} | {iterations:,.0f} | {iterations / mean:.3f} | {sum(found['iterations']) / sum(waiting):.3f} | "
            f"{age:.2f} steps | {max(found['oldest'][part]):.0f} | {np.mean(found['paused'][part]):,.0f} | "
            f"{np.mean(found['taken'][part]):.0%} |"
        )
        if real is not None:
            print(
                f"seconds of the whole run: {ratio_s:.2f} of those that wait", file=sys.stderr
            )


if __name__ == "__main__":
    main()
