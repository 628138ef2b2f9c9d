"""A search over the files of steps, and the history of a problem."""

import json
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.rollout_files import file_of
from r3_openrlhf.view import search as module
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.search import marked, search, texts_in


def row(step, text="", *, uid="p", verdict="wrong", **changes):
    reward = {"correct": 1.5, "wrong": 0.0, "ungraded": None}[verdict]
    return {
        "step": step,
        "uid": uid,
        "context": "plain",
        "group": 0,
        "group_replay": "off",
        "group_ranking": "off",
        "verdict": verdict,
        "reason": verdict,
        "outcome_reward": reward,
        "reward": reward,
        "ranked": False,
        "advantage": 0.5,
        "recalled_from": None,
        "truncated": False,
        "num_tokens": len(text),
        "entropy_peak": None,
        "entropy_global": None,
        "text": text,
        **changes,
    }


def make_run(path, steps):
    run = RunDirectory(path)
    run.create(load_config("cpu_smoke", [f"run_dir='{path.parent}'"]))
    for step, rows in steps.items():
        run.write_rollouts(step, rows)
    return RunReader(path, name=path.name)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps by hand, in a directory whose name is a pattern. Step 2 has a recalled copy of a row of step 1."""
    first = [
        row(
            1, "Seven dwarfs dug for gold, so the answer is 7", verdict="correct", advantage=1.0
        ),
        row(1, "the dwarfs are seven", advantage=-1.0, truncated=True),
        row(
            1,
            "\\frac{1}{2} of it",
            uid="q",
            group=1,
            verdict="correct",
            reward=1.25,
            outcome_reward=1.25,
        ),
    ]
    second = [
        row(
            2,
            "gold and seven silver coins",
            ranked=True,
            reward=0.25,
            entropy_peak=2.0,
            entropy_global=0.5,
        ),
        row(2, "no word of it", verdict="ungraded", group=None, advantage=None),
        row(2, "<b>seven</b>", uid="q", context="reflection", group=1),
        row(
            2,
            "Seven dwarfs dug for gold, so the answer is 7",
            verdict="correct",
            recalled_from=1,
        ),
    ]
    return make_run(tmp_path_factory.mktemp("search") / "a=1 [b] *?", {1: first, 2: second})


def places(run, query="", offset=0, **form):
    hits, faults = search(
        [run], query, {name: str(value) for name, value in form.items()}, offset=offset
    )
    assert faults == []
    return [(hit["step"], hit["at"]) for _, hit in hits]


HITS = Path(__file__).with_name("search_hits.jsonl").read_text().splitlines()


@pytest.mark.parametrize("case", HITS)
def test_hits(run, case):
    """The newest step comes first; a verdict is no word of a text."""
    query, form, expected = json.loads(case).values()
    assert places(run, query, **form) == [tuple(hit) for hit in expected]


def test_the_numbers_are_those_of_the_file(run):
    for name, hit in search([run], "", {})[0]:
        stored = list(run.directory.read_rollouts(step=hit["step"]))[hit["at"]]
        assert {
            key: stored[key] for key in hit if key not in ("at", "file", "snippet")
        }.items() <= hit.items()
        assert name == run.name


def test_a_snippet_is_around_the_first_match(tmp_path):
    text = "alpha " + "x" * 5000 + " Beta beta " + "y" * 5000
    ((_, hit),), _ = search([make_run(tmp_path / "run", {1: [row(1, text)]})], "beta", {})
    assert (
        len(hit["snippet"]) == module.SNIPPET and hit["snippet"].index("Beta") == module.BEFORE
    )
    assert marked("<b>Seven</b>", ["seven"]) == [
        (False, "<b>"),
        (True, "Seven"),
        (False, "</b>"),
    ]
    assert marked("a.b", []) == [(False, "a.b")] and marked("a.b", ["."]) == [
        (False, "a"),
        (True, "."),
        (False, "b"),
    ]


@pytest.mark.parametrize(
    ("query", "form", "sentence"),
    [
        ("x" * 2000, {}, "has 2,000 characters; use 1,000 or fewer"),
        ("gold", {"first_step": "many"}, "first step is 'many'; use a whole number"),
    ],
)
def test_a_mistake_is_one_sentence(run, query, form, sentence):
    with pytest.raises(R3Error, match=sentence):
        search([run], query, form)


@given(
    query=st.text(max_size=30) | st.text(alphabet="abAND OR NOT\"'*:^{}+-\\;%_$?", max_size=30)
)
@example("a\0b \ud800")
@example("$files x'); DROP TABLE rollouts; --")
@settings(max_examples=60, deadline=None)
def test_whatever_is_typed_is_data(run, query):
    """Agrees with Python: every text of the query is in the response, but for the case of its first letter."""
    texts = texts_in(query)

    def fits(text):
        return all(part in text or part[0].swapcase() + part[1:] in text for part in texts)

    expected = [
        place
        for place in places(run)
        if fits(list(run.directory.read_rollouts(step=place[0]))[place[1]]["text"])
    ]
    assert places(run, query) == expected


def test_a_damaged_file_is_named_and_read_again_when_it_changes(tmp_path):
    """Whatever is wrong with it, the other step is searched; a file of another version lacks columns."""
    run = make_run(tmp_path / "run", {step: [row(step, "gold " * 4000)] for step in (1, 2)})
    file = file_of(run.directory.rollouts, 2)
    good, table = file.read_bytes(), pq.read_table(file)
    middle = good.index(b"gold") + 40
    for content in (
        b"no Parquet",
        good[: len(good) // 2],
        good[:middle] + bytes(60) + good[middle + 60 :],
    ):
        file.write_bytes(content)
        hits, (fault,) = search([run], "gold", {})
        assert [hit["step"] for _, hit in hits] == [1] and re.match(
            f"{re.escape(str(file))} (is damaged|cannot be read)", fault
        )
    pq.write_table(table.drop_columns(["entropy_global", "answer", "cut_state"]), file)
    assert len(places(run, "gold")) == 2


# DuckDB samples this many rows where it guesses a type, and a glob has the types of its first file.
SAMPLED_ROWS = 20_480


def test_a_row_after_many_without_a_value_has_its_value(tmp_path):
    """The entropy and the reward are null in the first 20,480 rows of a step, and there in the next one."""
    rows = [row(1, "nothing", verdict="ungraded") for _ in range(SAMPLED_ROWS)]
    rows.append(row(1, "at the end", verdict="correct", entropy_peak=0.1))
    reader = make_run(tmp_path / "run", {1: rows})
    ((_, found),), faults = search([reader], '"at the end"', {})
    assert faults == []
    assert (found["entropy_peak"], found["reward"]) == (0.1, 1.5)


@pytest.mark.parametrize("narrow_step", [1, 2])
def test_numbers_of_files_with_floats_of_two_widths(tmp_path, narrow_step):
    """A step of another program with float32 rewards changes no number of the steps around it."""
    reader = make_run(
        tmp_path / "run",
        {step: [row(step, "same text", verdict="correct", reward=0.1)] for step in (1, 2)},
    )
    file = file_of(reader.directory.rollouts, narrow_step)
    table = pq.read_table(file)
    place = table.column_names.index("reward")
    narrow = table.column("reward").cast(pyarrow.float32())
    pq.write_table(table.set_column(place, "reward", narrow), file)
    hits, faults = search([reader], "same", {})
    assert len(hits) + len(faults) == 2
    by_step = {hit["step"]: hit["reward"] for _, hit in hits}
    assert by_step[3 - narrow_step] == 0.1
