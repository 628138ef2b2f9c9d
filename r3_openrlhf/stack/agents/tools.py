"""Tools inside a response (agents.tools): what a call looks like, and what answers it.

    ```python            the policy's: a fenced block with the name of a tool
    print(3 + 4)
    ```
    ```output            given: what the tool answers
    7
    ```

A tool's answer is an observation, whatever it is: a failure, the end of its time and hostile text are
answers, too. The processes of a user's tools import this file, so that it loads no framework.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.agents import PYTHON, name_of_tool
from r3_openrlhf.machine.processes.pool import ItemLost, ProcessPool
from r3_openrlhf.method.open_table import load_object
from r3_openrlhf.rewards.code.run import Call, Limits, run_program

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STOP = "```\n"  # ends a call; the line that begins one has a word
_ENDS = re.compile(r"```\n\s*\Z")
_CALL = re.compile(r"^```(\w+)[ \t]*\n((?:(?!```).*\n)*)```\n\s*\Z", re.MULTILINE)
CHARS_PER_TOKEN = 16  # of an answer that are read: the tokenizer sees no more
BEFORE, AFTER = "```output\n", "\n```\n"  # of an answer, as ReTool's (arXiv 2504.11536)


class Tools:
    """The tools of a run: Python in the sandbox of graded programs, functions of the user in processes
    that can be killed."""

    def __init__(self, config: R3Config) -> None:
        self.settings = agents = config.agents
        self.names = set(map(name_of_tool, agents.tools))
        workers, seconds = config.reward.num_workers, agents.tool_seconds
        self._threads = ThreadPoolExecutor(workers, "r3-python")
        memory = config.reward.code.memory_mb
        self._limits = Limits(seconds_per_test=seconds, seconds=seconds, memory_mb=memory, output_bytes=2**20)
        paths = [path for path in agents.tools if path != PYTHON]
        self._pool: ProcessPool[str] = ProcessPool(
            f"{__name__}:make_worker", {"paths": paths}, answer_type=str, num_workers=workers, timeout_s=seconds
        )

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
        self._threads.shutdown(wait=False)

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

    def __init__(self, tools: Tools, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tools, self._tokenizer = tools, tokenizer
        self.number = self.failed = 0
        self._text = ""  # the policy's, since the last answer
        self._earlier: list[str] = []

    @property
    def stops(self) -> list[str]:
        """The texts at which the policy is to be stopped; none when no call is left."""
        return [STOP] if self.number < self._tools.settings.tool_calls else []

    async def after(self, text: str, *, room: int) -> list[int] | None:
        """Token ids that follow the policy's next text, at most `room`; []: none. None: it did not end
        with a call's end, and the response is over."""
        self._text += text
        if not self.stops or not _ENDS.search(self._text):
            return None
        found = _CALL.search(self._text)
        if found is None or found[1] not in self._tools.names:
            return []
        name, argument = found.groups()
        self._text = ""
        remembers = name == PYTHON and self._tools.settings.tool_memory
        answer, failed = await self._tools.call(name, argument, self._earlier if remembers else [])
        self.number += 1
        self.failed += failed
        if name == PYTHON and not failed:
            self._earlier.append(argument)
        before, after = map(self._ids, (BEFORE, AFTER))
        most = max(0, min(self._tools.settings.tool_tokens, room - len(before) - len(after)))
        return [*before, *self._observed(answer, most), *after][:room]

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text=text, add_special_tokens=False)["input_ids"]

    def _observed(self, text: str, most: int) -> list[int]:
        """Encode a stranger's text: without control characters, and without the tokens that are
        marks, such as those of roles and calls."""
        text = text[: CHARS_PER_TOKEN * most].rstrip()
        text = "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)
        added = self._tokenizer.added_tokens_decoder
        marks = {number for number, token in added.items() if token.special or token.content.strip()}
        return [number for number in self._ids(text) if number not in marks][:most]
