"""Tools inside a response (agents.tools): what answers a call (its look: calls.py).

A tool's answer is an observation, whatever it is: a failure, the end of its time and hostile text are
answers, too. The processes of a user's tools import this file, so that it loads no framework.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from r3_openrlhf.config import DataConfig, R3Config
from r3_openrlhf.config.agents import PYTHON, name_of_tool
from r3_openrlhf.machine.processes.pool import ItemLost, ProcessPool
from r3_openrlhf.method.open_table import load_object
from r3_openrlhf.rewards.code.run import Call, Limits, run_program
from r3_openrlhf.stack.tools.calls import FencedCalls, TemplateCalls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHARS_PER_TOKEN = 16  # of an answer that are read: the tokenizer sees no more


class Tools:
    """The tools of a run: Python in the sandbox of graded programs, functions of the user in processes
    that can be killed."""

    def __init__(self, config: R3Config) -> None:
        self.settings = agents = config.agents
        self.names = set(map(name_of_tool, agents.tools))
        self._forms: dict[int, FencedCalls | TemplateCalls] = {}  # by the source's settings
        workers, seconds = config.reward.num_workers, agents.tool_seconds
        self._threads = ThreadPoolExecutor(workers, "r3-python")
        memory = config.reward.code.memory_mb
        self._limits = Limits(
            seconds_per_test=seconds, seconds=seconds, memory_mb=memory, output_bytes=2**20
        )
        paths = [path for path in agents.tools if path != PYTHON]
        self._pool: ProcessPool[str] = ProcessPool(
            f"{__name__}:make_worker",
            {"paths": paths},
            answer_type=str,
            num_workers=workers,
            timeout_s=seconds,
        )

    def calls(self, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> Calls:
        """Begin a response to a problem of this source. ConfigError: its template shows no calls."""
        if id(data) not in self._forms:
            is_fenced = self.settings.tool_form == "fenced"
            self._forms[id(data)] = (
                FencedCalls() if is_fenced else TemplateCalls(tokenizer, data)
            )
        return Calls(self, self._forms[id(data)], tokenizer)

    async def call(self, name: str, argument: str, earlier: Sequence[str]) -> tuple[str, bool]:
        """Call a tool. Returns (its answer, did it fail?). earlier: programs whose names python has."""
        if name == PYTHON:
            run = asyncio.get_running_loop().run_in_executor
            return await run(self._threads, self._run_python, argument, earlier)
        try:
            return await asyncio.wrap_future(self._pool.submit((name, argument))), False
        except ItemLost as lost:
            return f"error: {lost}", True

    def _run_python(self, code: str, earlier: Sequence[str]) -> tuple[str, bool]:
        mark = secrets.token_hex(8)
        program = "\n".join([*earlier, f"print({mark!r})", code]) if earlier else code
        try:
            (outcome,) = run_program(program, [Call(stdin="")], limits=self._limits)
        except (OSError, ValueError) as error:  # no process, or a text that is none
            return f"error: {type(error).__name__}", True
        printed = outcome.stdout.partition(f"{mark}\n")[2] if earlier else outcome.stdout
        if outcome.status == "finished":
            return printed, False
        return f"{printed}error: {outcome.status} {outcome.detail}", True


def make_worker(paths: Sequence[str]) -> Callable[[tuple[str, str]], str]:
    """Handle a pool's work: call the user's tools."""
    functions = {name_of_tool(path): load_object("agents.tools", path) for path in paths}

    def handle(item: tuple[str, str]) -> str:
        name, argument = item
        answer = functions[name](argument)
        if not isinstance(answer, str):
            raise TypeError(f"{name} returned a {type(answer).__name__}, not a text")
        return answer[: 2**18]

    return handle


class Calls:
    """The calls of one response. number, failed: of its calls so far."""

    def __init__(
        self,
        tools: Tools,
        form: FencedCalls | TemplateCalls,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self._tools, self._form, self._tokenizer = tools, form, tokenizer
        self.number = self.failed = 0
        self._text = ""  # the policy's, since the last answer
        self._earlier: list[str] = []

    @property
    def stops(self) -> Sequence[str]:
        """The texts at which the policy is to be stopped; none when no call is left."""
        return self._form.stops if self.number < self._tools.settings.tool_calls else ()

    async def after(self, ids: Sequence[int], *, room: int) -> list[int] | None:
        """Token ids that follow the policy's next ids, at most `room`; []: none. None: they do not end
        with a call's end, and the response is over."""
        self._text += self._tokenizer.decode(ids)
        calls = self._form.read(self._text, self._tools.names) if self.stops else None
        if not calls:
            return None if calls is None else []
        calls = calls[: self._tools.settings.tool_calls - self.number]
        around = self._form.around(
            [name for name, _ in calls], self._tokenizer.decode(ids[-1:])
        )
        if not around:
            return None
        self._text = ""
        found, *pieces = map(self._ids, around)
        left = room - len(found) - sum(map(len, pieces))
        for (name, argument), piece in zip(calls, pieces, strict=False):
            answer = await self._answer(name, argument)
            observed = self._observed(
                answer, max(0, min(self._tools.settings.tool_tokens, left))
            )
            left -= len(observed)
            found = [*found, *observed, *piece]
        return found[:room]

    async def _answer(self, name: str, argument: str | None) -> str:
        remembers = name == PYTHON and self._tools.settings.tool_memory
        if name not in self._tools.names or argument is None:
            answer, failed = (
                f"error: no text for one of the tools {', '.join(sorted(self._tools.names))}",
                True,
            )
        else:
            answer, failed = await self._tools.call(
                name, argument, self._earlier if remembers else []
            )
        self.number += 1
        self.failed += failed
        if name == PYTHON and not failed and argument is not None:
            self._earlier.append(argument)
        return answer

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text=text, add_special_tokens=False)["input_ids"]

    def _observed(self, text: str, most: int) -> list[int]:
        """Encode a stranger's text: without control characters, and without the tokens that are
        marks, such as those of roles and calls."""
        text = text[: CHARS_PER_TOKEN * most].rstrip()
        text = "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)
        if self._form.answers_in_json:
            text = json.dumps(text, ensure_ascii=False)[1:-1]
        added = self._tokenizer.added_tokens_decoder
        marks = {
            number for number, token in added.items() if token.special or token.content.strip()
        }
        return [number for number in self._ids(text) if number not in marks][:most]
