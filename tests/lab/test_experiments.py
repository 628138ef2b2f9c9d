"""What the experiments of the lab promise about their problems."""

import re
import runpy
from pathlib import Path

import pytest

from r3_openrlhf.config_loading import load_config
from r3_openrlhf.models import lab as lab_model
from r3_openrlhf.problems.held_out import held_out_data
from r3_openrlhf.problems.sources import load_problems


def shortest_tokens(tokenizer, problem):
    """Tokens of a right solution in the shortest style, the end token included."""
    terms = [int(term) for term in re.findall(r"\d+", problem)]
    totals = [sum(terms[: i + 1]) for i in range(len(terms))]
    found = []
    for style in lab_model.STYLES:
        draw = type("Style", (), {"choices": staticmethod(lambda *_, style=style, **__: [style])})
        found.append(len(tokenizer(lab_model.word_solution(terms, totals, draw))["input_ids"]) + 1)
    return min(found)


@pytest.mark.parametrize("held_out", [False, True])
def test_every_problem_of_the_wide_lab_can_be_answered_within_the_limit(tokenizer, held_out):
    config = load_config("lab_wide", [])
    labels = load_problems(held_out_data(config) if held_out else config.data).labels
    needed = [shortest_tokens(tokenizer, label.problem) for label in labels]
    limit = config.rollout.max_new_tokens
    assert len(labels) >= (300 if held_out else 384) and max(needed) <= limit
    assert held_out or max(needed) == limit  # one token less would not do
    old_limit = load_config("lab", []).rollout.max_new_tokens
    assert sum(number > old_limit for number in needed) > 50  # not so under the old one


def test_the_wide_lab_is_the_lab_but_for_its_sizes():
    old, new = (load_config(name, []) for name in ("lab", "lab_wide"))
    assert (new.model, new.replay, new.ranking, new.train.learning_rate) == (
        old.model,
        old.replay,
        old.ranking,
        old.train.learning_rate,
    )
    assert new.data.reasoning_gym | {"size": 96} == old.data.reasoning_gym
    assert new.held_out.max_samples == 300 and new.reward.length_reward_max_tokens == 4 * new.rollout.max_new_tokens
    assert new.reflection.max_attempt_tokens >= new.rollout.max_new_tokens


def test_the_files_of_the_hard_tail_are_what_their_program_writes(tokenizer):
    """Every problem has a misconceived fact on its way, is asked about once, and can be answered within the limit."""
    program = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "lab" / "hard_tail_problems.py"))
    rates = {fact: rate for fact, (rate, _) in lab_model.FACTS.items()}
    limit, seen = load_config("lab_hard_tail", []).rollout.max_new_tokens, set()
    for name, rows in program["draw_problems"]().items():
        assert (program["DIRECTORY"] / f"{name}.jsonl").read_text() == program["text_of"](rows)
        for row in rows:
            terms = [int(term) for term in re.findall(r"\d+", row["problem"])]
            ways = [(sum(terms[:i]) % 10, terms[i]) for i in range(1, len(terms))]
            assert len(terms) == 6 and max(rates[fact] for fact in ways) > 0.9 and row["answer"] == str(sum(terms))
            assert shortest_tokens(tokenizer, row["problem"]) <= limit and row["problem"] not in seen
            seen.add(row["problem"])
    assert len(seen) == 128 + 256


def test_the_hard_tail_is_the_wide_lab_with_other_problems(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    wide, tail = (load_config(name, []) for name in ("lab_wide", "lab_hard_tail"))
    assert (tail.model, tail.rollout, tail.replay, tail.reflection, tail.reward) == (
        wide.model,
        wide.rollout,
        wide.replay,
        wide.reflection,
        wide.reward,
    )
    assert (len(load_problems(tail.data).labels), len(load_problems(held_out_data(tail)).labels)) == (128, 256)
