"""Files, directories, columns and cells in the shapes that public data sets have."""

import csv
import gzip
import json

import datasets
import pytest
import zstandard

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.prompts import prompt_of
from r3_openrlhf.problems.sources import load_problems
from tests.problems.files import load, refused

ROWS = [
    {"problem": f"What is {n}, or 007?\nSay it.", "answer": answer}
    for n, answer in enumerate(["007", "0.50", "None"])
]


def save_lines(path, pack=bytes):
    path.write_bytes(pack("".join(json.dumps(row) + "\n" for row in ROWS).encode()))


def save_separated(path, separator):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["problem", "answer"], delimiter=separator)
        writer.writeheader()
        writer.writerows(ROWS)


def save_arrow(path):
    DATA.save_to_disk(path.parent / "written")
    (path.parent / "written" / "data-00000-of-00001.arrow").rename(path)


DATA = datasets.Dataset.from_list(ROWS)
FILES = {
    "own.json": lambda path: path.write_text(json.dumps(ROWS)),
    "own.jsonl": save_lines,
    "own.jsonl.gz": lambda path: save_lines(path, gzip.compress),
    "own.jsonl.zst": lambda path: save_lines(
        path, lambda text: b"".join(map(zstandard.compress, (text[:9], text[9:])))
    ),
    "own.csv": lambda path: save_separated(path, ","),
    "own.tsv": lambda path: save_separated(path, "\t"),
    "own.parquet": DATA.to_parquet,
    "own.arrow": save_arrow,
    "saved": DATA.save_to_disk,
    "saved_with_splits": datasets.DatasetDict(
        {"train": DATA, "test": DATA.select([0])}
    ).save_to_disk,
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_same_problems(name, tmp_path, monkeypatch):
    FILES[name](tmp_path / name)
    # a name without a directory is a file that is there, not one of the hub
    monkeypatch.chdir(tmp_path)
    for path in (name, str(tmp_path / name)):
        problems = load_problems(DataConfig(path=path))
        assert [
            {"problem": label.problem, "answer": label.references[0]}
            for label in problems.labels
        ] == ROWS


def test_a_pattern_of_files_and_a_directory_of_tables(tmp_path):
    for number, row in enumerate(ROWS):
        (tmp_path / f"part-{number}.jsonl").write_text(json.dumps(row))
    assert len(load_problems(DataConfig(path=str(tmp_path / "part-*.jsonl"))).labels) == 3
    assert len(load_problems(DataConfig(path=str(tmp_path / "part-[01].jsonl"))).labels) == 2
    with pytest.raises(DataError, match="a pattern that no file fits"):
        load_problems(DataConfig(path=str(tmp_path / "*.csv")))


REFUSED_FILES = {  # file -> (content, sentence)
    "own.txt": (b"x", "own.txt is there, but how it ends says nothing about its format"),
    "short.csv": (
        b"problem,answer\na,1\nb\nc,2\n",
        "line 3: it has not the 2 cells that the first line names",
    ),
    "latin.csv": ("problem,answer\nné,1\n".encode("latin-1"), "latin.csv is not UTF-8"),
    "broken.csv": (b'problem,answer\n"a,1\n', "line 1 cannot be read: unexpected end of data"),
    "broken.jsonl.gz": (b"not packed", "cannot be loaded: Not a gzipped file"),
    "broken.jsonl.zst": (b"not packed", "cannot be loaded"),
    "empty.csv": (b"", "has no rows"),
}


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_a_file_that_cannot_be_read_is_one_sentence(name, tmp_path):
    content, sentence = REFUSED_FILES[name]
    (tmp_path / name).write_bytes(content)
    with refused(DataError, sentence):
        load_problems(DataConfig(path=str(tmp_path / name)))


VERL = {
    "prompt": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2+2?"},
    ],
    "data_source": "math_dapo",
    "ability": "MATH",
    "reward_model": {"ground_truth": "4", "style": "rule"},
    "extra_info": {"index": "7"},
}


def test_a_parquet_file_of_verl(tmp_path, byte_tokenizer):
    path = tmp_path / "train.parquet"
    datasets.Dataset.from_list([VERL]).to_parquet(path)
    problems = load_problems(DataConfig(path=str(path), uid_key="extra_info.index"))
    (label,), (counts,) = problems.labels, problems.sources
    assert (label.uid, label.problem, label.references) == ("7", "What is 2+2?", ["4"])
    assert (counts.problem_key, counts.answer_key) == ("prompt", "reward_model.ground_truth")
    prompt = prompt_of(
        byte_tokenizer, DataConfig(path="x", prompt_template="{problem} Think."), label
    )
    assert prompt == "<system>Be brief.</system><user>What is 2+2? Think.</user><assistant>"
    other = DataConfig(path="x", system_prompt="Be long.")
    assert prompt_of(byte_tokenizer, other, label).startswith("<system>Be long.</system><user>")


def test_several_turns_and_an_answer_that_is_there_already(tmp_path, byte_tokenizer):
    turns = [
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "What is 2+2?"),
        ("assistant", "It is 4."),
    ]
    messages = [{"role": role, "content": content} for role, content in turns]
    problems = load(tmp_path, [{"messages": messages, "ground_truth": "4"}])
    (label,) = problems.labels
    assert prompt_of(byte_tokenizer, DataConfig(path="x"), label) == (
        "<user>Hi</user><assistant>Hello</assistant><user>What is 2+2?</user><assistant>"
    )
    assert (
        prompt_of(byte_tokenizer, DataConfig(path="x", chat_template=False), label)
        == "Hi\n\nHello\n\nWhat is 2+2?"
    )
    assert problems.sources[0].problem_forms == {
        "last user turn of messages, without the turns after it": 1
    }
    assert type(label).from_json(label.to_json()) == label


def test_the_same_question_after_other_turns_is_another_problem(tmp_path):
    rows = [
        {
            "prompt": [
                {"role": "system", "content": word},
                {"role": "user", "content": "And now?"},
            ],
            "answer": word,
        }
        for word in ("one", "two")
    ]
    assert [label.references for label in load(tmp_path, rows).labels] == [["one"], ["two"]]
    share = [{"from": "human", "value": "And now?"}]
    as_text = [{"prompt": json.dumps(share), "answer": "3"}]
    assert load(tmp_path, as_text).labels[0].problem == "And now?"


def test_dotted_keys_go_into_structures_lists_and_json_texts(tmp_path):
    row = {
        "q": {"en": "What?", "de": "Was?"},
        "info": '{"answers": [{"value": 0.50}]}',
        "a.b": "dotted name",
    }
    keys = {"problem_key": "q.de", "answer_key": "info.answers.0.value"}
    (label,) = load(tmp_path, [row], **keys).labels
    assert (label.problem, label.references) == ("Was?", ["0.50"])
    assert load(tmp_path, [row], problem_key="q.en", answer_key="a.b").labels[0].references == [
        "dotted name"
    ]
    with pytest.raises(
        DataError, match="line 1: q has no 'fr' for q.fr, only en, de; no row can be used"
    ):
        load(tmp_path, [row], **keys | {"problem_key": "q.fr"})


COLUMNS = {  # of the file -> (the answer that is found) or the sentence
    "problem solution answer": "answer",
    "prompt solution reward_model": "solution",
    "question prompt answer": "has the columns question and prompt; say which one with data.problem_key=COLUMN",
    "question options": "no column that is known to hold the answer; its columns are question, options; name it with",
}


@pytest.mark.parametrize("columns", COLUMNS)
def test_the_columns_of_published_sets_are_found(columns, tmp_path):
    row = {name: f"{name}" for name in columns.split()}
    if "reward_model" in row:
        row["reward_model"] = {"ground_truth": "solution"}
    expected = COLUMNS[columns]
    if " " in expected:
        with refused(DataError, expected):
            load(tmp_path, [row])
    else:
        assert load(tmp_path, [row]).labels[0].references == [expected]


def test_rows_without_answers_are_for_reward_functions(tmp_path):
    rows = [{"prompt": f"Say {n}."} for n in range(3)]
    problems = load(tmp_path, rows, with_rows=True)
    assert [label.references for label in problems.labels] == [[]] * 3
    assert problems.sources[0].how_read == "problem: prompt, answer: none"
    with pytest.raises(DataError, match="no column 'x'"):
        load(tmp_path, rows, with_rows=True, answer_key="x")


BAD_CELLS = {
    "is not only text": [{"role": "user", "content": [{"type": "image"}]}],
    "no turn of the user": [{"role": "assistant", "content": "4"}],
    "a list, but not one of messages": ["What is 2+2?"],
    "without role and content": [{"text": "What?"}],
}


@pytest.mark.parametrize("sentence", BAD_CELLS)
def test_a_problem_that_is_no_text_and_no_messages(sentence, tmp_path):
    with pytest.raises(DataError, match=sentence):
        load(tmp_path, [{"prompt": BAD_CELLS[sentence], "answer": "4"}])
