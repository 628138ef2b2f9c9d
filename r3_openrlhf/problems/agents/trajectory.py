"""Trajectories as records, an episode that is being played, and what the policy sees of it: the goal, its
last turns and the current state, in a token limit."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.method.types import PlayedTurn, Word
from r3_openrlhf.problems.agents.environment import Observation, Step
from r3_openrlhf.problems.agents.hierarchy import step_returns

INSTRUCTION = "Write the next action between <action> and </action>."
NO_TOKENS = np.zeros(0, dtype=np.int32)
_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL)


class End(Word):
    """Why an episode ended. LOST: no answer, or a crash; its rewards are unknown, not zero.

    DONE: by itself. TURN_LIMIT: agents.max_turns. PROMPT_LIMIT: the state alone fits no prompt.
    """

    DONE = "done"
    TURN_LIMIT = "turn_limit"
    PROMPT_LIMIT = "prompt_limit"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode. A LOST one has its answered turns, no returns, and no part in a group."""

    task_uid: str
    uid: str  # its own
    turns: tuple[PlayedTurn, ...]  # of an Episode without the tokens
    end: End
    reason: str = ""  # of a LOST one: "timeout", "crashed", ...
    success: bool | None  # None: lost

    @property
    def anchors(self) -> list[str]:
        """s_t of each turn."""
        return [turn.state for turn in self.turns]

    def rewards(self, *, invalid_penalty: float = 0.0) -> list[float]:
        """r_t of each turn, less `invalid_penalty` without an action. ValueError: LOST."""
        if self.end is End.LOST:
            raise ValueError(
                f"trajectory {self.uid} of task {self.task_uid} is lost ({self.reason}) and has no rewards"
            )
        return [turn.reward - (0.0 if turn.valid else invalid_penalty) for turn in self.turns]

    def returns(self, *, gamma: float, invalid_penalty: float = 0.0) -> list[float]:
        """R_t of each turn (core.hierarchy.step_returns). ValueError: a LOST one has none."""
        return step_returns(self.rewards(invalid_penalty=invalid_penalty), gamma=gamma)


def find_action(response: str, *, truncated: bool = False) -> str:
    """Return the text in the last <action> tags, else the first line that is not empty, or "".

    A cut response has only what is inside complete tags: an action without its end differs.
    """
    if tagged := _TAGGED.findall(response):
        return tagged[-1].strip()
    if truncated or "<action>" in response:
        return ""
    return next((line.strip() for line in response.splitlines() if line.strip()), "")


class Episode:
    """One trajectory while it grows: `next_prompt`, `act` and `advance` in turn, until
    `next_prompt` is None.

    Raises:
        ValueError: a call out of turn."""

    def __init__(
        self,
        observation: Observation,
        *,
        task_uid: str,
        trajectory_uid: str,
        settings: AgentsConfig,
        attempt: str = "",
    ) -> None:
        """`attempt`: lines about an earlier one for all prompts (problems/agents/reflection.py)."""
        self.task_uid = task_uid
        self.uid = trajectory_uid
        self.settings = settings
        self.attempt = attempt
        self.observation = observation
        self.turns: list[PlayedTurn] = []
        self.end: End | None = None  # None: it continues
        self.success: bool | None = None
        self.reason = ""
        self._memory: list[str] = []
        self._prompt: str | None = None
        self._response: tuple[str, bool] | None = None  # its action, and whether it was cut

    def next_prompt(self, *, count: Callable[[str], int], max_tokens: int) -> str | None:
        """Return the user turn for the next response; None at the end. See `memory_prompt`."""
        if self._response is not None:
            raise ValueError(
                "the environment has not answered the last action yet; call advance or lose first"
            )
        if self.end is not None:
            return None
        self._prompt = memory_prompt(
            self.observation,
            self._memory,
            turns=self.settings.memory_turns,
            count=count,
            max_tokens=max_tokens,
            attempt=self.attempt,
        )
        if self._prompt is None:
            self.end, self.success = End.PROMPT_LIMIT, False
        return self._prompt

    def act(self, response: str, *, truncated: bool) -> str:
        """Take a response; returns the environment's action, "" where the response has none."""
        if self._prompt is None or self.end is not None:
            raise ValueError(
                "there is no prompt that this response could answer; call next_prompt first"
            )
        action = find_action(response, truncated=truncated)
        self._response = (action, truncated)
        return action

    def advance(self, step: Step) -> None:
        """Take the environment's answer to the action."""
        if self._prompt is None or self._response is None:
            raise ValueError("there is no action that this step could answer; call act first")
        action, truncated = self._response
        self.turns.append(
            PlayedTurn(
                prompt_ids=NO_TOKENS,
                num_tokens=0,
                prompt=self._prompt,
                state=self.observation.anchor,
                observation=self.observation.text,
                action=action,
                truncated=truncated,
                valid=step.valid,
                reward=float(step.reward),
            )
        )
        self._memory.append(line_of_turn(self.observation.text, action, valid=step.valid))
        self._prompt = self._response = None
        self.observation = step.observation
        if step.done:
            self.end, self.success = End.DONE, step.success
        elif len(self.turns) == self.settings.max_turns:
            self.end, self.success = End.TURN_LIMIT, False

    def lose(self, reason: str) -> None:
        """End it: the environment did not answer ("timeout", "crashed", ...); the turn is not recorded."""
        self.end, self.success, self.reason = End.LOST, None, reason
        self._prompt = self._response = None

    def trajectory(self) -> Trajectory:
        """Return the record; without a word for success a positive sum of rewards is one.

        ValueError: the episode is not over."""
        if self.end is None:
            raise ValueError(f"trajectory {self.uid} of task {self.task_uid} is not over")
        if self.success is None and self.end is not End.LOST:
            self.success = sum(turn.reward for turn in self.turns) > 0
        return Trajectory(
            task_uid=self.task_uid,
            uid=self.uid,
            turns=tuple(self.turns),
            end=self.end,
            reason=self.reason,
            success=self.success,
        )


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
            return memory_prompt(
                observation, earlier, turns=turns, count=count, max_tokens=max_tokens
            )
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
