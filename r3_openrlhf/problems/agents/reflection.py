"""Reflection on a failed trajectory: what a policy is shown of it (METHOD section 5, for tasks of
many turns).

It follows the goal in the prompt of every turn: no other turn's text outlives the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.core.reflection import ATTEMPT_BEGINS, ATTEMPT_ENDS
from r3_openrlhf.method.prompts import ChatPrompts
from r3_openrlhf.method.types import Rollout
from r3_openrlhf.problems.agents.trajectory import line_of_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INTRODUCTION = "Below is an earlier attempt at this task. It failed."
GUIDANCE = "Find the first action that was wrong, and do not repeat it."


def attempt_section(attempt: str) -> str:
    """Write the lines of a prompt around an attempt, which may have been shortened."""
    return f"{INTRODUCTION}\n{ATTEMPT_BEGINS}\n{attempt}\n{ATTEMPT_ENDS}\n{GUIDANCE}"


class TurnPrompts(ChatPrompts):
    """A reflection on many turns: lines for its turns' prompts (stack/agents/executor.py)."""

    def __init__(self, config: R3Config, tokenizer: PreTrainedTokenizerBase) -> None:
        room = config.data.max_len - config.rollout.max_new_tokens
        most = config.reflection.max_attempt_tokens
        super().__init__(tokenizer, max_prompt_tokens=room, max_attempt_tokens=most)

    def reflection(self, _problem: object, error: Rollout | None) -> str | None:
        """Return the reflection prompt with the attempt cut until it fits beside its longest turn.

        None if even the shortest cut does not fit."""
        turns = (error.turns if error is not None else None) or ()
        longest = max((len(turn.prompt_ids) for turn in turns), default=0)
        # a line per turn: the state, and what was done in it, as a memory has them
        attempt = "\n".join(
            line_of_turn(turn.observation, turn.action, valid=turn.valid) for turn in turns
        )
        shortened = self.fit(attempt, lambda text: longest + self.count(attempt_section(text)))
        return None if shortened is None else attempt_section(shortened)
