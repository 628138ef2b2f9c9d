"""Problems from every kind of source, and each way in which they can be unusable."""

import dataclasses
import decimal
import json
from contextlib import nullcontext
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import ConfigError, DataError, R3Error
from r3_openrlhf.method.open_table import load_object
from r3_openrlhf.problems.files import _rows_of_function
from r3_openrlhf.problems.held_out import held_out_data, prepare_held_out
from r3_openrlhf.problems.sources import Label, check_source, load_problems, problem_uid
from r3_openrlhf.problems.training_file import prepare
from tests.problems.files import config_for, refused, write_jsonl

ROWS = [
    {"problem": f"What is {n} + {n}?", "answer": str(2 * n), "id": f"sum-{n}"}
    for n in range(1, 7)
]


def read(prepared):
    rows = [json.loads(line) for line in prepared.path.read_text().splitlines()]
    return [(row["input"], Label.from_json(row["label"])) for row in rows]


@pytest.fixture
def sums(tmp_path):
    return write_jsonl(tmp_path / "sums.jsonl", ROWS)


def test_a_row_becomes_a_final_prompt_and_a_label(sums, tmp_path, byte_tokenizer):
    prepared = prepare(
        config_for(sums, system_prompt="Be brief."),
        byte_tokenizer,
        tmp_path / "out" / "p.jsonl",
    )
    prompt, label = read(prepared)[0]
    assert prompt == "<system>Be brief.</system><user>What is 1 + 1?</user><assistant>"
    assert label == Label(
        uid=problem_uid("What is 1 + 1?"),
        problem="What is 1 + 1?",
        references=["2"],
        task="math",
    )
    assert prepared.num_problems == 6
    assert problem_uid("abc") == "ba7816bf8f01cfea"  # sha256("abc") is a published test vector


def test_openrlhf_loads_the_file_with_its_own_loader(sums, tmp_path, byte_tokenizer):
    from types import SimpleNamespace

    from openrlhf.datasets.prompts_dataset import PromptDataset
    from openrlhf.datasets.utils import blending_datasets

    prepared = prepare(config_for(sums), byte_tokenizer, tmp_path / "problems.jsonl")
    data = SimpleNamespace(
        input_key="input", label_key="label", apply_chat_template=False, image_key="images"
    )
    strategy = SimpleNamespace(
        args=SimpleNamespace(data=data, use_ms=False), print=print, is_rank_0=lambda: False
    )
    loaded = PromptDataset(
        blending_datasets(str(prepared.path), strategy=strategy), byte_tokenizer, strategy
    )
    ours = read(prepared)
    assert len(loaded) == len(ours) == 6
    for (datasource, prompt, label, images), (our_prompt, our_label) in zip(
        loaded, ours, strict=True
    ):
        assert (datasource, prompt, images) == ("sums.jsonl", our_prompt, None)
        assert Label.from_json(label) == our_label


def test_the_uid_is_the_problem_s_not_the_template_s_and_max_samples_takes_the_first(
    sums, tmp_path, byte_tokenizer
):
    plain = prepare(config_for(sums), byte_tokenizer, tmp_path / "a.jsonl")
    other = prepare(
        config_for(sums, prompt_template="Q: {problem}\nA:"),
        byte_tokenizer,
        tmp_path / "b.jsonl",
    )
    assert [label.uid for _, label in read(plain)] == [label.uid for _, label in read(other)]
    named = prepare(config_for(sums, uid_key="id"), byte_tokenizer, tmp_path / "c.jsonl")
    assert [label.uid for _, label in read(named)] == [row["id"] for row in ROWS]
    few = prepare(config_for(sums, max_samples=3), byte_tokenizer, tmp_path / "d.jsonl")
    assert [label.problem for _, label in read(few)] == [row["problem"] for row in ROWS[:3]]


def test_a_hub_that_cannot_be_reached_and_that_the_check_does_not_ask(monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    check_source(DataConfig(path="nobody/nothing"))
    with pytest.raises(
        DataError, match="data.path nobody/nothing cannot be loaded: .*nobody/nothing"
    ):
        load_problems(DataConfig(path="nobody/nothing"))


def cache_of_the_hub(monkeypatch, folder, commit, rows):
    """Write the files that `datasets` leaves in its cache for org/name, and go offline."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder))
    cache = folder / "org___name" / "default" / "0.0.0" / commit
    cache.mkdir(parents=True)
    made = datasets.Dataset.from_list(rows)
    made.info.splits = datasets.SplitDict(
        {"train": datasets.SplitInfo("train", num_examples=len(rows))}
    )
    made.info.config_name, made.info.dataset_name, made.info.version = (
        "default",
        "name",
        "0.0.0",
    )
    made.info.write_to_directory(str(cache))
    with ArrowWriter(path=str(cache / "name-train.arrow"), features=made.features) as writer:
        for row in rows:
            writer.write(row)
        writer.finalize()


@pytest.mark.parametrize("held_out", [False, True])
def test_the_commit_of_a_data_set_is_kept_and_compared_by_a_resume(
    monkeypatch, tmp_path, byte_tokenizer, held_out
):
    old, new, newest = (digit * 40 for digit in "abc")

    def start(commit, rows):
        cache_of_the_hub(monkeypatch, tmp_path / commit, commit, rows)
        if not held_out:
            return prepare(config_for("org/name"), byte_tokenizer, tmp_path / "p.jsonl")
        config = config_for(str(numbers_file(tmp_path / "n.jsonl")))
        training = prepare(config, byte_tokenizer, tmp_path / "t.jsonl").path
        config.held_out.path, config.held_out.split = "org/name", "train"
        prepare_held_out(config, byte_tokenizer, training, tmp_path / "p.jsonl")
        return None

    first = start(old, ROWS)
    assert json.loads((tmp_path / "p.commits.json").read_text()) == {"org/name": old}
    second = start(new, ROWS)
    sentence = "org/name is commit {} now, and the run was started with revision " + old
    if not held_out:
        assert json.loads((tmp_path / "counts.json").read_text())["sources"][0]["commit"] == new
        assert not first.findings and first.sources[0].how_read.endswith(f", commit {old}")
        assert [one.sentence for one in second.findings] == [
            f"{sentence.format(new)}; its problems are the same"
        ]
    with pytest.raises(DataError, match=f"choose another run_dir; {sentence.format(newest)}"):
        start(newest, ROWS[1:])
    with pytest.raises(
        DataError, match=f"data.revision is {old[:8]}, and the cache has commit {newest}"
    ):
        load_problems(DataConfig(path="org/name", revision=old[:8]))


def test_a_revision_is_that_of_its_own_data_set(tmp_path):
    config = config_for("org/name", revision="v1")
    for path, revision in (("org/name", "v1"), ("org/other", None), (str(tmp_path), None)):
        config.held_out.path = path
        assert held_out_data(config).revision == revision


LONG = "12345678901234567890123"
NUMBERS = [LONG, "0.10", "1e5", "-0", "184467440737095516160", "3.00000000000000000001", "2"]


def numbers_file(path, numbers=NUMBERS):
    path.write_text(
        "".join(
            f'{{"problem": "p{n}", "answer": {number}}}\n' for n, number in enumerate(numbers)
        )
    )
    return path


def references_of(path, **data):
    return [
        label.references for label in load_problems(DataConfig(path=str(path), **data)).labels
    ]


def test_numbers_reach_the_grader_as_they_are_written(tmp_path):
    """A float or a large integer elsewhere in the column changes no answer."""
    assert references_of(numbers_file(tmp_path / "n.jsonl")) == [[number] for number in NUMBERS]
    lists = [f"[{number}, {LONG}]" for number in NUMBERS]
    assert references_of(numbers_file(tmp_path / "l.jsonl", lists)) == [
        [number, LONG] for number in NUMBERS
    ]
    document = ",".join(numbers_file(tmp_path / "n.jsonl").read_text().splitlines())
    (tmp_path / "n.json").write_text(f"[{document}]")
    assert references_of(tmp_path / "n.json") == [[number] for number in NUMBERS]
    (tmp_path / "columns.json").write_text(
        '{"problem": ["a",\n"b"], "answer": [' + LONG + ", 0.5]}"
    )
    assert references_of(tmp_path / "columns.json") == [[LONG], ["0.5"]]


def test_numbers_in_a_directory_of_files_and_decimals_of_a_table_are_kept_too(tmp_path):
    (tmp_path / "set").mkdir()
    numbers_file(tmp_path / "set" / "train.jsonl")
    assert references_of(tmp_path / "set") == [[number] for number in NUMBERS]
    assert references_of(tmp_path / "set", split="train[1:3]") == [["0.10"], ["1e5"]]
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "train.csv").write_text(
        f"problem,answer\np,{LONG}\nq,0.50\nr,007\ns,None\n"
    )
    assert references_of(tmp_path / "table") == [[LONG], ["0.50"], ["007"], ["None"]]
    answer = pyarrow.array([decimal.Decimal("1E+22")], pyarrow.decimal128(38, 0))
    pyarrow.parquet.write_table(
        pyarrow.table({"problem": ["p"], "answer": answer}), tmp_path / "d.parquet"
    )
    assert references_of(tmp_path / "d.parquet") == [["10000000000000000000000"]]


BROKEN_LINES = {  # third line -> sentence
    **dict.fromkeys(
        [
            "null",
            "[1, 2]",
            '"text"',
            '{"problem": "p", "answer": {"a": 1, "b": 2}}',
            '{"problem": 5, "answer": "1"}',
        ]
    ),
    '{"problem": "\\ud800", "answer": "1"}': None,
    **dict.fromkeys(
        ['{"problem": "p", "answer": NaN}', '{"problem": "p"'], "line 3 is not JSON"
    ),
    "[" * 100_000: "line 3 is nested too deeply",
    "\udcff": "line 3 is not UTF-8",
}


@pytest.mark.parametrize("line", BROKEN_LINES, ids=range(len(BROKEN_LINES)))
def test_a_broken_line_is_counted_or_named(line, tmp_path):
    """`null` rows ended the process; what is JSON but no row is unusable, what is no JSON stops with its line."""
    data, sentence = DataConfig(path=str(tmp_path / "broken.jsonl")), BROKEN_LINES[line]
    lines = (
        [json.dumps(row) for row in MORE[:2]] + [line] + [json.dumps(row) for row in MORE[2:]]
    )
    Path(data.path).write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    with refused(DataError, sentence) if sentence else nullcontext():
        problems = load_problems(data)
        assert (len(problems.labels), problems.sources[0].num_unusable) == (30, 1)


@pytest.mark.parametrize(
    "rows", [[None], [{"problem": "", "answer": "1"}], [{"problem": "p", "answer": None}] * 3]
)
def test_the_check_asks_for_one_usable_row(rows, tmp_path):
    with pytest.raises(DataError, match="line 1.*no row can be used|no column"):
        check_source(DataConfig(path=write_jsonl(tmp_path / "useless.jsonl", rows)))


def test_overlong_prompts_are_dropped_and_counted_or_refused(tmp_path, byte_tokenizer):
    rows = [*ROWS, {"problem": "x" * 100, "answer": "1"}]
    path = write_jsonl(tmp_path / "long.jsonl", rows)
    wrapping = len("<user></user><assistant>")
    # one token too few for the last row
    config = config_for(path, max_len=100 + wrapping + 16 - 1)
    prepared = prepare(config, byte_tokenizer, tmp_path / "p.jsonl")
    assert (prepared.num_problems, prepared.num_dropped_overlong) == (6, 1)
    assert json.loads((tmp_path / "counts.json").read_text())["num_dropped_overlong"] == 1
    (finding,) = prepared.findings
    assert (
        "1 of 7 problems are left out, as their prompts are longer than 123 tokens"
        in finding.sentence
    )
    config.data.max_len += 1
    assert prepare(config, byte_tokenizer, tmp_path / "q.jsonl").num_dropped_overlong == 0


def test_a_context_too_short_for_one_reflection_prompt(sums, tmp_path, byte_tokenizer):
    config = config_for(sums, reflection=True)
    assert prepare(config, byte_tokenizer, tmp_path / "p.jsonl").num_problems == 6
    config.data.max_len = 200
    with pytest.raises(
        ConfigError,
        match="max_len 200 leaves 184 tokens for a prompt .* reflection.enabled=false",
    ):
        prepare(config, byte_tokenizer, tmp_path / "q.jsonl")
    config.reflection.enabled = False
    assert prepare(config, byte_tokenizer, tmp_path / "q.jsonl").num_problems == 6


MORE = [{"problem": f"problem {n}", "answer": str(n + 30)} for n in range(30)]
# rows, settings and the sentence
BAD_ROWS = (Path(__file__).with_name("bad_rows.jsonl")).read_text().splitlines()


@pytest.mark.parametrize("case", BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_bad_rows_are_refused_with_their_place(case, tmp_path, byte_tokenizer):
    rows, options, sentence = json.loads(case).values()
    path = write_jsonl(tmp_path / "bad.jsonl", rows)
    with refused(DataError, sentence):
        prepare(config_for(path, **options), byte_tokenizer, tmp_path / "p.jsonl")
    assert not (tmp_path / "p.jsonl").exists()


@given(kinds=st.lists(st.sampled_from("abcde"), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_every_row_is_a_problem_or_is_counted(tmp_path_factory, kinds):
    """Law: rows = problems + repeated + unusable, whatever the file holds; or the file is refused as a whole."""
    pairs = {"a": ("p", "1"), "b": ("p", "2"), "c": ("q", "1"), "d": ("r", ""), "e": ("s", "3")}
    rows = {
        kind: {"problem": problem, "answer": answer}
        for kind, (problem, answer) in pairs.items()
    }
    fillers = [{"problem": f"filler {n}", "answer": str(7 * n)} for n in range(150)]
    rows_in_file = [rows[kind] for kind in kinds] + fillers
    path = write_jsonl(tmp_path_factory.mktemp("law") / "x.jsonl", rows_in_file)
    problems = load_problems(DataConfig(path=path))
    contradictory = {"a", "b"} <= set(kinds)
    kept = {label.problem for label in problems.labels}
    assert kept - {row["problem"] for row in fillers} == {
        rows[kind]["problem"]
        for kind in kinds
        if kind != "d" and not (contradictory and kind in "ab")
    }
    (counts,) = problems.sources
    assert len(problems.labels) + counts.num_duplicates + counts.num_unusable == len(
        rows_in_file
    )


def chain_sums(**options):
    few = {
        "size": 20,
        "seed": 1,
        "min_terms": 2,
        "max_terms": 2,
        "min_digits": 1,
        "max_digits": 1,
    }
    return {"path": "reasoning_gym:chain_sum", "reasoning_gym": few | options}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"path": "nowhere.jsonl"}, "data.path is nowhere.jsonl, but there is no such file"),
        ({"path": "data/x.txt"}, "data.path is data/x.txt, but there is no such file"),
        (
            {"path": "some/deep/path"},
            "which does not exist; use a file that ends in .jsonl, .json, .csv, .tsv, .parquet, .arrow",
        ),
        (
            {"path": "reasoning_gym:chain_sun"},
            "has no task 'chain_sun'; did you mean chain_sum?",
        ),
        ({"uid_key": "key"}, "no column 'key' (data.uid_key)"),
        (chain_sums(size=500), "different problems with these options, not 500"),
        (chain_sums(size=0), "data.reasoning_gym.size is 0"),
        (chain_sums(terms=2), "data.reasoning_gym does not fit the task chain_sum"),
        (chain_sums(min_terms=9), "data.reasoning_gym does not fit the task chain_sum"),
    ],
)
def test_sources_columns_and_options_that_do_not_exist(sums, data, sentence):
    with refused(DataError, sentence):
        load_problems(DataConfig(**{"path": sums} | data))


@pytest.mark.parametrize("task", [None, "reasoning_gym"])
def test_a_data_set_that_is_not_graded_is_refused(task):
    """Its scorer pays for what is no answer: every rollout would be ungraded."""
    data = DataConfig(path="reasoning_gym:puzzle24", task=task, reasoning_gym={"size": 2})
    with pytest.raises(
        R3Error,
        match="'puzzle24', which is not graded: its scorer does not check which numbers",
    ):
        check_source(data)
    check_source(
        DataConfig(path="reasoning_gym:puzzle24", task="exact", reasoning_gym={"size": 2})
    )


# ── reasoning-gym ──


def test_reasoning_gym_gives_as_many_different_problems_as_asked(tmp_path, byte_tokenizer):
    config = config_for(**chain_sums())
    problems = read(prepare(config, byte_tokenizer, tmp_path / "p.jsonl"))
    assert len({label.uid for _, label in problems}) == len(problems) == 20
    for prompt, label in problems:
        expression = label.problem.rpartition(": ")[2].removesuffix(" =")
        left, sign, right = expression.split()
        assert label.references == [
            str(int(left) + int(right) if sign == "+" else int(left) - int(right))
        ]
        assert label.problem in prompt and label.task == "reasoning_gym"


def test_a_task_with_many_solutions_has_no_reference_and_keeps_its_entry():
    from reasoning_gym import get_score_answer_fn

    (label,) = load_problems(
        DataConfig(path="reasoning_gym:rush_hour", reasoning_gym={"size": 1})
    ).labels
    assert label.references == [] and get_score_answer_fn("rush_hour")("", label.metadata) < 1.0


# ── the file of a run that goes on ──


def test_a_run_goes_on_with_the_prompts_that_it_was_started_with(
    sums, tmp_path, byte_tokenizer
):
    """Llama's template has the date of the day: the problems are the same, and so are the prompts."""
    first = prepare(
        config_for(sums, system_prompt="Today is Monday."), byte_tokenizer, tmp_path / "p.jsonl"
    )
    content = first.path.read_bytes()
    prepare(
        config_for(sums, system_prompt="Today is Tuesday."),
        byte_tokenizer,
        tmp_path / "p.jsonl",
    )
    assert first.path.read_bytes() == content and list(tmp_path.glob(".p.jsonl*")) == []


DRAWS = """
import random
CALLS = []
def make(size):
    CALLS.append(size)
    return [{"question": f"{random.random()} + {place} = ?", "answer": str(place)} for place in range(size)]
"""


@pytest.mark.parametrize("in_sources", [False, True])
def test_problems_of_a_function_are_drawn_once_and_read_from_the_run_s_file(
    in_sources, sums, tmp_path, byte_tokenizer
):
    """It draws others in each process; a resume was refused, with the advice to restore them."""
    module = tmp_path / "draws.py"
    module.write_text(DRAWS)
    drawn = {"path": f"{module}:make", "reasoning_gym": {"size": 9}}
    data = {"sources": [{**drawn, "name": "own"}, str(sums)]} if in_sources else dict(drawn)
    path = data.pop("path", None)
    config = config_for(path, **data)
    check_source(config.data)
    first = prepare(config, byte_tokenizer, tmp_path / "run" / "problems.jsonl")
    assert load_object("data.path", f"{module}:CALLS") == [
        9
    ]  # checked and written are the same
    content = first.path.read_bytes()
    _rows_of_function.cache_clear()  # another process
    check_source(config.data, are_drawn=True)
    again = prepare(config, byte_tokenizer, first.path)
    assert first.path.read_bytes() == content
    assert load_object("data.path", f"{module}:CALLS") == [9]
    assert again == first
    first.path.with_name("counts.json").unlink()
    again = prepare(config, byte_tokenizer, first.path)
    assert again.num_problems == first.num_problems == (9 + 6 if in_sources else 9)
    first.path.write_text("{")
    with pytest.raises(
        DataError, match="problems.jsonl cannot be read: .*; restore it from a copy"
    ):
        prepare(config, byte_tokenizer, first.path)


text = st.text(min_size=1)


@given(
    uid=text,
    problem=text,
    references=st.lists(text, min_size=1),
    metadata=st.none() | st.dictionaries(text, st.none() | st.integers() | text),
)
def test_a_label_survives_its_journey(uid, problem, references, metadata):
    label = Label(
        uid=uid, problem=problem, references=references, task="math", metadata=metadata
    )
    line = json.dumps({"label": label.to_json()})
    assert Label.from_json(json.loads(line)["label"]) == label
    written = json.loads(label.to_json())
    further = dict.fromkeys(("prefix", "turns", "source", "row"))  # which no file has
    assert dataclasses.asdict(label) == {**written, **further}
    start = dataclasses.replace(label, prefix=[1, 2])
    assert Label.from_json(start.to_json()) == start and json.loads(start.to_json()) == {
        **written,
        "prefix": [1, 2],
    }
