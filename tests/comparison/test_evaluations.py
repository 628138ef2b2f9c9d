"""Evaluations of the same problems side by side: differences worked by a slow loop, and what is refused or said."""

import json
from statistics import fmean

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.comparison.evaluations import compare_evaluations
from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.evaluation.results import summarise_benchmark
from r3_openrlhf.method.types import Verdict
from tests.commands import command
from tests.evaluation.problems import problem, response

KINDS = {"c": Verdict.CORRECT, "w": Verdict.WRONG, "-": Verdict.UNGRADED}
VERDICTS = st.lists(st.text("cw-", min_size=3, max_size=3), min_size=4, max_size=4)
BASE, BETTER = ["cww", "www", "ccw", "---"], ["ccw", "cww", "ccc", "ccc"]
call = command("compare")


def write_evaluation(path, verdicts, *, benchmark="math500", answers="same", grader="built-in"):
    """An evaluation of the model `path.name`; verdicts: of problem 0, 1, ..., a letter a response."""
    n = len(verdicts[0])
    problems = [
        problem(str(uid), *(response([1], verdict=KINDS[k]) for k in kinds))
        for uid, kinds in enumerate(verdicts)
    ]
    summary = summarise_benchmark(problems, BenchmarkConfig(n_samples=n, seed=0)) | {
        "answers_sha256": answers
    }
    settings = {"n_samples": n, "temperature": 0.6, "max_new_tokens": 8, "weights": path.name}
    results = {
        "model": {"name": path.name},
        "settings": settings,
        "grader": grader,
        "benchmarks": {benchmark: summary},
    }
    path.mkdir(exist_ok=True)
    for name, value in (
        ("results.json", results),
        ("settings.json", settings),
        ("samples.jsonl", {}),
    ):
        (path / name).write_text(json.dumps(value))
    return path


@given(VERDICTS, VERDICTS)
@settings(max_examples=25, deadline=None)
def test_a_difference_is_over_the_problems_that_both_have_a_grade_for(
    tmp_path_factory, first, second
):
    folder = tmp_path_factory.mktemp("lab")
    paths = [
        write_evaluation(folder / name, verdicts)
        for name, verdicts in (("a", first), ("b", second))
    ]
    both = [
        (a.replace("-", ""), b.replace("-", "")) for a, b in zip(first, second, strict=True)
    ]
    slow = [b.count("c") / len(b) - a.count("c") / len(a) for a, b in both if a and b]
    found = compare_evaluations(paths).differences["math500"]["b"]
    back = compare_evaluations(paths, reference="b").differences["math500"]["a"]
    assert [one and one.num for one in (found, back)] == [len(slow) or None] * 2
    assert not slow or (found.mean, back.mean) == (approx(fmean(slow)), approx(-fmean(slow)))


def test_the_table_and_what_is_refused_or_said(tmp_path):
    base, r3 = (
        write_evaluation(tmp_path / "base", BASE),
        write_evaluation(tmp_path / "r3", BETTER),
    )
    done = call(base, r3)
    assert (
        (done.exit_code, done.stderr) == (0, "")
        and "weights" not in done.stdout
        and "* " not in done.stdout
    )
    assert "| math500: Pass@1 | 0.333 [0.000, 0.667] | 0.750 [" in done.stdout
    assert (
        "| – vs. base, paired by problem | – | +0.333 [+0.333, +0.333], 3 pairs |"
        in done.stdout
    )
    found = json.loads(call(tmp_path, "--reference", "r3", "--json").stdout)
    assert (found["reference"], found["differences"]["math500"]["base"]["mean"]) == (
        "r3",
        approx(-1 / 3),
    )
    more = write_evaluation(tmp_path / "more", [f"{one}c" for one in BASE], grader="own:f")
    text = call(base, more).stdout
    assert (
        "* n_samples is 3 in base, 4 in more." in text
        and "* grader is built-in in base, own:f in more." in text
    )
    mistakes = {
        (
            base,
            write_evaluation(tmp_path / "part", BASE[:3]),
        ): "on math500: 1 problems are of one of them alone",
        (
            base,
            write_evaluation(tmp_path / "key", BASE, answers="other"),
        ): "their references or graders (data.task) differ",
        (
            base,
            write_evaluation(tmp_path / "aime", BASE, benchmark="aime24"),
        ): "have no benchmark in common",
        (base,): "base is one evaluation; name another one",
        (base, r3, "--reference", "bas"): "did you mean base?",
        (base, r3, "--target", "0.5"): "--target is 0.5, but evaluations have no curves",
    }
    for arguments, sentence in mistakes.items():
        done = call(*arguments)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (
            1,
            "",
            1,
        ) and sentence in done.stderr
