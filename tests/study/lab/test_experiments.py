"""The world of false positives is what its name says."""

import itertools
import random
import re
import runpy
from pathlib import Path

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.problems.held_out import held_out_data
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.runs.models import lab as lab_model

ROOT = Path(__file__).parents[3]
PROGRAM = runpy.run_path(str(ROOT / "examples" / "lab" / "problem_files.py"))


def test_its_files_are_what_their_program_writes_and_no_problem_comes_twice():
    found = PROGRAM["draw_problems"]()
    for name, rows in found.items():
        assert (PROGRAM["DIRECTORY"] / f"{name}.jsonl").read_text() == PROGRAM["text_of"](rows)
    rows = found["train"] + found["held_out"]
    assert len({row["problem"] for row in rows}) == len(rows) == 128 + 256
    for row in rows:
        terms = [int(term) for term in re.findall(r"\d+", row["problem"])]
        facts = [(total % 10, term) for total, term in zip(itertools.accumulate(terms), terms[1:], strict=False)]
        assert row["answer"] == str(sum(terms)) and max(lab_model.FACTS[fact][0] for fact in facts) == 0.93


def test_most_right_answers_have_wrong_steps(monkeypatch):
    """Of solutions as the model is taught them."""
    monkeypatch.chdir(ROOT)
    config, rng = load_config("lab_false_positives", []), random.Random(0)
    assert len(load_problems(held_out_data(config)).labels) == 256
    right = earned = 0
    for label in load_problems(config.data).labels * 40:
        terms = [int(term) for term in re.findall(r"\d+", label.problem)]
        totals, slipped = lab_model.work_out(terms, rng)
        right += totals[-1] == sum(terms)
        earned += not slipped
    assert right > 400 and earned < 0.25 * right
