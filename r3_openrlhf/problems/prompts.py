"""A problem -> the exact text that the model reads. No other file builds prompts."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

from r3_openrlhf.method.errors import DataError, quoted
from r3_openrlhf.method.prompts import ChatPrompts
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.settings import DistillSettings
from r3_openrlhf.method.types import Rollout
from r3_openrlhf.problems.label import Label

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from r3_openrlhf.config import DataConfig, R3Config
    from r3_openrlhf.method.history.store import HistoryStore


def problem_message(data: DataConfig, problem: str) -> str:
    """Write the user's turn: data.prompt_template with {problem} replaced. With other columns in
    it the problem was filled in with its row (problems/sources.py)."""
    return (
        problem
        if columns_in(data.prompt_template)
        else filled(data.prompt_template, {"problem": problem})
    )


def columns_in(template: str) -> list[str]:
    """Return the columns besides the problem that a template names in braces."""
    return [name for name in _NAMES.findall(template) if name and name != "problem"]


def filled(template: str, texts: Mapping[str, str]) -> str:
    """Replace each {name} of the template. {{name}} is {name}; braces of LaTeX stay."""

    def text_of(found: re.Match[str]) -> str:
        return (
            texts[found[1]]
            if found[1]
            else found[0][1:-1]
            if found[0][:2] == "{{"
            else found[0]
        )

    return _NAMES.sub(text_of, template)


# {{doubled}} and \\text{braces} of a command are no names of columns
_NAMES = re.compile(
    r"\{\{\w+\}\}|\\[A-Za-z]+\s*(?:\{[^{}]*\})+|[\^_]\{\w+\}|\{([^\W\d][\w.]*)\}"
)


def prompt_of(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, label: Label, text: str | None = None
) -> str:
    """Render the final prompt of a problem, or of another `text`, in the words of the problem's source."""
    data = data.parts[label.source]
    return render(
        tokenizer,
        data,
        problem_message(data, label.problem) if text is None else text,
        turns=label.turns or [],
    )


def render(
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    user_text: str,
    *,
    turns: Sequence[dict[str, str]] = (),
) -> str:
    """Render the final prompt: system prompt, worked examples (data.few_shot), the problem's `turns`,
    `user_text`, ready for a response. data.system_prompt replaces a system message among the turns.

    Without data.chat_template parts are separated by blank lines, and a response starts on a line
    of its own. DataError: no chat template, or one that refuses the messages or drops the problem."""
    system = data.system_prompt
    if turns and turns[0]["role"] == "system":
        system, turns = system or turns[0]["content"], turns[1:]
    if not data.chat_template:
        examples = [
            f"{problem_message(data, shot['problem'])}\n{shot['response']}"
            for shot in data.few_shot
        ]
        examples += [turn["content"] for turn in turns]
        last = f"{user_text}\n" if data.few_shot else user_text
        text = "\n\n".join([*([system] if system else []), *examples, last])
        # Ids are made without special tokens: templates bring them; a base model had a BOS
        return text if text.startswith(bos := begin_of_text(tokenizer)) else bos + text

    messages = [{"role": "system", "content": system}] if system else []
    for shot in data.few_shot:
        messages.append({"role": "user", "content": problem_message(data, shot["problem"])})
        messages.append({"role": "assistant", "content": shot["response"]})
    messages += [*turns, {"role": "user", "content": user_text}]
    return in_template(tokenizer, data, messages)


def in_template(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, messages: Sequence[dict[str, str]]
) -> str:
    """Return messages in the chat template. DataError: there is none, or it refuses them or leaves one out."""
    from jinja2 import TemplateError

    if not has_template(tokenizer, data):
        raise DataError(
            f"The tokenizer of {tokenizer.name_or_path} has no chat template; use data.chat_template=false"
        )
    values = {"tokenize": False, "add_generation_prompt": True, **template_values(data)}
    prompt, refusal = "", None
    try:
        prompt = tokenizer.apply_chat_template(messages, **values)
    except TemplateError as error:
        refusal = error
    if not prompt or _left_out(prompt, messages) is not None:
        # some read contents of parts alone (LLaVA-NeXT, Idefics3); others cannot read any
        parts = [
            {**turn, "content": [{"type": "text", "text": turn["content"]}]}
            for turn in messages
        ]
        with contextlib.suppress(TemplateError, TypeError, AttributeError):
            in_parts = tokenizer.apply_chat_template(parts, **values)
            # a template of texts alone prints them as Python does
            is_printed = "'type': 'text'" in in_parts
            if not is_printed and (refusal or _left_out(in_parts, messages) is None):
                prompt, refusal = in_parts, None
    if refusal is not None:
        roles = ", ".join(message["role"] for message in messages)
        raise DataError(
            f"The chat template of {tokenizer.name_or_path} refuses the turns {roles} ({refusal}); "
            "drop data.system_prompt or data.few_shot, or use data.chat_template=false"
        ) from refusal
    if (place := _left_out(prompt, messages)) is not None:
        raise DataError(_lost(tokenizer, messages, place))
    return prompt


def _left_out(prompt: str, messages: Sequence[dict[str, str]]) -> int | None:
    """Return the place of a message that the prompt does not hold; None: it holds all."""
    bare = None
    for place, message in enumerate(messages):
        text = message["content"]
        if text in prompt:
            continue
        bare = "".join(prompt.split()) if bare is None else bare
        # templates of thinking models drop the thoughts of earlier turns
        said = text.rpartition("</think>")[2] if message["role"] == "assistant" else text
        if "".join(said.split()) not in bare:
            return place
    return None


def _lost(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], place: int
) -> str:
    """Say which message the template leaves out, and what to do."""
    role, text = messages[place]["role"], quoted(messages[place]["content"])
    begin = f"The chat template of {tokenizer.name_or_path} leaves out"
    if place == len(messages) - 1:
        return (
            f"{begin} the problem: {text} is not in its prompt; use "
            "data.chat_template=false, or a template that shows the user's turn"
        )
    if role == "system":
        return (
            f"{begin} the system turn: {text} is not in its prompt; use a template that shows it, or write it into "
            "data.prompt_template, with data.system_prompt=null and problems without a system turn"
        )
    return (
        f"{begin} turn {place + 1} of {len(messages)}, of role {role}: {text} is not in its prompt; use "
        "data.chat_template=false, a template that shows earlier turns, or problems of one turn, without data.few_shot"
    )


def unknown_values(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> list[str]:
    """Return the variables of data.chat_template_kwargs that the chat template does not name."""
    template = str(data.chat_template_kwargs.get("chat_template") or tokenizer.chat_template)
    known = inspect.signature(tokenizer.apply_chat_template).parameters
    return [
        name for name in data.chat_template_kwargs if name not in template and name not in known
    ]


def has_template(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> bool:
    """Tell whether there is a chat template, of the tokenizer or in data.chat_template_kwargs."""
    return (
        data.chat_template_kwargs.get("chat_template") or tokenizer.chat_template
    ) is not None


def template_values(data: DataConfig) -> dict[str, Any]:
    """Return the chat template's other arguments. With data.template_date its clock stands still."""
    if data.template_date is None:
        return data.chat_template_kwargs
    return {
        "strftime_now": date.fromisoformat(data.template_date).strftime,
        **data.chat_template_kwargs,
    }


def begin_of_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the tokenizer's own head of a text (<bos>, <s>, <|begin_of_text|>); often ""."""
    first = tokenizer(text="a")["input_ids"][:1]
    return tokenizer.bos_token if first == [tokenizer.bos_token_id] else ""


def end_of_turn(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> int | None:
    """Return the special token of the chat template after an answer; None without it, or a template."""
    if not data.chat_template or not has_template(tokenizer, data):
        return None
    from jinja2 import TemplateError

    answer = "Eleven."
    messages = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **template_values(data))
    except TemplateError:
        return None
    behind = tokenizer(text=text.rpartition(answer)[2].lstrip(), add_special_tokens=False)[
        "input_ids"
    ]
    # a turn that ends with the begin of the next text does not end there
    own = (
        behind[:1] != [tokenizer.bos_token_id]
        or tokenizer.bos_token_id == tokenizer.eos_token_id
    )
    return behind[0] if behind and own and behind[0] in tokenizer.added_tokens_decoder else None


class RunPrompts:
    """The prompts of a run's problems by `data`, for `R3.prompts` (a PromptMaker)."""

    def __init__(self, config: R3Config, tokenizer: PreTrainedTokenizerBase) -> None:
        self.config, self.tokenizer = config, tokenizer

    def plain(self, problem: Label) -> str:
        """Render the problem as a prompt."""
        return self._of(problem).plain(problem)

    def reflection(self, problem: Label, error: Rollout | None) -> str | None:
        """Render the reflection prompt as ChatPrompts does."""
        return self._of(problem).reflection(problem, error)

    def teacher(
        self,
        problem: Label,
        success: Rollout | None,
        *,
        settings: DistillSettings,
        error: Rollout | None = None,
    ) -> str | None:
        """Render the teacher's prompt as ChatPrompts does, within the run's limit."""
        settings = self._limited(settings)
        return self._of(problem).teacher(problem, success, settings=settings, error=error)

    def teacher_of_text(self, problem: Label, success: str) -> str | None:
        """Render the teacher's prompt for a right response of this text, without a stored error."""
        settings = self._limited(self.config.distill)
        return self._of(problem).teacher_of_text(problem, success, settings=settings)

    def _limited(self, settings: DistillSettings) -> DistillSettings:
        return replace(settings, max_prompt_tokens=self.config.max_teacher_prompt_tokens)

    def _of(self, label: Label) -> ChatPrompts:
        config, data = self.config, self.config.data
        return ChatPrompts(
            self.tokenizer,
            max_prompt_tokens=config.data.max_len - config.rollout.max_new_tokens,
            max_attempt_tokens=config.reflection.max_attempt_tokens,
            message=lambda label: problem_message(data.parts[label.source], label.problem),
            render=lambda text: prompt_of(self.tokenizer, data, label, text),
        )


def r3_of(config: R3Config, history: HistoryStore | None, *, kind: type[R3] = R3) -> R3:
    """Make an R3 as a run's configuration says."""
    return kind(
        config,
        history=history,
        seed=config.train.seed,
        max_response_tokens=config.rollout.max_new_tokens,
    )


def count_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> int:
    """Tokens of a final prompt, counted as OpenRLHF's executor does (openrlhf/utils/agent.py)."""
    return len(tokenizer(text=prompt, add_special_tokens=False)["input_ids"])
