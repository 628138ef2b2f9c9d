"""Several files as one data set: each with keys, task and template of its own, in the shares that their weights give."""

import json
from pathlib import Path

import pytest

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.loading import (
    config_from_json,
    config_from_yaml,
    config_to_json,
    config_to_yaml,
    load_config,
)
from r3_openrlhf.method.errors import ConfigError, DataError
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.mixture import source_metrics
from r3_openrlhf.problems.prompts import RunPrompts
from r3_openrlhf.problems.sources import check_source, load_problems
from r3_openrlhf.problems.training_file import prepare
from tests.method.history.samples import make_rollout
from tests.problems.files import config_for, refused, write_jsonl


@pytest.fixture
def files(tmp_path):
    """40 worked solutions and 10 words."""
    sums = [
        {"question": f"What is {n} + {n}?", "answer": f"work\n#### {2 * n}"} for n in range(40)
    ]
    words = [
        {"ask": f"Say {n}.", "say": f"word {n}", "n": n, "long": "x" * 300} for n in range(10)
    ]
    for name, rows in {"sums": sums, "words": words}.items():
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    words_keys = {
        "problem_key": "ask",
        "answer_key": "say",
        "task": "exact",
        "prompt_template": "Word: {problem}",
    }
    return [
        {"path": str(tmp_path / "sums.jsonl")},
        {"path": str(tmp_path / "words.jsonl"), **words_keys},
    ]


def weighted(files, *weights):
    return [{**file, "weight": weight} for file, weight in zip(files, weights, strict=True)]


def test_each_source_has_its_own_keys_task_and_template(files, tmp_path, byte_tokenizer):
    config = config_for(sources=files)
    prepared = prepare(config, byte_tokenizer, tmp_path / "out" / "p.jsonl")
    rows = [json.loads(line) for line in prepared.path.read_text().splitlines()]
    first, last = rows[0], rows[-1]
    assert (
        first["input"] == "<user>What is 0 + 0?</user><assistant>"
        and first["datasource"] == "sums"
    )
    assert last["input"] == "<user>Word: Say 9.</user><assistant>"
    label = Label.from_json(last["label"])
    assert (label.task, label.references, label.source) == ("exact", ["word 9"], "words")
    assert RunPrompts(config, byte_tokenizer).plain(label) == last["input"]
    used = [(one.name, one.num_rows, one.num_used) for one in prepared.sources]
    assert used == [("sums", 40, 40), ("words", 10, 10)]
    assert (
        json.loads((tmp_path / "out" / "counts.json").read_text())["sources"][1]["answer_key"]
        == "say"
    )


def test_weights_give_the_largest_mixture_without_repeats(files):
    problems = load_problems(DataConfig(sources=weighted(files, 2, 1)), seed=3)
    # ten words; twice as many sums
    assert [one.num_used for one in problems.sources] == [
        20,
        10,
    ]
    assert problems.sources[0].left_out == {"beyond the share that its weight gives it": 20}
    again = load_problems(DataConfig(sources=weighted(files, 2, 1)), seed=3)
    assert (
        again.labels
        == problems.labels
        != load_problems(DataConfig(sources=weighted(files, 2, 1)), seed=4).labels
    )
    equal = load_problems(DataConfig(sources=weighted(files, 8, 1)))
    assert [one.num_used for one in equal.sources] == [40, 5]


def test_max_samples_is_of_each_source(files):
    files[0]["max_samples"] = 3
    problems = load_problems(DataConfig(sources=files, max_samples=7))
    assert [one.num_used for one in problems.sources] == [3, 7]


def test_a_problem_of_two_sources_counts_once_and_never_with_two_answers(tmp_path):
    rows = {
        "a": [("p", "1"), ("q", "2"), ("r", "3")],
        "b": [("p", "1"), ("q", "9"), ("s", "4")],
    }
    for name, pairs in rows.items():
        lines = [{"problem": problem, "answer": answer, "id": 1} for problem, answer in pairs]
        write_jsonl(tmp_path / f"{name}.jsonl", lines)
    problems = load_problems(
        DataConfig(sources=[str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    )
    assert [(label.source, label.problem) for label in problems.labels] == [
        ("a", "p"),
        ("a", "r"),
        ("b", "s"),
    ]
    assert [one.num_duplicates for one in problems.sources] == [0, 1]
    left_out = {"another source has another answer to the same problem": 1}
    assert [one.left_out for one in problems.sources] == [left_out] * 2


def test_ids_of_two_sources_may_be_the_same(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"problem": name, "answer": "1", "id": 7})
        )
    data = DataConfig(
        sources=[str(tmp_path / f"{name}.jsonl") for name in ("a", "b")], uid_key="id"
    )
    assert [label.uid for label in load_problems(data).labels] == ["a:7", "b:7"]


def test_a_wrong_source_is_named(files):
    files[1]["answer_key"] = "long"
    files[1]["task"] = "math"
    with pytest.raises(
        DataError, match="words.jsonl: all 10 answers|words.jsonl: 10 of 10 answers"
    ):
        check_source(DataConfig(sources=files))


# sentence -> data.sources
WRONG = json.loads(Path(__file__).with_name("wrong_sources.json").read_text())


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_sources_are_refused_in_one_sentence(sentence):
    with refused(ConfigError, sentence):
        DataConfig(sources=WRONG[sentence])


def test_on_the_command_line(tmp_path):
    """A list takes the place of the experiment's path, and the configuration survives its journeys."""
    math = ["data.task=math", "data.reasoning_gym={}"]
    sources = "[{path:a.jsonl,weight:1},{path:b.csv,weight:2.5,name:second}]"
    config = load_config("cpu_smoke", [f"data.sources={sources}", *math])
    assert config.data.path == "a.jsonl + b.csv" and list(config.data.parts) == ["a", "second"]
    assert (
        config_from_json(config_to_json(config))
        == config
        == config_from_yaml(config_to_yaml(config), source="x")
    )
    plain = load_config("cpu_smoke", ["data.sources=[a.jsonl,b.csv]", *math])
    assert [part.path for part in plain.data.parts.values()] == ["a.jsonl", "b.csv"]
    with pytest.raises(
        ConfigError, match="data.path is c.jsonl and data.sources is set; use one of them"
    ):
        load_config(
            "cpu_smoke", ["data.sources=[a.jsonl]", "data.path=c.jsonl", "data.task=math"]
        )


def test_the_metrics_of_a_source_by_hand():
    c, w, u = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED
    pairs = [("1", c), ("1", w), ("2", c), ("2", u), ("3", u)]
    rollouts = [make_rollout(uid, verdict=verdict) for uid, verdict in pairs]
    rollouts += [make_rollout("1", verdict=c, context=Context.REFLECTION)]
    of_a = {"problems": 2.0, "ungraded": 1.0, "accuracy": pytest.approx(2 / 3)}
    expected = {f"r3/source/a/{key}": value for key, value in of_a.items()}
    expected |= {f"r3/source/b/{key}": 1.0 for key in ("problems", "ungraded")}
    assert source_metrics([*"aaaaba"], rollouts) == expected
