"""Render the policy's view: the goal, its last turns and the current state, in a token limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from r3_openrlhf.problems.agents.environment import Observation

INSTRUCTION = "Write the next action between <action> and </action>."


def line_of_turn(observation: str, action: str, *, valid: bool) -> str:
    """Write an earlier turn: the state, and what was done in it; an invalid action is marked."""
    return f"{observation} -> {action}{'' if valid else ' (impossible)'}"


def memory_prompt(
    observation: Observation,
    earlier: Sequence[str],
    *,
    turns: int,
    count: Callable[[str], int],
    max_tokens: int,
    attempt: str = "",
) -> str | None:
    """Write a user turn for the chat template: the last `turns` lines of `earlier` (oldest first) and the state; None: it alone is too long.

    Whole turns are left out, the oldest first, until `count(text)`, in tokens, is at most
    `max_tokens`. `count` gets the text that is returned, so it can put the chat template around it.

    `attempt`: lines after the goal (reflection.py), left out if the state does not fit with them.
    """
    memory = list(earlier[len(earlier) - min(turns, len(earlier)) :])
    while True:
        text = _text(observation, memory, attempt)
        if count(text) <= max_tokens:
            return text
        if memory:
            del memory[0]
        elif attempt:
            return memory_prompt(observation, earlier, turns=turns, count=count, max_tokens=max_tokens)
        else:
            return None


def _text(observation: Observation, memory: list[str], attempt: str) -> str:
    lines = [f"Goal: {observation.goal}"] if observation.goal else []
    lines.append(attempt)
    if memory:
        lines += ["Before:", *memory]
    lines.append(f"Now: {observation.text}")
    if observation.valid_actions:
        lines.append(f"Actions: {', '.join(observation.valid_actions)}")
    lines.append(INSTRUCTION)
    return "\n".join(filter(None, lines))
