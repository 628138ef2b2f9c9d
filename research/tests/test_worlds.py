"""What the lab's worlds promise: every verdict is earned, and the skills are where the record says."""

import dataclasses
import itertools
import random
from collections import Counter

import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.held_out import held_out_data
from r3_openrlhf.problems.sources import load_problems
from research import facts as models
from research import load, worlds
from research.loop import Lab
from research.sums import is_right

FEW = {
    name: worlds.World(policy=one.policy, reuse=one.reuse, train=32, held_out=16)
    for name, one in worlds.WORLDS.items()
}


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(worlds, "WORLDS", FEW)


def rows_of(world, seed=1, part="train"):
    return list(worlds.problems(world=world, seed=seed, part=part))


def cells_of(world, problem):
    """Of the first right solution."""
    policy = models.POLICIES[worlds.WORLDS[world].policy]
    if not policy.walk:
        return [
            divmod(int(number), models.SIZE)
            for number in worlds._numbers("c", problem["problem"])
        ]
    rows = worlds._numbers("r", problem["answer"][0])
    return list(zip(rows, worlds._numbers("x", problem["problem"]), strict=False))


@pytest.mark.parametrize("world", FEW)
def test_a_verdict_is_right_exactly_where_every_step_is(few, world):
    """Solutions as the model is taught them, and as a better one would write them, against the steps themselves."""
    policy, earned, rng = (
        models.POLICIES[FEW[world].policy],
        worlds.is_earned(world),
        random.Random(1),
    )
    table = models.facts(policy)
    better = {cell: 0.6 for cell in table}
    right = Counter()
    for problem, skill in itertools.product(rows_of(world), ({}, better)):
        cells = cells_of(world, problem)
        rows, columns = [row for row, _ in cells], [column for _, column in cells]
        for _ in range(8):
            entries = models.draw_solution(
                rng, policy, table, rows[:1] if policy.walk else rows, columns, skill
            )
            text = models.solution(entries)
            correct = is_right(text, tuple(problem["answer"]))
            behind = rng.choice(["", "}}}", r"\boxed{r15r26", "c0921}r04r16"])
            assert (
                correct
                is earned(problem["problem"], text)
                is is_right(text + behind, tuple(problem["answer"]))
            )
            assert correct is earned(problem["problem"], text + behind)
            right[bool(skill), correct] += 1
    assert right[True, True] > 20 and right[False, False] > 20
    assert not earned(problem["problem"], r"\boxed{r99}") and not earned(problem["problem"], "")


@pytest.mark.parametrize(
    ("world", "times"), [("own_skills", 1), ("shared_skills", 4), ("walk", 1)]
)
def test_a_hard_cell_is_in_as_many_problems_as_the_record_says(few, world, times):
    """And held-out problems ask for the same ones; no problem comes twice, another seed is another world."""
    table = models.facts(models.POLICIES[FEW[world].policy])
    hard = {}
    for part in worlds.PARTS:
        rows = rows_of(world, part=part)
        hard[part] = Counter(
            c for row in rows for c in cells_of(world, row) if table[c].kind == models.HARD
        )
    assert set(hard["train"].values()) == {times} and set(hard["held_out"]) <= set(
        hard["train"]
    )
    texts = [row["problem"] for part in worlds.PARTS for row in rows_of(world, part=part)]
    assert len(set(texts)) == len(texts) == 48
    assert not {row["problem"] for row in rows_of(world, seed=2)} & set(texts[:32])


def test_a_problem_can_be_answered_within_the_limit(few):
    tokenizer = models.train_tokenizer()
    for world in FEW:
        answers = [answer for row in rows_of(world) for answer in row["answer"]]
        longest = max(
            len(tokenizer(rf"\boxed{{{answer}}}")["input_ids"]) + 1 for answer in answers
        )
        assert longest <= load("lab_own_skills", []).rollout.max_new_tokens


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"world": "own_skils"}, "did you mean own_skills"),
        ({"part": "test"}, "use train or held_out"),
        ({"seed": "a"}, "whole number"),
    ],
)
def test_a_world_that_does_not_exist_is_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        rows_of(**{"world": "own_skills"} | change)


def test_the_experiment_draws_the_world_of_its_seed(few):
    found = []
    for seed in (1, 2):
        config = load("lab_own_skills", ["algo=grpo", f"train.seed={seed}"])
        found += [
            load_problems(config.data).labels,
            load_problems(held_out_data(config)).labels,
        ]
    assert list(map(len, found)) == [32, 16, 32, 16]
    assert not {one.uid for one in found[0]} & {one.uid for one in found[2]}


def right_and_earned(lab, labels, world, *, n):
    found = lab.ask([(label, lab.plain_prompt(label), Context.PLAIN) for label in labels], n=n)
    problems, earned = {label.uid: label.problem for label in labels}, worlds.is_earned(world)
    right = [one.rollout for one in found if one.rollout.verdict is Verdict.CORRECT]
    return len(right), sum(earned(problems[one.uid], one.text) for one in right)


@pytest.mark.parametrize("world", ["own_skills", "walk"])
def test_what_a_model_learns_is_earned(world, monkeypatch, tmp_path):
    """A table of 64 cells, learned in seconds, before and after training."""
    for module in (models, worlds):
        monkeypatch.setattr(module, "SIZE", 8)
    monkeypatch.setattr(models, "BATCH_SIZE", 48)
    name = worlds.WORLDS[world].policy
    small = dataclasses.replace(
        models.POLICIES[name], hidden_size=64, num_layers=1, num_steps=250
    )
    monkeypatch.setitem(models.POLICIES, name, small)
    monkeypatch.setitem(
        worlds.WORLDS, world, dataclasses.replace(FEW[world], train=16, held_out=8)
    )
    (tmp_path / "model").mkdir()
    models.build(tmp_path / "model", name)
    keys = [
        f"data.reasoning_gym.world={world}",
        f"run_dir={tmp_path / 'run'}",
        "held_out.path=null",
    ]
    keys += ["rollout.batch_size=16", "train.max_steps=8", "train.learning_rate=3e-3"]
    config = load("lab_own_skills", ["algo=grpo", *keys])
    labels, lab = (
        load_problems(config.data).labels,
        Lab(config, model_dir=str(tmp_path / "model")),
    )
    before = right_and_earned(lab, labels, world, n=32)
    lab.train()
    after = right_and_earned(lab, labels, world, n=32)
    assert before[0] == before[1] > 20 and after[0] == after[1] > 1.5 * before[0]


@pytest.mark.soak  # builds the models of the worlds, minutes of a processor each, and trains each for a while
@pytest.mark.parametrize("world", worlds.WORLDS)
def test_verdicts_are_earned_before_and_after_training(world, tmp_path):
    model = f"research.facts:{worlds.WORLDS[world].policy}"
    keys = [
        f"data.reasoning_gym.world={world}",
        f"model.path={model}",
        f"run_dir={tmp_path / 'run'}",
    ]
    config = load(
        "lab_own_skills", ["algo=grpo", *keys, "train.max_steps=24", "held_out.path=null"]
    )
    labels, lab = load_problems(config.data).labels, Lab(config)
    for _ in range(2):
        right, earned = right_and_earned(lab, labels, world, n=16)
        assert right == earned > 0
        if not lab.step:
            lab.train()
