"""A game of our own in ALFWorld's file format, played to its end by a script in a process of its own. Needs `pip install alfworld==0.4.2`."""

import json
from pathlib import Path

import pytest
from alfworld import info

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.problems.agents.alfworld import AlfWorld
from r3_openrlhf.problems.agents.environment import environment_pool
from r3_openrlhf.problems.agents.trajectory import End, Episode

TAKE = ["go to table 1", "take apple 1 from table 1", "go to cabinet 1"]


@pytest.fixture
def games(tmp_path):
    """Two games, of which alfworld calls the first unsolvable."""
    game = {
        "pddl_domain": Path(info.ALFRED_PDDL_PATH).read_text(),
        "grammar": Path(info.ALFRED_TWL2_PATH).read_text(),
    }
    game["grammar"] = game["grammar"].replace("UNKNOWN GOAL", "put some apple in cabinet")
    game["pddl_problem"] = Path(__file__).with_name("alfworld_game.pddl").read_text()
    for name, solvable in (("a", False), ("b", True), ("movable", True)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "game.tw-pddl").write_text(json.dumps(game | {"solvable": solvable}))
    return tmp_path


def test_a_game_is_won_by_a_script(games):
    actions = [*TAKE, "fly", "open cabinet 1", "move apple 1 to cabinet 1"]
    with environment_pool("alfworld", {"games": str(games)}, timeout_s=300) as pool:
        for seed in (0, 3):  # the same game: the unsolvable one is passed over
            world = pool.session()
            episode = Episode(
                world.submit(seed).result().observation,
                task_uid="a",
                trajectory_uid="0",
                settings=AgentsConfig(),
            )
            for action in actions:
                prompt = episode.next_prompt(count=len, max_tokens=9999)
                assert "Goal: put some apple in cabinet." in prompt and ", help" not in prompt
                assert (
                    action in prompt.partition("\nActions: ")[2].split("\n")[0].split(", ")
                ) == (action != "fly")
                episode.advance(
                    world.submit(
                        episode.act(f"<action>{action}</action>", truncated=False)
                    ).result()
                )
            assert episode.next_prompt(count=len, max_tokens=9999) is None
            played = episode.trajectory()
            assert (played.end, played.success, played.rewards()) == (
                End.DONE,
                True,
                [0.0] * 5 + [10.0],
            )
            assert [turn.valid for turn in played.turns] == [True] * 3 + [False, True, True]
            assert played.anchors[0].startswith("You are in the middle of a room.")
            world.close()


def test_held_out_seeds_take_a_game_of_each_folder_in_turn(games):
    (games / "held_out").mkdir()
    (games / "held_out" / "c.tw-pddl").write_text("{}")
    folders = [str(games / "b"), str(games / "held_out")]
    world = AlfWorld(games=str(games / "a"), held_out_games=folders, num_tasks=5)
    found = [world._pool_of(seed) for seed in (0, 4, 5, 6, 7, 8)]
    assert [(pool[0].parent.name, number) for pool, number in found] == [
        ("a", 0),
        ("a", 4),
        ("b", 0),
        ("held_out", 0),
        ("b", 1),
        ("held_out", 1),
    ]
    with pytest.raises(ValueError, match="held_out_games is .*, where no game.tw-pddl is"):
        AlfWorld(games=str(games / "a"), held_out_games=[str(games / "none")])
