"""Real outputs with the verdicts of their authors: our accuracy, through grader and estimates, against their totals."""

import json
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from pytest import approx

from r3_openrlhf.config import BenchmarkConfig, RewardConfig
from r3_openrlhf.evaluation.grading import Grading
from r3_openrlhf.evaluation.results import summarise_benchmark
from r3_openrlhf.evaluation.sample_file import SampledProblem, sampled
from r3_openrlhf.problems.sources import Label, problem_uid

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "grader"
FILES = {"outputs_gsm8k_openai": 0.005, "outputs_rho_math500": 0.02}  # largest difference of accuracies, per model

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/grader is not there")


@pytest.fixture(scope="module", params=FILES)
def outputs(request):
    """(file, rows with the authors' verdicts, our grade of each)."""
    lines = (DATA / f"{request.param}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    with Grading(RewardConfig(timeout_s=20.0)) as grading:
        requests = []
        for row in rows:
            label = Label(uid=row["id"], problem=row["problem"], references=[row["gold"]], task="math")
            requests.append(grading.request(label, row["response"], num_tokens=len(row["response"]), truncated=False))
        grades = grading.grade(requests)
    return request.param, rows, grades


def problems_of(groups):
    """One SampledProblem per group of (row, grade)."""
    groups = [list(pairs) for pairs in groups]
    uids = [problem_uid(pairs[0][0]["problem"]) for pairs in groups]
    graded = [[sampled(row["response"], [0] * 10, "stop").graded(grade) for row, grade in pairs] for pairs in groups]
    return [
        SampledProblem(benchmark="stored", uid=uid, content="", responses=responses)
        for uid, responses in zip(uids, graded, strict=True)
    ]


def test_accuracy_of_each_model_is_the_authors(outputs):
    name, rows, grades = outputs
    by_model = defaultdict(list)
    for row, grade in zip(rows, grades, strict=True):
        by_model[row["model"]].append((row, grade))
    assert len(by_model) > 1
    for model, pairs in by_model.items():
        theirs = np.mean([row["correct"] for row, _ in pairs])
        found = summarise_benchmark(problems_of([pair] for pair in pairs), BenchmarkConfig(n_samples=1, seed=0))
        assert found["num_ungraded"] == 0
        assert found["pass_at_1"]["value"] == approx(theirs, abs=FILES[name]), model


def test_pass_at_k_over_the_models_is_that_of_the_authors_verdicts(outputs):
    """The models' answers to one problem as if they were samples: Pass@2 over all pairs of the authors' verdicts."""
    name, rows, grades = outputs
    by_problem = defaultdict(list)
    for row, grade in zip(rows, grades, strict=True):
        by_problem[row["problem"]].append((row, grade))
    groups = [pairs for pairs in by_problem.values() if len(pairs) >= 2]
    assert len(groups) >= 200
    pairs = [combinations([row["correct"] for row, _ in group], 2) for group in groups]
    theirs = np.mean([np.mean([any(pair) for pair in of_problem]) for of_problem in pairs])
    found = summarise_benchmark(problems_of(groups), BenchmarkConfig(n_samples=2, seed=0))
    assert found["pass_at_k"]["2"]["value"] == approx(theirs, abs=FILES[name])
