"""Two directories as `r3 eval` leaves them, written by its own code; the model is a die."""

import json
import random
from pathlib import Path

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.evaluation.results import mean_over_benchmarks, summarise_benchmark
from r3_openrlhf.evaluation.sample_file import SampledProblem, SampleFile, sampled
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.exchange import Grade
from tests.view.story import labels, respond

SAMPLES = 8
# which a model can write and UTF-8 cannot carry
SURROGATE = "a lone \ud83d surrogate <b>bold</b>"


def write_evaluation(
    directory: Path, *, skill: float, seed: int, num_problems: int = 24
) -> list[SampledProblem]:
    """A problem is solved about as often as `skill` says, some more and some less, the same ones for every model."""
    directory.mkdir(parents=True)
    draw, file, problems = random.Random(seed), SampleFile(directory / "samples.jsonl"), []
    for label in labels(num_problems):
        chance = min(0.97, max(0.02, skill + random.Random(label.uid).gauss(0, 0.3)))
        responses = []
        for number in range(SAMPLES):
            right = draw.random() < chance
            cut = not right and draw.random() < 0.3
            text = (
                SURROGATE
                if number == 0 and not problems
                else respond(label, right=right, cut=cut, draw=draw)
            )
            verdict, answer = (
                (Verdict.CORRECT, label.references[0])
                if right
                else (Verdict.WRONG, None if cut else "17")
            )
            reason = "no_answer" if cut else verdict.value
            grade = Grade(
                verdict=verdict,
                reason=reason,
                score=float(right),
                reward=None,
                extracted=answer,
            )
            responses.append(
                sampled(text, range(len(text) // 4), "length" if cut else "stop").graded(grade)
            )
        problem = SampledProblem(
            benchmark="math500", uid=label.uid, content="hash", responses=responses
        )
        file.append(problem)
        problems.append(problem)
    settings = {
        "n_samples": SAMPLES,
        "temperature": 0.6,
        "top_p": 0.95,
        "max_new_tokens": 512,
        "seed": 0,
    }
    found = {
        "source": "a file",
        "hard_of": None,
        "num_duplicates": 0,
        "num_unusable": 0,
        "lengths": {},
    }
    benchmarks = {
        "math500": found
        | summarise_benchmark(problems, BenchmarkConfig(n_samples=SAMPLES, seed=0))
    }
    results = {
        "model": {"name": directory.name, "path": "somewhere"},
        "settings": settings,
        "benchmarks": benchmarks,
        "mean": mean_over_benchmarks(benchmarks, SAMPLES),
    }
    (directory / "settings.json").write_text(json.dumps(settings))
    (directory / "results.json").write_text(json.dumps(results))
    return problems
