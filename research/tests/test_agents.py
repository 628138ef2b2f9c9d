"""The lab for agents: the table reads its prompt, moves as the gradient says, and what it learns is learning."""

import json
import math
import random

import pytest
from click.testing import CliRunner
from pytest import approx

from r3_openrlhf.problems.agents.trajectory import Episode
from r3_openrlhf.problems.agents.vault import BACK, OPEN, TAKE, Vault
from research import agents as lab
from research import agents_evidence, agents_table
from research.__main__ import main
from research.agents_table import (
    Choice,
    Played,
    Recipe,
    TablePolicy,
    agents_config,
    forgetful_probabilities,
)

FIRST = ("first", (), "")  # a row of the table


def keys_of(actions, *, shows_keys):
    """The rows that the table uses along these actions, by parts of the goal."""
    world = Vault(rooms=agents_table.ROOMS, keys=agents_table.KEYS, shows_keys=shows_keys)
    episode = Episode(
        world.reset(0), task_uid="t", trajectory_uid="0", settings=agents_config("hgpo_k2")
    )
    policy, found = TablePolicy(), []
    colours = dict(zip(agents_table.PARTS, world.needed, strict=True))
    for action in [*actions, None]:
        prompt = episode.next_prompt(count=len, max_tokens=10**6)
        found.append(policy.read(prompt)[0])
        if action is not None:
            said = " ".join(colours.get(word, word) for word in action.split())
            episode.advance(world.step(episode.act(said, truncated=False)))
    return found


@pytest.mark.parametrize("shows_keys", [False, True])
def test_the_row_is_the_place_and_the_keys_whatever_way_they_are_known(shows_keys):
    actions = ["go second", TAKE, BACK, "go first", BACK]
    assert keys_of(actions, shows_keys=shows_keys) == [
        ("hall", (), ""),
        ("second", (), ""),
        ("second", ("second",), ""),
        ("hall", ("second",), ""),
        ("first", ("second",), ""),
        ("hall", ("second",), ""),
    ]


def test_the_forgetful_player_by_hand():
    """In the hall with all keys: 0.1 anything, 0.9 * 0.85 one of three rooms and the gate, 0.9 * 0.15 the gate."""
    found = forgetful_probabilities(("hall", ("first", "second", "third"), ""))
    assert found[OPEN] == approx(0.1 / 6 + 0.9 * (0.85 / 4 + 0.15))
    assert found["go other0"] == approx(0.1 / 6)
    assert forgetful_probabilities(("first", ("first",), "")) == approx(
        {TAKE: 0.05, BACK: 0.95}
    )
    for key in (("hall", (), ""), ("other1", (), ""), ("second", ("first",), "")):
        assert sum(forgetful_probabilities(key).values()) == approx(1)


def one_choice(policy, action, *, probability=None):
    return Played(
        None, [Choice(FIRST, action, probability or policy.probabilities(FIRST)[action])]
    )


def test_an_update_is_the_policy_gradient():
    """Two turns, advantages 3 and 3 (root mean square 3): the row moves by lr / 2 * (1 - p, -p) each."""
    policy = TablePolicy()
    before, p = dict(policy.row(FIRST)), policy.probabilities(FIRST)
    policy.update(
        [(one_choice(policy, TAKE), [3.0], False)] * 2
        + [(one_choice(policy, TAKE), None, False)],
        learning_rate=0.5,
    )
    assert policy.row(FIRST)[TAKE] == approx(before[TAKE] + 0.5 * (1 - p[TAKE]))
    assert policy.row(FIRST)[BACK] == approx(before[BACK] - 0.5 * p[BACK])


@pytest.mark.parametrize("shared", [True, False])
def test_an_update_in_one_task_moves_another_only_where_tasks_share_rows(shared):
    policy, rng = TablePolicy(shared=shared), random.Random(0)
    settings = agents_config("hgpo_k2")
    first, second = (
        policy.play(settings, seed=seed, uid="0", shows_keys=False, rng=rng) for seed in (0, 1)
    )
    hall = [
        next(choice.key for choice in played.choices if choice.key[0] == "hall")
        for played in (first, second)
    ]
    before = [dict(policy.row(key)) for key in hall]
    policy.update([(first, [1.0] * len(first.choices), False)], learning_rate=1.0)
    assert policy.row(hall[0]) != before[0]
    assert (policy.row(hall[1]) != before[1]) is shared


def test_without_rescaling_advantages_are_used_as_they_are():
    policy = TablePolicy()
    before, p = dict(policy.row(FIRST)), policy.probabilities(FIRST)
    policy.update([(one_choice(policy, TAKE), [3.0], False)], learning_rate=0.5, rescale=False)
    assert policy.row(FIRST)[TAKE] == approx(before[TAKE] + 0.5 * 3 * (1 - p[TAKE]))


def test_a_recipe_changes_the_run_and_has_a_name_of_its_own():
    settings = {"tokens": 3000, "learning_rate": 5.0}
    plain = lab.train("state", "hgpo_k2", 1, **settings)
    for recipe, name in (
        (Recipe(minibatches=2), "-minibatches_2"),
        (Recipe(rescale=False), "-rescale_False"),
        (Recipe(trajectories=16), "-trajectories_16"),
        (Recipe(forgets=0.5), "-forgets_0.5"),
        (Recipe(settings={"std_norm": False, "max_turns": 12}), "-std_norm_False-max_turns_12"),
    ):
        run = lab.train("state", "hgpo_k2", 1, **settings, recipe=recipe)
        assert recipe.changed == name and (run.success, run.tokens) != (
            plain.success,
            plain.tokens,
        ), name
    assert (
        lab.train("state", "hgpo_k2", 1, **settings, recipe=Recipe()).success == plain.success
    )
    assert (
        lab.train("state", "grpo", 1, tokens=9000, recipe=Recipe(forgets=0.5)).success[0]
        > plain.success[0]
    )


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"),
    [
        (1.0, 1.3, False),
        (1.0, 0.5, True),
        (-1.0, 0.7, False),
        (-1.0, 2.0, True),
        (-1.0, 3.5, False),
    ],
)
def test_a_recalled_turn_is_clipped(advantage, ratio, moves):
    policy = TablePolicy()
    before = dict(policy.row(FIRST))
    old = one_choice(policy, TAKE, probability=policy.probabilities(FIRST)[TAKE] / ratio)
    policy.update([(old, [advantage], True)], learning_rate=0.5)
    assert (policy.row(FIRST) != before) is moves
    if moves:
        share = 1 - math.exp(before[TAKE]) / sum(map(math.exp, before.values()))
        assert policy.row(FIRST)[TAKE] == approx(before[TAKE] + 0.5 * advantage * ratio * share)


def test_a_success_is_recalled_where_all_failed_and_only_there():
    world = random.Random(0)
    policy = TablePolicy()
    settings = agents_config("hgpo_k2")
    played = [
        policy.play(settings, seed=1, uid=str(i), shows_keys=True, rng=world) for i in range(60)
    ]
    right = [one for one in played if one.trajectory.success]
    wrong = [one for one in played if not one.trajectory.success]
    assert 0.1 < len(right) / 60 < 0.4
    assert lab.recall(wrong[:8], right, world) in right
    assert lab.recall(wrong[:8], [], world) is None
    assert lab.recall([*wrong[:7], right[0]], right, world) is None


def test_a_run_learns_is_the_same_again_and_a_finished_one_is_not_run_again(tmp_path):
    arguments = [
        "agents",
        "--arms",
        "gigpo,hgpo_k2_replay",
        "--variants",
        "history",
        "--seeds",
        "1",
        "--learning-rate",
        "10",
    ]
    found = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)])
    assert found.exit_code == 0, found.output
    files = sorted(tmp_path.glob("*.json"))
    runs = [json.loads(file.read_text()) for file in files]
    assert [run["arm"] for run in runs] == ["gigpo", "hgpo_k2_replay"]
    for run in runs:
        assert run["success"][0] < 0.4 and lab.AgentRun(**run).final > 0.7
        assert run["tokens"][-1] < lab.TOKENS and run["alone"] == sorted(run["alone"])
    assert runs[0]["recalled"] == 0
    again = lab.train("history", "gigpo", 1, learning_rate=10.0)
    assert json.loads(json.dumps(lab.asdict(again))) == runs[0]
    files[0].write_text(json.dumps(runs[0] | {"seed": 77}))
    assert (
        " | gigpo | " in CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)]).output
    )
    assert json.loads(files[0].read_text())["seed"] == 77


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "ppo"], "the arm 'ppo' does not exist; known: grpo"),
        (["--variants", "both"], "the variant 'both' does not exist"),
        (["max_turn=3"], "'max_turn' is no key of agents; did you mean max_turns?"),
        (["max_turns"], "'max_turns' sets nothing; use KEY=VALUE"),
        (["trajectories=1"], "the recipe cannot be used: Expected `int` >= 2"),
        (["forgets=x"], "the recipe cannot be used: Expected `float`, got `str`"),
    ],
)
def test_what_does_not_exist_is_named(tmp_path, arguments, message):
    found = CliRunner().invoke(main, ["agents", *arguments, "--out", str(tmp_path / "out")])
    assert found.exit_code != 0 and message in f"{found.output} {found.exception}"


def test_evidence_is_kept_once_and_each_arm_is_compared_at_its_own_and_at_equal_rates(tmp_path):
    def run(arm, rate, seed, success):
        recipe = {"trajectories": 8, "settings": {"std_norm": True}}
        return lab.AgentRun(
            "history", arm, seed, rate, [0, 10], [success, success], recipe=recipe
        )

    # hgpo_k0 is best at 1 on the tuning seed, hgpo_k4 at 2
    areas = {
        ("hgpo_k0", 1.0): 0.5,
        ("hgpo_k0", 2.0): 0.4,
        ("hgpo_k4", 1.0): 0.3,
        ("hgpo_k4", 2.0): 0.7,
    }
    runs = [
        run(arm, rate, seed, area)
        for (arm, rate), area in areas.items()
        for seed in (1, 2, 101)
    ]
    known = agents_evidence.write(tmp_path / "file.jsonl.zst", [], runs)
    assert agents_evidence.write(tmp_path / "file.jsonl.zst", known, runs) == known
    assert agents_evidence.read(tmp_path / "file.jsonl.zst") == known and len(known) == 12
    row = agents_evidence.tables(known).splitlines()[-1]
    assert row.split(" | ")[1:] == [
        "2",
        "2",
        "0.700 [0.700, 0.700]",
        "0.70",
        "0.200 [0.200, 0.200]",
        "-0.200 [-0.200, -0.200]",
        "0.300 [0.300, 0.300] |",
    ]
