"""Episodes turn by turn: prompts by hand, the budget, invalid actions, truncation, every end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.problems.agents import trajectory as trajectories
from r3_openrlhf.problems.agents.environment import Observation, make_environment
from r3_openrlhf.problems.agents.trajectory import End, Episode, find_action, memory_prompt
from r3_openrlhf.problems.agents.vault import BACK, OPEN, TAKE


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Prompts without the last line, which is always the same."""
    monkeypatch.setattr(trajectories, "INSTRUCTION", "")


def words(text: str) -> int:
    return len(text.split())


def play(respond, *, max_tokens=1000, seed=0, **settings):
    """(trajectory, prompts) of an episode in the vault; `respond(environment, turn)` gives (response, truncated)."""
    config = AgentsConfig(**{"max_turns": 8} | settings)
    world = make_environment("vault", {})
    episode = Episode(
        world.reset(seed), task_uid=f"vault/{seed}", trajectory_uid="0", settings=config
    )
    prompts = []
    while (prompt := episode.next_prompt(count=words, max_tokens=max_tokens)) is not None:
        prompts.append(prompt)
        response, truncated = respond(world, len(prompts) - 1)
        episode.advance(world.step(episode.act(response, truncated=truncated)))
    return episode.trajectory(), prompts


def solver(world, turn):
    actions = [action for colour in world.needed for action in (f"go {colour}", TAKE, BACK)] + [
        OPEN
    ]
    return actions[turn], False


def test_a_solved_episode_is_recorded_turn_by_turn():
    trajectory, prompts = play(solver, memory_turns=2)
    assert (trajectory.end, trajectory.success) == (End.DONE, True)
    assert (trajectory.uid, trajectory.task_uid) == ("0", "vault/0")
    first, second = trajectory.turns[0].action[3:], trajectory.turns[3].action[3:]
    assert trajectory.anchors == ["hall", first, first, "hall", second, second, "hall"]
    assert trajectory.rewards() == [0.0] * 6 + [1.0]
    assert trajectory.returns(gamma=0.5)[:2] == [2**-6, 2**-5]
    goal = f"Goal: open the gate with {first} and {second}"
    hall = ["Now: hall", "Actions: go red, go blue, go green, go white, open gate"]
    assert prompts[0].split("\n") == [goal, *hall]
    assert prompts[3].split("\n") == [
        goal,
        "Before:",
        f"{first} -> take key",
        f"{first} -> go back",
        *hall,
    ]


def test_an_action_that_is_none_is_recorded_and_costs_its_penalty():
    trajectory, prompts = play(lambda world, turn: [("fly", False), (OPEN, False)][turn])
    assert [turn.valid for turn in trajectory.turns] == [False, True]
    assert trajectory.rewards(invalid_penalty=0.25) == [-0.25, 0.0]
    assert "hall -> fly (impossible)" in prompts[1]
    assert trajectory.success is False


def test_a_response_that_was_cut_off_is_no_action_unless_its_tags_are_closed():
    answers = [("open ga", True), ("<action>go red</action> and th", True)]
    trajectory, _ = play(lambda world, turn: answers[turn], max_turns=2)
    found = [(turn.truncated, turn.valid, turn.action) for turn in trajectory.turns]
    assert found == [(True, False, ""), (True, True, "go red")]


def test_the_turn_limit_and_a_state_that_fits_into_no_prompt_are_failures_and_say_so():
    trajectory, _ = play(lambda world, turn: ("fly", False), max_turns=3)
    assert (trajectory.end, trajectory.success, len(trajectory.turns)) == (
        End.TURN_LIMIT,
        False,
        3,
    )
    trajectory, prompts = play(solver, max_tokens=5)
    assert (trajectory.end, trajectory.success, trajectory.turns, prompts) == (
        End.PROMPT_LIMIT,
        False,
        (),
        [],
    )


@pytest.fixture
def begun():
    """The vault and an episode in it."""
    world = make_environment("vault", {})
    return world, Episode(
        world.reset(0), task_uid="vault/0", trajectory_uid="0", settings=AgentsConfig()
    )


def test_a_lost_episode_keeps_its_answered_turns_and_has_no_rewards(begun):
    world, episode = begun
    episode.next_prompt(count=words, max_tokens=100)
    episode.advance(world.step(episode.act("go red", truncated=False)))
    episode.next_prompt(count=words, max_tokens=100)
    episode.act("take key", truncated=False)
    episode.lose("timeout")
    assert episode.next_prompt(count=words, max_tokens=100) is None
    trajectory = episode.trajectory()
    assert (trajectory.end, trajectory.reason, trajectory.success) == (
        End.LOST,
        "timeout",
        None,
    )
    assert len(trajectory.turns) == 1
    with pytest.raises(ValueError, match="is lost \\(timeout\\) and has no rewards"):
        trajectory.returns(gamma=0.9)


def test_calls_out_of_turn_are_refused(begun):
    world, episode = begun
    with pytest.raises(ValueError, match="call next_prompt first"):
        episode.act("go red", truncated=False)
    with pytest.raises(ValueError, match="call act first"):
        episode.advance(world.step("go red"))
    with pytest.raises(ValueError, match="is not over"):
        episode.trajectory()
    episode.next_prompt(count=words, max_tokens=100)
    episode.act("go red", truncated=False)
    with pytest.raises(ValueError, match="call advance or lose first"):
        episode.next_prompt(count=words, max_tokens=100)


@given(
    st.integers(0, 6),
    st.integers(0, 8),
    st.integers(0, 60),
    st.sampled_from(["", "it failed like this"]),
)
def test_a_prompt_shows_the_attempt_and_the_newest_turns_that_fit(
    turns, num_earlier, max_tokens, attempt
):
    earlier = [f"place {i} -> act {i}" for i in range(num_earlier)]
    here = Observation(text="here", goal="win", valid_actions=("a", "b"))

    def prompt_of(shown, room, attempt):
        return memory_prompt(
            here, earlier, turns=shown, count=words, max_tokens=room, attempt=attempt
        )

    numbers = range(min(turns, num_earlier), -1, -1)
    whole = [prompt_of(n, 10**6, one) for one in dict.fromkeys((attempt, "")) for n in numbers]
    assert prompt_of(turns, max_tokens, attempt) == next(
        (one for one in whole if words(one) <= max_tokens), None
    )


RESPONSES = {
    "go red": "go red",
    "\n  go red \nbecause": "go red",
    "<action>go": "",
    "": "",
    " \n": "",
    "I think <action>a</action> no <action> b </action>": "b",
}


@pytest.mark.parametrize(("response", "action"), RESPONSES.items())
def test_the_action_in_a_response(response, action):
    assert find_action(response) == action


def test_an_earlier_attempt_stands_behind_the_goal():
    here = Observation(text="place 9 now", goal="open the last gate")
    shown = memory_prompt(
        here,
        ["place 8 -> go"],
        turns=3,
        count=words,
        max_tokens=18,
        attempt="it failed like this",
    )
    assert shown.splitlines() == [
        "Goal: open the last gate",
        "it failed like this",
        "Before:",
        "place 8 -> go",
        "Now: place 9 now",
    ]
