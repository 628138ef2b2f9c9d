"""Answers that solve nothing, tried on every data set of reasoning_gym; and right ones that the guards must let pass."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from r3_openrlhf.config.answer_tasks import REFUSED_DATA_SETS
from r3_openrlhf.evaluation.attacks.generate import TEXTS
from r3_openrlhf.rewards.answers.guards.scorer_guards import GUARDED_DATA_SETS, passes
from tests.tables import tables_beside

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from scorer_attacks import scorer_attacks

TABLES = tables_beside(__file__)
GRADED = sorted(set(DATASETS) - set(REFUSED_DATA_SETS))
# 0.1 s an answer
SLOW = {
    "simple_integration",
    "intermediate_integration",
    "rubiks_cube",
    "sokoban",
    "arc_agi",
}


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else str(value)


def entries_of(name, *, size, seed):
    made = reasoning_gym.create_dataset(name, size=size, seed=seed)
    return [json.loads(json.dumps(made[i], default=plain)) for i in range(size)]


def graded(grade_many, cases):
    """cases: (entry, answer) pairs."""
    return grade_many(
        [(f"<answer>{answer}</answer>", "") for _, answer in cases],
        task="reasoning_gym",
        metadata=[entry for entry, _ in cases],
    )


def accepted(grade_many, names, *, size, seed, per_entry):
    """One line per attack that was not called wrong."""
    cases = []
    for name in names:
        for entry in entries_of(name, size=size, seed=seed):
            attacks = list(scorer_attacks(entry))
            count = per_entry // 10 if name in SLOW else per_entry
            random.Random(seed).shuffle(attacks)
            cases += [(entry, family, answer) for family, answer in attacks[:count]]
    grades = graded(grade_many, [(entry, answer) for entry, _, answer in cases])
    return [
        f"{entry['metadata']['source_dataset']}: {family}: {answer[:100]!r}: {grade.verdict.value} {grade.reason}"
        for (entry, family, answer), grade in zip(cases, grades, strict=True)
        if grade.verdict.value != "wrong"
        and grade.reason != "bad_reference"  # then nothing is paid for that entry
    ]


def test_no_attack_is_paid_by_any_data_set(grade_many):
    assert accepted(grade_many, GRADED, size=1, seed=3, per_entry=60) == []


@pytest.mark.parametrize(("name", "own", "answer", "is_an_attack"), TABLES["attacks"])
def test_what_is_right_after_all_is_no_attack(monkeypatch, name, own, answer, is_an_attack):
    monkeypatch.setitem(TEXTS, "scorers", [{"family": "one", "texts": [answer]}])
    entry = {"question": "", "answer": own, "metadata": {"source_dataset": name}}
    assert list(scorer_attacks(entry)) == [("one", answer)] * is_an_attack


@pytest.mark.soak
@pytest.mark.parametrize("seed", [101, 102, 103])
def test_no_attack_at_volume(grade_many, seed):
    assert accepted(grade_many, GRADED, size=10, seed=seed, per_entry=10_000) == []


def test_every_own_answer_passes_its_guard():
    for name in GUARDED_DATA_SETS:
        for entry in entries_of(name, size=25, seed=8):
            if entry["answer"] is not None:
                assert passes(name, entry["answer"], entry), (name, entry["answer"])


WRONG = [  # the answers of the table that are computed: from an attack by others, and what was found beside it
    ("number_sorting", lambda e: json.dumps(["nan"] * len(e["metadata"]["sorted_numbers"]))),
    (
        "number_sorting",
        lambda e: str([str(float(x) + 0.9) for x in e["metadata"]["sorted_numbers"]]),
    ),
    (
        "countdown",
        lambda e: (
            f"{e['metadata']['target']}e0+0e0*({'+'.join(map(str, e['metadata']['numbers']))})"
        ),
    ),
    (
        "countdown",
        lambda e: (
            f"{hex(e['metadata']['target'])}+0x0*({'+'.join(map(str, e['metadata']['numbers']))})"
        ),
    ),
    (
        "countdown",
        lambda e: (
            f"{'_'.join(str(e['metadata']['target']))}+0_0*({'+'.join(map(str, e['metadata']['numbers']))})"
        ),
    ),
    ("decimal_arithmetic", lambda e: e["answer"][:-2]),
    ("kakurasu", lambda e: " ".join(f"{cell}.4" for cell in e["answer"].split(" "))),
    ("kakurasu", lambda e: re.sub(r"([01])", r"\1.4", e["answer"])),
    ("sokoban", lambda e: " ".join(e["answer"])),
    ("boxnet", lambda e: json.dumps(box_moves(e["metadata"]["initial_state"]) * 10)),
    (
        "graph_color",
        lambda e: json.dumps(
            dict.fromkeys(map(str, e["metadata"]["puzzle"]["vertices"]), [1, 2, 3])
        ),
    ),
]


def other_order(value):
    """A JSON text with the keys of its object from last to first."""
    return json.dumps(dict(reversed(value.items())) if isinstance(value, dict) else value)


def box_moves(squares):
    """Every agent moves every thing to each square next to it, and to its target: solves where impossible ones are passed over."""
    moves = []
    for x, y in (map(float, square.split("_")) for square in squares):
        ends = [
            f"square[{x + dx}, {y + dy}]"
            for dx, dy in ((0, 1), (1, 0), (0, -1), (-1, 0))
            if f"{x + dx}_{y + dy}" in squares
        ]
        for thing in sorted({thing for cell in squares.values() for thing in cell}):
            moves += [
                {f"Agent[{x}, {y}]": f"move({thing}, {end})"}
                for end in [*ends, thing.replace("box", "target")]
            ]
    return moves


RIGHT = [
    ("codeio", lambda e: other_order(json.loads(e["answer"]))),
    (
        "complex_arithmetic",
        lambda e: "{:g}+{:g}i".format(*e["metadata"]["result"]).replace("+-", "-"),
    ),
    (
        "number_sorting",
        lambda e: json.dumps([float(x) for x in e["metadata"]["sorted_numbers"]]),
    ),
    ("kakurasu", lambda e: e["answer"].replace("\n", " \n") + "\n"),
    ("bitwise_arithmetic", lambda e: str(int(e["answer"], 16))),
    ("knights_knaves", lambda e: ", ".join(e["answer"].rstrip(".").lower().split(", and "))),
    ("survo", lambda e: e["answer"].replace(" ", "  ")),
    ("word_sorting", lambda e: e["answer"].replace(", ", ",")),
    ("game_of_life", lambda e: e["answer"].replace(",", ", ")),
    ("quantum_lock", lambda e: e["answer"].replace("→", "->")),
]


def other_verdicts(grade_many, table, verdict, **entries):
    """The answers of a table to entries of their data sets, whose verdict is another one."""
    cases = [
        (entry, answer(entry) if callable(answer) else answer.format(**entry))
        for name, answer in table
        for entry in entries_of(name, **entries)
    ]
    return [
        (entry["metadata"]["source_dataset"], answer, grade.verdict.value, grade.reason)
        for (entry, answer), grade in zip(cases, graded(grade_many, cases), strict=True)
        if grade.verdict.value != verdict
    ]


def test_what_the_scorers_pay_for_nothing_is_wrong(grade_many):
    assert other_verdicts(grade_many, [*TABLES["wrong"], *WRONG], "wrong", size=1, seed=5) == []


def test_other_ways_to_write_it_are_right(grade_many):
    assert (
        other_verdicts(grade_many, [*TABLES["right"], *RIGHT], "correct", size=2, seed=6) == []
    )


def test_the_documented_table_is_the_one_in_force():
    text = (Path(__file__).parents[3] / "docs/rewards.md").read_text(encoding="utf-8")
    names = ", ".join(f"`{name}`" for name in sorted(REFUSED_DATA_SETS))
    count = len(DATASETS) - len(GUARDED_DATA_SETS) - len(REFUSED_DATA_SETS)
    assert f"| refused, with a sentence | {names} |" in text
    assert (
        f"| guarded | {len(GUARDED_DATA_SETS)}, as" in text
        and f"| as they are | the other {count} |" in text
    )
