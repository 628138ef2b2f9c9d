"""The section `agents`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from r3_openrlhf.config.reward_functions import placed
from r3_openrlhf.config.words import AgentEstimator
from r3_openrlhf.method.checks import Section, number, word
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import (
    check_signature,
    is_import_path,
    is_looking,
    load_object,
)

PYTHON = "python"  # the tool of our own; others are functions of the user, text -> text


def name_of_tool(tool: str) -> str:
    """Return the word that calls a tool."""
    return tool.rpartition(":")[2]


def described(tool: str) -> dict[str, Any]:
    """Return what chat templates take as a tool: of a function its docstring and the name of its parameter."""
    text, parameter = "Run a Python program. Returns what it prints.", "code"
    if tool != PYTHON:
        function = load_object("agents.tools", tool)
        text, parameter = (
            inspect.getdoc(function) or "",
            next(iter(inspect.signature(function).parameters)),
        )
    values = {
        "type": "object",
        "properties": {parameter: {"type": "string"}},
        "required": [parameter],
    }
    return {
        "type": "function",
        "function": {"name": name_of_tool(tool), "description": text, "parameters": values},
    }


@dataclass
class AgentsConfig(Section, prefix="agents."):
    """Tasks of many turns (docs/agents.md): a step plays n_samples_per_prompt trajectories of each
    of rollout.batch_size tasks; each turn is a response of at most rollout.max_new_tokens."""

    # environment: vault | package.module:Class; null: problems
    environment: str | None = None
    # keyword arguments of the environment's class
    options: dict[str, Any] = field(default_factory=dict)
    # turns of a trajectory, at most
    max_turns: int = number(16, min=1)
    # earlier turns in a prompt, at most
    memory_turns: int = number(4, min=0)
    # grpo: whole trajectories | gigpo: and steps at the same state | hgpo: a hierarchy of groups
    estimator: str = word("hgpo", AgentEstimator)
    # K of hgpo: earlier states that are equal in the finest group [P] 2 or 4
    depth: int = number(2, min=0)
    # alpha of the weights w_k ~ (k + 1) ^ alpha [P]
    alpha: float = 1.0
    # discount of later rewards [P]
    gamma: float = number(0.95, min=0, max=1)
    # subtracted from the reward of a turn with an invalid action
    invalid_penalty: float = number(0.1, min=0)
    # seconds for a step or start of an environment, which is then killed; its trajectory is lost
    timeout_s: float = number(60.0, above=0)
    # tools that a response to a problem may call: python | your function, file.py:search
    tools: list[str] = field(default_factory=list)
    # form of a call. fenced: a block with the tool's name, which your prompt explains | template: the chat
    # template's, which lists the tools
    tool_form: str = word("fenced", ("fenced", "template"))
    # calls of a response, at most
    tool_calls: int = number(4, min=1)
    # tokens of an answer, at most
    tool_tokens: int = number(256, min=1)
    # seconds of a call, which is then ended
    tool_seconds: float = number(5.0, above=0)
    # python has the names of the response's earlier calls (which run once more)
    tool_memory: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tools = [tool if tool == PYTHON else placed(tool) for tool in self.tools]
        for tool in self.tools:
            if tool != PYTHON and not is_import_path(tool):
                raise ConfigError(
                    f"agents.tools has {quoted(tool)}; use python, or your function, file.py:search"
                )
            if tool != PYTHON and not is_looking():
                check_signature("agents.tools", tool, load_object("agents.tools", tool), "text")
        names = list(map(name_of_tool, self.tools))
        if len(set(names)) < len(names):
            raise ConfigError(
                f"agents.tools has tools with one name: {', '.join(names)}; rename one"
            )
