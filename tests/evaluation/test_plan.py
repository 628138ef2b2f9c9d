"""The plan of an evaluation: what its request resolves to before a tokenizer is loaded."""

import sys
from subprocess import run

import pytest

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.evaluation.plan import Request, plan_evaluation
from r3_openrlhf.method.errors import ConfigError
from tests.problems.files import write_jsonl

OPTIONS = BenchmarkConfig(max_new_tokens=8)
ROWS = [
    {"problem": "What is 1 + 1 now?", "answer": "2"},
    {"problem": "What is 2 + 3 now?", "answer": "5"},
    {"problem": "What is 4 + 5 now?", "answer": "9"},
]


@pytest.fixture
def file(tmp_path):
    return write_jsonl(tmp_path / "mine.jsonl", ROWS)


def request(file, **options):
    return Request(model="tiny", benchmarks=[file], options=OPTIONS, **options)


def test_a_plan_has_the_parts_that_its_request_names(file, tmp_path):
    against = write_jsonl(tmp_path / "trained.jsonl", ROWS[1:2])
    asked = request(
        file,
        overrides=["reward.num_workers=3"],
        max_problems=2,
        lengths=(4, 2),
        against=against,
    )
    plan = plan_evaluation(asked)
    (problems,) = plan.sets
    first, second = problems.labels
    assert (first.problem, second.problem) == (ROWS[0]["problem"], ROWS[1]["problem"])
    assert plan.trained_on == {"mine": {second.uid}}
    assert plan.limits == [2, 4, 8]
    assert plan.config.reward.num_workers == 3
    assert plan.source.name == "tiny" and plan.output is None and plan.hard_of is None


def test_without_a_run_and_a_file_nothing_is_known_to_be_trained_on(file):
    plan = plan_evaluation(request(file))
    assert plan.trained_on == {} and plan.limits == []


def test_a_limit_above_the_sampling_is_refused(file):
    with pytest.raises(ConfigError, match="--lengths holds 9"):
        plan_evaluation(request(file, lengths=(9,)))


def test_a_plan_loads_no_engine():
    code = (
        "import sys, r3_openrlhf.evaluation.plan; "
        "print(*{'vllm', 'torch', 'transformers', 'ray'}.intersection(sys.modules))"
    )
    loaded = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
