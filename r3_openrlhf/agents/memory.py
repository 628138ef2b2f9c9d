"""What the policy is shown: the goal, its last turns and the current state, in so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from r3_openrlhf.agents.environment import Observation


class Remembered(NamedTuple):
    """One earlier turn: the state, and what was done in it."""

    observation: str
    action: str


class MemoryPrompt(NamedTuple):
    """A user turn for the chat template, and how many earlier turns it shows."""

    text: str
    num_turns: int


def memory_prompt(
    observation: Observation,
    earlier: Sequence[Remembered],
    *,
    turns: int,
    lists_actions: bool,
    instruction: str,
    count: Callable[[str], int],
    max_tokens: int,
) -> MemoryPrompt | None:
    """The last `turns` of `earlier` (oldest first) and the current state; None when not even the state alone fits.

    Whole turns are left out, the oldest first, until `count(text)`, in tokens, is at most `max_tokens`. `count` gets the
    text that is returned, so it can put the chat template around it.
    """
    shown = list(earlier[len(earlier) - min(turns, len(earlier)) :])
    while True:
        text = _text(observation, shown, lists_actions=lists_actions, instruction=instruction)
        if count(text) <= max_tokens:
            return MemoryPrompt(text, len(shown))
        if not shown:
            return None
        del shown[0]


def _text(observation: Observation, shown: list[Remembered], *, lists_actions: bool, instruction: str) -> str:
    lines = [f"Goal: {observation.goal}"] if observation.goal else []
    if shown:
        lines += ["Before:", *(f"{turn.observation} -> {turn.action}" for turn in shown)]
    lines.append(f"Now: {observation.text}")
    if lists_actions and observation.valid_actions:
        lines.append(f"Actions: {', '.join(observation.valid_actions)}")
    if instruction:
        lines.append(instruction)
    return "\n".join(lines)
