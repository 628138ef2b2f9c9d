"""What the experiments of the lab promise about their problems."""

import re
import runpy
from pathlib import Path

import pytest

from r3_openrlhf.config.loading import flatten, load_config
from r3_openrlhf.problems.held_out import held_out_data
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.runs.models import lab as lab_model
from r3_openrlhf.study.lab.controls import shares
from r3_openrlhf.study.lab.loop import Lab


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


PROGRAM = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "lab" / "problem_files.py"))
RATES = {fact: rate for fact, (rate, _) in lab_model.FACTS.items()}
KNOWN, MISCONCEIVED = 0.04, 0.93


@pytest.mark.parametrize(
    ("regime", "num_terms", "sizes"),
    [("hard_tail", 6, (128, 256)), ("mostly_solved", 3, (64, 192)), ("truncation_bound", 5, (64, 192))],
)
def test_the_files_of_a_regime_are_what_their_program_writes(tokenizer, regime, num_terms, sizes):
    """The facts on a problem's way are those of its regime; no problem comes twice, and each can be answered within the limit."""
    limit, seen, worst = load_config(f"lab_{regime}", []).rollout.max_new_tokens, set(), []
    files = PROGRAM["draw_problems"](regime)
    assert tuple(len(rows) for rows in files.values()) == sizes
    for name, rows in files.items():
        assert (PROGRAM["DIRECTORY"] / regime / f"{name}.jsonl").read_text() == PROGRAM["text_of"](rows)
        for row in rows:
            terms = [int(term) for term in re.findall(r"\d+", row["problem"])]
            worst.append(max(RATES[sum(terms[:i]) % 10, terms[i]] for i in range(1, len(terms))))
            assert len(terms) == num_terms and row["answer"] == str(sum(terms))
            assert shortest_tokens(tokenizer, row["problem"]) <= limit and row["problem"] not in seen
            seen.add(row["problem"])
    assert len(seen) == sum(sizes)
    known, misconceived = (sum(rate == value for rate in worst) for value in (KNOWN, MISCONCEIVED))
    assert (known, misconceived) == {
        "hard_tail": (0, sum(sizes)),
        "mostly_solved": (sum(sizes) * 7 // 8, sum(sizes) // 8),
        "truncation_bound": (known, 0),
    }[regime]


def test_hardly_any_but_the_shortest_style_keeps_the_limit_of_the_truncation_bound(tokenizer, monkeypatch):
    limit = load_config("lab_truncation_bound", []).rollout.max_new_tokens
    rows = [row for rows in PROGRAM["draw_problems"]("truncation_bound").values() for row in rows]
    assert max(shortest_tokens(tokenizer, row["problem"]) for row in rows) == limit  # one token less would not do
    monkeypatch.setattr(lab_model, "STYLES", {"words": 1, "check": 1})
    assert sum(shortest_tokens(tokenizer, row["problem"]) <= limit for row in rows) <= 0.05 * len(rows)


@pytest.mark.soak  # builds the lab's model: eight minutes of a processor
@pytest.mark.parametrize(
    ("experiment", "is_what_its_name_says"),
    [
        ("lab_hard_tail", lambda found: found.all_wrong > 0.55 and found.all_correct < 0.05),
        (
            "lab_mostly_solved",
            lambda found: found.correct > 0.7 and found.all_correct > 0.35 and found.all_wrong < 0.15,
        ),
        (
            "lab_truncation_bound",
            lambda found: found.truncated > 0.5 and found.truncated_of_wrong > 0.65 and found.all_wrong < 0.35,
        ),
        ("lab_wide", lambda found: found.all_wrong + found.all_correct < 0.5),  # mostly mixed
    ],
)
def test_a_regime_is_at_the_start_what_its_name_says(experiment, is_what_its_name_says, monkeypatch):
    """Of the lab's own model, which is built once and kept."""
    monkeypatch.chdir(Path(__file__).parents[3])
    config = load_config(experiment, ["data.reasoning_gym.size=64"])
    found = shares(Lab(config), load_problems(config.data).labels, n=1)
    assert is_what_its_name_says(found), found


def test_the_hard_tail_is_the_wide_lab_with_other_problems(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    wide, tail = (load_config(name, []) for name in ("lab_wide", "lab_hard_tail"))
    assert (tail.model, tail.rollout, tail.replay, tail.reflection, tail.reward) == (
        wide.model,
        wide.rollout,
        wide.replay,
        wide.reflection,
        wide.reward,
    )
    assert (len(load_problems(tail.data).labels), len(load_problems(held_out_data(tail)).labels)) == (128, 256)


@pytest.mark.parametrize("experiment", ["lab_mostly_solved", "lab_truncation_bound", "lab_one_epoch"])
def test_the_other_regimes_are_the_wide_lab_but_for_problems_limit_and_length(experiment, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    wide, other = (flatten(load_config(name, [])) for name in ("lab_wide", experiment))
    differing = {key for key in wide if wide[key] != other[key]}
    assert differing <= {
        "run_dir",
        "data.path",
        *(f"held_out.{key}" for key in ("path", "max_samples", "every_steps", "n_samples")),
        "rollout.max_new_tokens",
        "reward.length_reward_max_tokens",
        "train.num_epochs",
        "train.max_generated_tokens",
    }
    assert other["reward.length_reward_max_tokens"] == 4 * other["rollout.max_new_tokens"]
    assert (other["train.num_epochs"] == 1) is (experiment == "lab_one_epoch")
