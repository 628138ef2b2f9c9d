"""Named benchmarks from files and from copies of the hub's data sets; their references; paths; reasoning-gym."""

import json
from pathlib import Path

import pytest

from r3_openrlhf.config import DataConfig
from r3_openrlhf.evaluation.benchmarks import BENCHMARKS, load_problem_set, name_of
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.sources import problem_uid

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "math" / "eval"
SIZES = {
    "aime24": 30,
    "math500": 500,
    "amc23": 83,
    "minerva": 272,
    "olympiadbench": 675,
    "gsm8k": 1319,
}
ANYTHING = DataConfig(
    path="-", task="exact", uid_key="x", problem_key="p", reasoning_gym={"seed": 3}
)


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/math/eval is not there")
@pytest.mark.parametrize("name", SIZES)
def test_every_benchmark_is_read_whole_from_files(name):
    found = load_problem_set(name, ANYTHING, data_dir=str(DATA))
    assert len(found.labels) == SIZES[name] and found.num_duplicates == found.num_unusable == 0
    assert {label.task for label in found.labels} == {"math"}
    assert all(
        label.uid == problem_uid(label.problem) and len(label.references) == 1
        for label in found.labels
    )


HUB_ROWS = {  # as the hub's columns are
    "aime24": ({"id": 60, "problem": "P", "solution": "S", "answer": "204"}, ["204"]),
    "aime25": ({"problem": "P", "answer": "70", "id": "0"}, ["70"]),
    "math500": (
        {"problem": "P", "solution": "S", "answer": "p - q", "unique_id": "u"},
        ["p - q"],
    ),
    "amc23": ({"id": 0, "problem": "P", "answer": 142.0, "url": ""}, ["142.0"]),
    "minerva": ({"question": "P", "answer": "4.5e33"}, ["4.5e33"]),
    "olympiadbench": ({"question": "P", "final_answer": ["$69$", "$84$"]}, ["$69$, $84$"]),
    "gsm8k": ({"question": "P", "answer": "2 + 2 = <<2+2=4>>4 #hours\n#### 1,000"}, ["1,000"]),
}


MATHARENA = {"problem_idx": 1, "answer": "103", "problem": "P", "problem_type": ["Algebra"]}
HUB_ROWS |= {name: (MATHARENA, ["103"]) for name in ("aime26", "hmmt25", "brumo25")}
HUB_ROWS["mmlu-pro"] = (
    {"question": "P", "options": ["x", "y"], "answer": "B", "answer_index": 1},
    ["B"],
)
HUB_ROWS["arc-c"] = (
    {"question": "P", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"},
    ["B"],
)
HUB_ROWS["gpqa"] = ({"question": "P", "answer": "B"}, ["B"])
HUB_ROWS["amc23_40"] = ({"id": 0, "question": "P", "answer": "27.0", "url": ""}, ["27.0"])


@pytest.mark.parametrize("name", HUB_ROWS)
def test_the_hubs_columns_are_read(name, tmp_path, monkeypatch):
    """A directory called like the data set stands for the hub, as `datasets` itself has it."""
    row, references = HUB_ROWS[name]
    benchmark = BENCHMARKS[name]
    copy = tmp_path / benchmark.hub
    copy.mkdir(parents=True)
    (copy / f"{benchmark.split}.jsonl").write_text(json.dumps(row) + "\n")
    if benchmark.subset:
        card = f"---\nconfigs:\n- config_name: {benchmark.subset}\n  data_files:\n  - split: {benchmark.split}\n    path: {benchmark.split}.jsonl\n- config_name: other\n  data_files: none.jsonl\n---\n"
        (copy / "README.md").write_text(card)
    monkeypatch.chdir(tmp_path)
    found = load_problem_set(name, ANYTHING)
    asked = (
        ("P\n(A) x\n(B) y", references, "choice")
        if benchmark.prompt_template
        else ("P", references, benchmark.task or "math")
    )
    assert [(label.problem, label.references, label.task) for label in found.labels] == [asked]
    assert found.source == benchmark.hub


def test_the_hub_a_file_and_a_folder_as_the_hub_leaves_it_have_the_same_problems(
    tmp_path, monkeypatch
):
    cache = tmp_path / "cache" / "datasets--math-ai--minervamath" / "snapshots" / "0a1b"
    for copy in (tmp_path / "math-ai" / "minervamath", cache / "data"):
        copy.mkdir(parents=True)
        (copy / "test.jsonl").write_text('{"question": "What?", "answer": "1"}\n')
    (tmp_path / "minerva.jsonl").write_text(
        '{"id": "minerva-0", "problem": "What?", "answer": "1"}\n'
    )
    monkeypatch.chdir(tmp_path)
    places = [{}, {"data_dir": str(tmp_path)}, {"data_dir": str(tmp_path / "cache")}]
    named = [load_problem_set("minerva", ANYTHING, **place) for place in places]
    free = load_problem_set(str(cache), DataConfig(path="-"))
    assert [one.labels for one in (*named, free)] == [named[0].labels] * 4
    assert len({one.answers_sha256 for one in (*named, free)}) == len(named[0].labels) == 1
    with pytest.raises(DataError, match="no aime24.jsonl, and no folder aime_2024"):
        load_problem_set("aime24", ANYTHING, data_dir=str(tmp_path))


def test_a_file_has_the_columns_that_were_named(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"q": "A?", "a": "1", "n": 7}\n{"q": "B?", "a": "2", "n": 8}\n')
    data = DataConfig(path="-", problem_key="q", answer_key="a", uid_key="n", task="exact")
    found = load_problem_set(str(path), data, max_problems=1)
    assert found.name == "mine" and [(label.uid, label.task) for label in found.labels] == [
        ("7", "exact")
    ]


def test_a_reasoning_gym_task_has_as_many_problems_as_are_wanted():
    # not 1000 different ones, the usual number
    few = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    data = DataConfig(path="-", task="math", reasoning_gym={"seed": 3, **few})
    found = load_problem_set("reasoning_gym:chain_sum", data, max_problems=5)
    assert found.name == "chain_sum" and len(found.labels) == 5
    assert {label.task for label in found.labels} == {"reasoning_gym"}


def test_names():
    assert name_of("math500") == "math500" and name_of("org/My-Set") == "My-Set"
    assert (
        name_of("/data/a.b.jsonl") == "a.b"
        and name_of("reasoning_gym:chain_sum") == "chain_sum"
    )


def test_a_run_of_several_sources_is_asked_the_problems_of_a_file(tmp_path):
    (tmp_path / "mine.csv").write_text("question,answer\nWhat is 1+1?,2\n")
    data = DataConfig(sources=["a.jsonl", {"path": "b.jsonl", "task": "exact"}])
    assert [
        label.references for label in load_problem_set(str(tmp_path / "mine.csv"), data).labels
    ] == [["2"]]
