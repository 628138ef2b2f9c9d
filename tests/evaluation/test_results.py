"""Records -> results and tables; the hard subset."""

from pytest import approx

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.evaluation.frame import frame_of
from r3_openrlhf.evaluation.results import (
    hard_uids,
    markdown,
    mean_over_benchmarks,
    summarise_benchmark,
    vote_of,
)
from r3_openrlhf.method.types import Verdict
from tests.evaluation.problems import problem, response

TWO = BenchmarkConfig(n_samples=2, seed=0)
KINDS = (Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED)
RIGHT, WRONG, NONE = (response([1] * 10, verdict=verdict) for verdict in KINDS)


def test_a_vote_is_the_answer_in_the_graders_spelling():
    same = ["\\frac{1}{2}", "$\\dfrac{1}{2}$", " \\frac12. "]
    assert len({vote_of(response([1], extracted=text)) for text in same}) == 1
    assert vote_of(response([1], extracted="0.5")) == "0.5"  # equal in value, spelt differently
    assert vote_of(response([1], extracted=None)) is None
    assert vote_of(response([1], extracted=" $$ ")) != ""


def test_an_ungraded_response_is_absent_never_a_zero():
    problems = [problem("a", RIGHT, RIGHT, NONE, WRONG), problem("b", NONE, NONE, NONE, NONE)]
    summary = summarise_benchmark(problems, BenchmarkConfig(n_samples=4, seed=0))
    assert summary["num_ungraded"] == 5 and summary["num_problems_without_grade"] == 1
    assert (
        summary["pass_at_1"]["value"] == approx(2 / 3)
        and summary["pass_at_1"]["num_problems"] == 1
    )
    assert summary["pass_at_k"]["2"]["value"] == 1.0
    assert summary["pass_at_k"]["4"] == {
        "value": None,
        "low": None,
        "high": None,
        "num_problems": 0,
    }


def test_lengths_and_truncation_count_every_response():
    problems = [
        problem(
            "a",
            response([1] * 40, verdict=Verdict.UNGRADED, finish_reason="length"),
            response([1] * 20),
        ),
        problem("b", response([1] * 10), response([1] * 10)),
    ]
    summary = summarise_benchmark(problems, TWO)
    assert summary["response_tokens_mean"]["value"] == approx(20.0)
    assert summary["truncated_rate"]["value"] == approx(0.25)


def test_summary_by_hand():
    problems = [
        problem("a", RIGHT, WRONG),
        problem("b", WRONG, NONE),
        problem("c", RIGHT, RIGHT),
    ]
    found = summarise_benchmark(problems, TWO)
    assert found["pass_at_1"]["value"] == approx((1 / 2 + 0 + 1) / 3)
    assert (
        found["pass_at_k"]["2"]["value"] == approx((1 + 1) / 2)
        and found["pass_at_k"]["2"]["num_problems"] == 2
    )
    assert found["problems"]["b"] == {"correct": 0, "ungraded": 1}
    assert found["ungraded_reasons"] == {"ungraded": 1} and found["num_ungraded"] == 1


def test_hard_is_right_at_most_once_and_what_may_have_been_solved_is_not():
    told = {
        "never": (WRONG, WRONG, WRONG),
        "once": (RIGHT, WRONG, WRONG),
        "twice": (RIGHT, RIGHT, WRONG),
    }
    told |= {"perhaps twice": (RIGHT, NONE, WRONG)}
    base = [problem(uid, *responses) for uid, responses in told.items()]
    base.append(problem("elsewhere", WRONG, WRONG, WRONG, benchmark="aime24"))
    hard, known = hard_uids(base, "math500")
    assert hard == {"never", "once"} and known == {"never", "once", "twice", "perhaps twice"}


def results_of(summaries, n):
    settings = {
        "n_samples": n,
        "temperature": 0.6,
        "top_p": 1.0,
        "max_new_tokens": 8,
        "seed": 1,
    }
    facts = {
        "source": "s",
        "hard_of": None,
        "num_duplicates": 0,
        "num_unusable": 0,
        "lengths": {},
    }
    benchmarks = {name: facts | found for name, found in summaries.items()}
    mean = mean_over_benchmarks(summaries, n)
    return {
        "model": {"name": "m"},
        "settings": settings,
        "benchmarks": benchmarks,
        "mean": mean,
    }


def test_a_data_frame_has_the_numbers_of_the_table():
    one = summarise_benchmark([problem("a", RIGHT, WRONG), problem("b", WRONG, WRONG)], TWO)
    frame = frame_of(results_of({"math500": one}, 2))
    row = frame.loc["math500"]
    assert (row.num_problems, row.pass_at_1, row.pass_at_2) == (2, 0.25, 0.5)
    assert row.pass_at_1_low == one["pass_at_1"]["low"] and row.response_tokens_mean == 10


def test_the_table_shows_the_numbers_and_dashes_for_what_is_not_there():
    one = summarise_benchmark([problem("a", RIGHT, WRONG), problem("b", WRONG, WRONG)], TWO)
    other = summarise_benchmark([problem("a", NONE, RIGHT)], TWO)
    text = markdown(results_of({"one": one, "other": other}, 2))
    lines = (line.split("|") for line in text.splitlines() if line.startswith("|"))
    rows = {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in lines}
    assert rows["one"][0] == "2" and rows["one"][1].startswith("25.0 [0.0, 50.0]")
    assert rows["other"] == ["1", "100.0", "-", "-", "10", "0.0", "1"]
    assert rows["mean"][:3] == ["", "62.5", "-"]  # no mean over a benchmark that has no value
    assert "1 of 2 responses could not be graded (1 ungraded)" in text
