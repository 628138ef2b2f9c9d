"""Problems of reasoning-gym are the same in each process, and for each size."""

import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems import drawing
from r3_openrlhf.problems.drawing import BY_HASH, drawn
from r3_openrlhf.problems.sources import check_source, load_problems
from tests.problems.files import refused

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"
# Draws `number` entries of each named data set: {name: entries, or the error}
PROGRAM = """
import itertools, json, sys
from r3_openrlhf.problems import drawing
names, number, draw = json.loads(sys.argv[1])
found = {}
for name in names:
    try:
        entries = getattr(drawing, draw)(name, {"seed": 5})
        found[name] = list(itertools.islice(entries, number))
    except (drawing.NotDrawn, drawing.NotKept) as error:
        found[name] = str(error)
print("\\n" + json.dumps(found))
"""


def drawn_under(hash_seed, names, number, *, draw="drawn"):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([list(names), number, draw])],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])  # the library prints, too


@pytest.mark.soak
def test_every_data_set_draws_the_same_in_each_process():
    """The table is of the library's release 0.1.25: those that are not in it are drawn in the run's own process."""
    from reasoning_gym.factory import DATASETS

    one, two = (drawn_under(seed, sorted(DATASETS), 2) for seed in (1, 2))
    assert [name for name in DATASETS if one[name] != two[name]] == []
    assert {name: found for name, found in one.items() if isinstance(found, str)} == {
        "composite": "Must specify at least one dataset"
    }


def test_the_table_is_needed():
    """Without a process of their own the data sets differ."""
    names = sorted(BY_HASH - {"knight_swap"})
    one, two = (drawn_under(seed, names, 3, draw="_lines_of") for seed in (1, 2))
    assert [name for name in names if one[name] == two[name]] == []


@pytest.mark.parametrize("task", ["acre", "chain_sum", "list_functions", "word_ladder"])
def test_a_larger_size_begins_with_the_problems_of_a_smaller_one(task):
    few, many = (
        load_problems(
            DataConfig(path=f"reasoning_gym:{task}", reasoning_gym={"size": size, "seed": 3})
        ).labels
        for size in (5, 150)
    )
    assert len(few) == 5 and len(many) == 150 and many[:5] == few


def test_word_ladder_is_drawn_at_the_default_size():
    """The library refuses a size above 20,000; 50 draws a problem were asked of it at once."""
    data = DataConfig(path="reasoning_gym:word_ladder", reasoning_gym={"size": 1000})
    check_source(data)


@pytest.mark.parametrize(("wanted", "largest"), [(300, 200), (500, None)])
def test_the_size_that_a_refusal_names_works(monkeypatch, wanted, largest):
    import reasoning_gym

    create = reasoning_gym.create_dataset

    def limited(task, size, **options):
        if largest is not None and size > largest:
            raise ValueError("Dataset size too large")
        return create(task, size=size, **options)

    monkeypatch.setattr(reasoning_gym, "create_dataset", limited)
    few = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1 + bool(largest)}

    def labels(size):
        options = {"size": size, "seed": 1, **few}
        return load_problems(
            DataConfig(path="reasoning_gym:chain_sum", reasoning_gym=options)
        ).labels

    with pytest.raises(DataError, match=f"different problems .* not {wanted}; use") as error:
        labels(wanted)
    works = int(re.search(r"data\.reasoning_gym\.size=(\d+)", str(error.value))[1])
    assert 1 < works < wanted and len(labels(works)) == works


def test_a_process_of_its_own_refuses_in_the_library_s_words():
    data = DataConfig(path="reasoning_gym:word_ladder", reasoning_gym={"max_word_length": 9})
    with refused(DataError, "data.reasoning_gym does not fit the task word_ladder"):
        check_source(data)
    with refused(DataError, "unexpected keyword argument 'words'"):
        check_source(DataConfig(path="reasoning_gym:word_ladder", reasoning_gym={"words": 9}))


def test_a_process_that_dies_is_a_sentence(monkeypatch):
    monkeypatch.setattr(drawing, "__name__", "r3_openrlhf.problems.no_such_module")
    with pytest.raises(drawing.NotDrawn, match="no_such_module"):
        next(drawn("word_ladder", {"seed": 1}))


def test_a_process_ends_when_enough_is_drawn():
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    entries = drawn("ransom_note", {"seed": 1})
    assert len(list(itertools.islice(entries, 2))) == 2 and children.read_text() != before
    entries.close()
    assert children.read_text() == before and not multiprocessing.active_children()


def test_the_page_names_the_data_sets():
    line = PAGE.read_text().partition("**In each process")[2].partition("hash seed")[0]
    assert set(re.findall(r"`([a-z_]+)`", line)) == BY_HASH
