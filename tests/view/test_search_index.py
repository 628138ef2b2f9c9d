"""The index of a run: what is found, what an update reads, and what a resumed run, a kill or a second viewer does to it."""

import json
import signal
import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.rollout_files import file_of
from r3_openrlhf.view import index_file, search_index, step_rows
from r3_openrlhf.view.problem_life import life_of
from r3_openrlhf.view.search_index import Filter, RunIndex, search_runs
from r3_openrlhf.view.step_rows import HEAD_CHARS, TAIL_CHARS


def row(step, text="", *, uid="p", verdict="wrong", **changes):
    reward = {"correct": 1.5, "wrong": 0.0, "ungraded": None}[verdict]
    return {
        "step": step, "uid": uid, "context": "plain", "group": 0, "group_replay": "off", "group_ranking": "off", "verdict": verdict, "reason": verdict, "outcome_reward": reward,
        "reward": reward, "ranked": False, "advantage": 0.5, "recalled_from": None, "truncated": False, "num_tokens": len(text),
        "entropy_peak": None, "entropy_global": None, "text": text, **changes,
    }  # fmt: skip


def make_run(path, steps):
    run = RunDirectory(path)
    run.create(load_config("cpu_smoke", [f"run_dir={path}"]))
    for step, rows in steps.items():
        run.write_rollouts(step, rows)
    return run


@pytest.fixture
def index_of(tmp_path):
    """run directory -> its index, not updated yet; every index of a test lies in one cache."""
    opened = []

    def open_index(run):
        opened.append(RunIndex(run.path, cache=tmp_path / "cache"))
        return opened[-1]

    yield open_index
    for index in opened:
        index.close()


def places(found):
    return [(hit.row["step"], hit.row["at"]) for hit in found.rollouts]


def read_steps(index):
    return [progress.step for progress in index.update()]


# ── searching ──


@pytest.fixture
def run(tmp_path):
    """Two steps by hand. Step 2 has a recalled copy of a row of step 1."""
    first = [
        row(1, "Seven dwarfs dug for gold, so the answer is 7", verdict="correct", advantage=1.0),
        row(1, "the dwarfs are seven", advantage=-1.0, truncated=True),
        row(
            1, "Élan vital: \\frac{1}{2} of it", uid="q", group=1, verdict="correct", reward=1.25, outcome_reward=1.25
        ),
    ]
    second = [
        row(2, "gold and seven silver coins", group=0, ranked=True, reward=0.25, entropy_peak=2.0, entropy_global=0.5),
        row(2, "no word of it", verdict="ungraded", group=None, advantage=None),
        row(2, "<b>seven</b>", uid="q", context="reflection", group=1),
        row(2, "Seven dwarfs dug for gold, so the answer is 7", verdict="correct", recalled_from=1),
    ]
    return make_run(tmp_path / "run", {1: first, 2: second})


@pytest.fixture
def index(run, index_of):
    index = index_of(run)
    assert read_steps(index) == [2, 1]  # the newest first
    return index


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("seven", [(2, 2), (2, 0), (1, 1), (1, 0)]),
        ("seven gold", [(2, 0), (1, 0)]),
        ('"seven dwarfs"', [(1, 0)]),
        ("sev*", [(2, 2), (2, 0), (1, 1), (1, 0)]),
        ("seven -dwarfs", [(2, 2), (2, 0)]),
        ('dwarfs -"seven dwarfs"', [(1, 1)]),
        ("ELAN", [(1, 2)]),
        ("\\frac{1}{2}", [(1, 2)]),
        ("wrong", []),  # a verdict is no word of a text
        ("dwarfs OR gold", []),  # no syntax: three words
        ("", [(2, 3), (2, 2), (2, 1), (2, 0), (1, 2), (1, 1), (1, 0)]),  # all, recalled ones too
    ],
)
def test_what_is_found(index, query, expected):
    found = index.search(query)
    assert places(found) == expected
    assert (found.total, found.more) == (len(expected), False)


@pytest.mark.parametrize(
    ("query", "where", "expected"),
    [
        ("seven", Filter(verdict="correct"), [(1, 0)]),
        ("seven", Filter(context="reflection"), [(2, 2)]),
        ("seven", Filter(first_step=2), [(2, 2), (2, 0)]),
        ("seven", Filter(last_step=1, truncated=True), [(1, 1)]),
        ("seven", Filter(uid="q"), [(2, 2)]),
        ("seven", Filter(uid="nobody"), []),
        ("seven", Filter(ranked=True), [(2, 0)]),
        ("seven", Filter(min_tokens=27), [(2, 0), (1, 0)]),
        ("seven", Filter(max_tokens=20, verdict="wrong"), [(2, 2), (1, 1)]),
        ("seven", Filter(recalled=False), [(2, 2), (2, 0), (1, 1), (1, 0)]),
        ("", Filter(recalled=True), [(2, 3)]),
        ("", Filter(verdict="ungraded"), [(2, 1)]),
        ("", Filter(uid="q", first_step=1, last_step=1), [(1, 2)]),
        ("", Filter(first_step=3), []),
    ],
)
def test_filters(index, query, where, expected):
    assert places(index.search(query, where=where)) == expected


@pytest.mark.parametrize("query", ["", "seven"])
def test_the_order_is_that_of_the_numbers(index, query):
    """Against Python's sort; what has no number comes last, both ways; pages are cut out of the same list."""
    hits = index.search(query).rollouts
    for sort, name in (
        ("reward", "reward"),
        ("length", "num_tokens"),
        ("score", "outcome_reward"),
        ("entropy", "entropy_global"),
    ):
        for sign in (1, -1):

            def order(hit, name=name, sign=sign):
                value = hit.row[name]
                return (value is None, sign * (value or 0.0))

            expected = sorted(hits, key=order)
            found = index.search(query, sort=sort, descending=sign < 0)
            assert found.rollouts == expected
            assert index.search(query, sort=sort, descending=sign < 0, limit=2, offset=1).rollouts == expected[1:3]
    assert index.search(query, descending=False).rollouts == hits[::-1]


def test_a_snippet_is_text_and_places(index):
    hit = index.search("seven", where=Filter(uid="q")).rollouts[0]
    assert (hit.snippet, hit.matches) == ("<b>seven</b>", ((3, 8),))
    for hit in index.search("gold seven").rollouts:
        assert {hit.snippet[begin:end].lower() for begin, end in hit.matches} == {"gold", "seven"}
    assert index.search("").rollouts[1].snippet == "<b>seven</b>"


def test_the_numbers_are_those_of_the_file(index, run):
    for hit in index.search("").rollouts:
        stored = list(run.read_rollouts(step=hit.row["step"]))[hit.row["at"]]
        assert {name: stored[name] for name in ("uid", *index_file.COLUMNS)} | {
            "step": hit.row["step"],
            "at": hit.row["at"],
        } == hit.row
        assert hit.run == str(run.path)


@pytest.mark.parametrize(
    ("query", "settings", "sentence"),
    [
        ('"open', {}, "has a quotation mark without its partner"),
        ("+ ---", {}, "has no letter and no digit"),
        ("-gold", {}, "only says what must not be there"),
        ("x" * 2000, {}, "has 2,000 characters; use 1,000 or fewer"),
        ("a " * 60, {}, "has 60 words"),
        ("gold", {"where": Filter(verdict="corect")}, r"verdict is 'corect'; did you mean 'correct'\?"),
        ("gold", {"where": Filter(context="x")}, "context is 'x'"),
        ("gold", {"sort": "size"}, "sort is 'size'"),
    ],
)
def test_a_mistake_is_one_sentence(index, query, settings, sentence):
    with pytest.raises(R3Error, match=sentence):
        index.search(query, **settings)


@pytest.fixture(scope="module")
def any_index(tmp_path_factory):
    path = tmp_path_factory.mktemp("any")
    run = make_run(path / "run", {1: [row(1, "a NEAR b; AND c OR 'd' -- tags : correct x* ^y {z}")]})
    index = RunIndex(run.path, cache=path / "cache")
    read_steps(index)
    yield index
    index.close()


@given(query=st.text(max_size=30) | st.text(alphabet="abAND OR NOT NEAR()\"'*:^{}+-\\;%_", max_size=30))
@example("NEAR(a b, 5)")
@example("tags : correct")
@example("a\0b \ud800")
@example("x'); DROP TABLE rollouts; --")
@settings(max_examples=150, deadline=None)
def test_whatever_is_typed_is_data(any_index, query):
    """An answer, or one sentence; never an error of SQLite."""
    for ask in (lambda text: any_index.search(text).rollouts, any_index.problems):
        try:
            assert isinstance(ask(query), list)
        except R3Error as error:
            assert str(error).startswith("the query ")
    assert any_index.search("").total == 1


# ── problems and groups ──


def test_the_life_of_a_problem(index):
    """All its rows in order; how each was come by."""
    life = index.problem_life("p")
    assert [(one["step"], one["at"], one["verdict"], one["recalled_from"]) for one in life] == [
        (1, 0, "correct", None), (1, 1, "wrong", None), (2, 0, "wrong", None), (2, 1, "ungraded", None), (2, 3, "correct", 1),
    ]  # fmt: skip
    assert [one["context"] for one in index.problem_life("q")] == ["plain", "reflection"]
    assert index.problem_life("nobody") == []


def test_the_life_of_states(tmp_path, index_of):
    """Cut twice at the same tokens, tried in two steps; another is waiting, and one was cut by no critic."""

    def prefix(step, state, verdict, num_tokens=2):
        return row(
            step, "abcd", verdict=verdict, context="prefix", group=1, prefix_tokens=num_tokens, prefix_state=state
        )

    def cut(step, state, value, num_tokens=2):
        return row(step, f"abc{step}", cut_tokens=num_tokens, cut_value=value, cut_state=state)

    run = make_run(
        tmp_path / "run",
        {
            1: [cut(1, "aa", 0.25)],
            2: [cut(2, "bb", 0.5, 3), prefix(2, "aa", "wrong"), prefix(2, "aa", "wrong")],
            3: [cut(3, "aa", 0.75), prefix(3, "aa", "correct"), prefix(3, "aa", "wrong")],
            4: [prefix(4, "cc", "wrong", 1), prefix(4, "cc", "ungraded", 1)],
        },
    )
    index = index_of(run)
    list(index.update())
    life = life_of(SimpleNamespace(config=None), index.problem_life("p"))
    found = [
        (one.num_tokens, one.cuts, [(step, group.num_correct, group.num_fresh) for step, group in one.tried])
        for one in life.states
    ]
    assert found == [
        (2, [(1, 0.25), (3, 0.75)], [(2, 0, 2), (3, 1, 2)]),
        (3, [(2, 0.5)], []),
        (1, [], [(4, 0, 2)]),
    ]


def test_problems_are_searched(tmp_path, index_of):
    run = make_run(tmp_path / "run", {1: [row(1, "x"), row(1, "y", uid="unknown")]})
    label = Label(uid="p", problem="How many <i>dwarfs</i> are there?", references=["7", "seven"], task="math")
    other = Label(uid="o", problem="How many coins?", references=["3"], task="math")
    run.data.write_text(
        "".join(json.dumps({"input": "…", "label": one.to_json(), "datasource": "d"}) + "\n" for one in (label, other))
    )
    index = index_of(run)
    read_steps(index)
    (found,) = index.problems("dwarfs")
    assert (found.uid, found.reference) == ("p", "7\nseven")
    assert found.snippet[slice(*found.matches[0])] == "dwarfs" and "<i>" in found.snippet
    assert [one.uid for one in index.problems("seven")] == ["p"]
    assert {one.uid for one in index.problems("how many")} == {"p", "o"}


def test_several_runs_are_merged_in_order(tmp_path, index_of):
    indexes = []
    for name, lengths in (("one", (3, 9, 5)), ("two", (8, 4))):
        rows = {step: [row(step, "gold " + "x" * length)] for step, length in enumerate(lengths, start=1)}
        indexes.append(index_of(make_run(tmp_path / name, rows)))
        read_steps(indexes[-1])
    found = search_runs(indexes, "gold", sort="length", limit=2, offset=1)
    assert [hit.row["num_tokens"] - 5 for hit in found.rollouts] == [8, 5] and found.total == 5
    assert [hit.row["step"] for hit in search_runs(indexes, "gold").rollouts] == [3, 2, 2, 1, 1]


# ── what of a text is searched ──


@pytest.mark.parametrize(
    "length", [0, 1, HEAD_CHARS, HEAD_CHARS + 1, HEAD_CHARS + TAIL_CHARS, HEAD_CHARS + TAIL_CHARS + 1, 5000]
)
def test_head_and_tail_are_the_ends_of_the_text(tmp_path, length):
    text = ("0123456789" * 500)[: length - 1] + "é" if length else ""
    run = make_run(tmp_path / "run", {1: [row(1, text)]})
    ((head, tail, _),) = step_rows.read_step(file_of(run.rollouts, 1), 1).texts
    assert head == text[:HEAD_CHARS]
    assert tail == (text[HEAD_CHARS:] if length <= HEAD_CHARS + TAIL_CHARS else text[-TAIL_CHARS:])


def test_the_middle_of_a_long_text_is_not_searched(tmp_path, index_of):
    text = "alpha " + "x " * 1000 + "beta " + "x " * 1000 + "gamma"
    index = index_of(make_run(tmp_path / "run", {1: [row(1, text)]}))
    read_steps(index)
    assert [index.search(word).total for word in ("alpha", "beta", "gamma")] == [1, 0, 1]


def test_control_characters_are_shown_as_such(tmp_path, index_of):
    """Also those that the index marks matches with."""
    index = index_of(make_run(tmp_path / "run", {1: [row(1, "\x02gold\x03 \0 \x02 coin")]}))
    read_steps(index)
    (hit,) = index.search("coin").rollouts
    assert hit.snippet == "\ufffdgold\ufffd \ufffd \ufffd coin" and hit.matches == ((11, 15),)


def test_texts_are_found_again_in_any_block(tmp_path, index_of):
    """Rows without a text between others, and one block more than whole ones."""
    rows = [row(1, "" if n % 3 == 0 else f"gold n{n}x") for n in range(2 * index_file.TEXT_ROWS + 5)]
    run = make_run(tmp_path / "run", {1: rows})
    index = index_of(run)
    read_steps(index)
    hits = index.search("gold", limit=1000).rollouts
    assert [hit.row["at"] for hit in hits] == [n for n in reversed(range(len(rows))) if n % 3]
    assert all(hit.snippet == f"gold n{hit.row['at']}x" and hit.matches == ((0, 4),) for hit in hits)
    assert places(index.search("n64x")) == [(1, 64)]
    run.write_rollouts(1, rows[:70])  # written again: no word of the others is left
    read_steps(index)
    assert index.search("n128x").total == 0 and index.search("gold").total == 46


# ── growing ──


def test_an_update_reads_new_steps_alone(run, index, index_of, monkeypatch):
    assert read_steps(index) == [] and index.is_current()
    run.write_rollouts(3, [row(3, "gold")])
    assert not index.is_current()
    (run.rollouts / "step_000001.parquet").chmod(0)  # nobody may open it, were it asked for again
    opened = []
    read = step_rows.read_step
    monkeypatch.setattr(
        step_rows, "read_step", lambda file, step, **more: opened.append(step) or read(file, step, **more)
    )
    assert read_steps(index) == [3] == opened
    other = index_of(run)  # as a viewer that is started later
    assert read_steps(other) == [] and places(other.search("gold"))[0] == (3, 0)
    assert index.search("").total == 8 and set(index.counts()) == {1, 2, 3}


def test_a_resumed_run_that_wrote_steps_again_is_noticed(run, index):
    """It went on from step 1: step 2 has other rollouts now, step 3 has not come yet."""
    run.write_rollouts(3, [row(3, "bronze")])
    read_steps(index)
    run.roll_back(1)
    run.write_rollouts(2, [row(2, "copper")])
    assert read_steps(index) == [2]
    assert index.search("bronze").total == 0 and index.search("silver").total == 0
    assert places(index.search("copper")) == [(2, 0)]
    assert set(index.counts()) == {1, 2} and {one["step"] for one in index.problem_life("q")} == {1}
    with sqlite3.connect(index.path) as connection:  # SQLite's own check of the words
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
        assert connection.execute("SELECT count(*) FROM words WHERE words MATCH 'silver OR bronze'").fetchone() == (0,)
    connection.close()


def test_a_damaged_file_is_named_and_read_again_when_it_changes(run, index_of):
    good = (run.rollouts / "step_000002.parquet").read_bytes()
    (run.rollouts / "step_000002.parquet").write_bytes(b"no Parquet")
    index = index_of(run)
    problems = {progress.step: progress.problem for progress in index.update()}
    assert problems[1] is None and "step_000002.parquet is damaged" in problems[2]
    assert index.faults() == [problems[2]] and index.search("").total == 3
    assert read_steps(index) == []
    (run.rollouts / "step_000002.parquet").write_bytes(good)
    assert read_steps(index) == [2] and index.faults() == []


KILLED = """
import os, signal, sys
from r3_openrlhf.view import search_index
from r3_openrlhf.view.search_index import RunIndex
insert = search_index.insert
def die(connection, step, found):
    insert(connection, step, found)
    if step == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # everything of the step is written, nothing committed
search_index.insert = die
list(RunIndex(sys.argv[1], cache=__import__("pathlib").Path(sys.argv[2])).update())
"""


def test_a_killed_update_loses_the_step_that_it_was_at(run, tmp_path, index_of):
    done = subprocess.run([sys.executable, "-c", KILLED, str(run.path), str(tmp_path / "cache")])
    assert done.returncode == -signal.SIGKILL
    index = index_of(run)
    assert places(index.search("gold")) == [(2, 0)]
    assert read_steps(index) == [1]
    assert places(index.search("gold")) == [(2, 0), (1, 0)]


def test_two_viewers_at_once(run, index_of, monkeypatch):
    """While one reads step 2, the other indexes everything: nothing stands there twice."""
    one, two = index_of(run), index_of(run)
    read, others = step_rows.read_step, []

    def slowly(file, step, **more):
        if step == 2 and not others:
            others.append(step)
            others.extend(read_steps(two))
        return read(file, step, **more)

    monkeypatch.setattr(step_rows, "read_step", slowly)
    assert read_steps(one) == [2, 1] and others == [2, 2, 1]
    assert one.search("").total == two.search("").total == 7
    assert places(one.search("gold")) == places(two.search("gold")) == [(2, 0), (1, 0)]
    assert one.is_current() and two.is_current()


def test_a_file_of_another_version_or_a_damaged_one_is_built_anew(run, index, index_of):
    index.close()
    with sqlite3.connect(index.path) as connection:
        connection.execute(f"PRAGMA user_version = {index_file.SCHEMA_VERSION + 1}")
    connection.close()
    again = index_of(run)
    assert read_steps(again) == [2, 1]
    again.close()
    for end in ("-wal", "-shm"):
        again.path.with_name(again.path.name + end).unlink(missing_ok=True)
    again.path.write_bytes(b"no database" * 1000)
    last = index_of(run)
    assert read_steps(last) == [2, 1] and last.search("gold").total == 2


def test_a_cache_that_cannot_be_written_is_one_sentence(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(R3Error, match="set XDG_CACHE_HOME to a directory"):
        RunIndex(run.path, cache=tmp_path / "file" / "cache")


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert search_index.cache_directory() == tmp_path / "r3_openrlhf" / "viewer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert search_index.cache_directory() == tmp_path / "home" / ".cache" / "r3_openrlhf" / "viewer"
