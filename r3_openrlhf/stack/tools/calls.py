"""Read calls of tools in a response, and write what stands around their answers (agents.tool_form)."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.prompts import has_template, template_values

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Call = tuple[str, str | None]  # a tool's name and its text; None: no text can be read


class FencedCalls:
    """Blocks with the name of a tool, as ReTool's (arXiv 2504.11536).

    ```python            the policy's
    print(3 + 4)
    ```
    ```output            given: what the tool answers
    7
    ```
    """

    stops = ("```\n",)  # ends a call; the line that begins one has a word
    answers_in_json = False
    _ends = re.compile(r"```\n\s*\Z")
    _call = re.compile(r"^```(\w+)[ \t]*\n((?:(?!```).*\n)*)```\n\s*\Z", re.MULTILINE)

    def read(self, text: str, names: Collection[str]) -> list[Call] | None:
        """Find the calls that a text ends with; []: none, and the policy goes on; None: it has ended."""
        if not self._ends.search(text):
            return None
        found = self._call.search(text)
        return [(found[1], found[2])] if found is not None and found[1] in names else []

    def around(self, _names: Sequence[str], _last: str) -> list[str]:
        """Return the texts before, between and after the answers to calls of these tools."""
        return ["```output\n", "\n```\n"]


# A template that writes a text and an answer so writes all so: as they are, or in JSON
_TOOL, _PARAMETER, _SAID, _TEXT, _ANSWER = (
    "zq_tool",
    "zq_parameter",
    "zq_said",
    'p"q\n<&\\',
    'r"s\n<&\\',
)
_ID = "call0000"  # and a digit: Mistral's have nine letters


class TemplateCalls:
    """Calls and answers as the model's chat template renders them; learnt from a sample:

        opens NAME middle TEXT closes END ... ANSWER ... begin of the policy's next turn

    A turn ends with END, a token; what follows it is given.

    Raises:
        ConfigError: the template renders no calls, or none that can be read."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> None:
        self._tokenizer, self._values = tokenizer, template_values(data)
        try:
            if not data.chat_template or not has_template(tokenizer, data):
                raise ValueError("there is none")
            self._learn()
        except ValueError as error:
            raise ConfigError(
                f"agents.tool_form is template, but the chat template of {tokenizer.name_or_path} renders no tool calls "
                f"that can be read: {error}; use agents.tool_form=fenced"
            ) from error

    def _learn(self) -> None:
        sample = self._rendered([_TOOL])
        begin = len(commonprefix([self._rendered([]), sample]))
        self._text = _as_written(_TEXT, sample[begin:])
        self._answer = _as_written(_ANSWER, sample[begin:])
        self._in_json, self.answers_in_json = self._text != _TEXT, self._answer != _ANSWER
        opens, _, rest = sample[begin:].partition(_TOOL)
        middle, _, rest = rest.partition(self._text)
        shared = commonprefix(
            [rest, self._rendered([_TOOL], answered=False).rpartition(self._text)[2]]
        )
        tokens = [
            token.content
            for token in self._tokenizer.added_tokens_decoder.values()
            if token.content in shared
        ]
        if not tokens:
            raise ValueError("no token ends a call")
        end = max(tokens, key=shared.rindex)
        self.stops = (end,)
        with contextlib.suppress(ValueError):  # Mistral's take a text or a call
            later = self._rendered([_TOOL], said=_SAID).partition(_SAID)[2].partition(_TOOL)
            # a call begins alike after a text; the end of thinking is no part of it
            if later[1]:
                opens = commonprefix([opens[::-1], later[0][::-1]])[::-1].lstrip()
        text = (
            r'((?:[^"\\]|\\.)*)"'
            if self._in_json
            else rf"(.*?){_loose(shared[: shared.rindex(end)].lstrip())}"
        )
        self._mark = opens.partition("{")[0].strip()  # without one the whole turn is the call
        start = "" if self._mark else r"\A\s*"
        self._call = re.compile(
            rf"{start}{_loose(opens)}([\w.-]+){_loose(middle)}{text}", re.DOTALL
        )

    def _rendered(self, names: Sequence[str], *, said: str = "", answered: bool = True) -> str:
        """Render a user's turn and sample calls of these tools. ValueError: the template refuses them."""
        from jinja2 import TemplateError

        messages: list[dict[str, Any]] = [{"role": "user", "content": "u"}]
        functions = [{"name": name, "arguments": {_PARAMETER: _TEXT}} for name in names]
        calls = [
            {"type": "function", "id": f"{_ID}{i}", "function": one}
            for i, one in enumerate(functions)
        ]
        if calls:
            messages.append({"role": "assistant", "content": said, "tool_calls": calls})
        for i, name in enumerate(names if answered else ()):
            messages.append(
                {"role": "tool", "name": name, "tool_call_id": f"{_ID}{i}", "content": _ANSWER}
            )
        values = {"tokenize": False, "add_generation_prompt": answered, **self._values}
        try:
            return str(self._tokenizer.apply_chat_template(messages, **values))
        except (TemplateError, TypeError) as error:
            raise ValueError(str(error)) from error

    def read(self, text: str, _names: Collection[str]) -> list[Call] | None:
        """Find the calls of a turn; None: there are none, and it is the last."""
        calls: list[Call] = [
            (name, self._decoded(argument)) for name, argument in self._call.findall(text)
        ]
        # an error is its answer
        return calls or ([("", None)] if self._mark and self._mark in text else None)

    def _decoded(self, text: str) -> str | None:
        try:
            read = (
                str(json.loads(f'"{text}"', strict=False))
                if self._in_json
                else text.strip("\n")
            )
            return read.encode("utf-8", "replace").decode()  # halves of pairs are no text
        except ValueError:
            return None

    def around(self, names: Sequence[str], last: str) -> list[str]:
        """Return the texts around the answers, from the turn's `last` token on; []: no such calls end so."""
        try:
            rest = self._rendered([name or _TOOL for name in names]).rpartition(self._text)[2]
        except ValueError:  # it takes fewer calls a turn
            return []
        pieces = rest.partition(last)[2].split(self._answer)
        return pieces if len(pieces) == len(names) + 1 else []


def _as_written(text: str, rendered: str) -> str:
    found = [one for one in (text, json.dumps(text)[1:-1]) if one in rendered]
    if not found:
        raise ValueError(f"it does not show {text!r}")
    return found[0]


def _loose(text: str) -> str:
    """Make a pattern of the text, with any white space, tool and parameter."""
    words = map(re.escape, re.findall(r"\A\s+|\w+|[^\w\s]", text))
    pattern = r"\s*".join(words)
    for sample in (_PARAMETER, _TOOL, f"{_ID}0"):
        pattern = pattern.replace(sample, r"[\w.-]*")
    return pattern
