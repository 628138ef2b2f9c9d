"""Check what a chat template makes of each turn: once, in order, and then the assistant's turn, in marks that the
tokenizer knows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.method.errors import DataError, quoted
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompts import has_template, in_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>|<(?:start|end)_of_\w+>")
_THINKING = re.compile(r"</?think(?:ing)?>|\s")
_MOST = 8  # orders of roles that are tried


def template_findings(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, labels: Iterable[Label]
) -> list[Finding]:
    """Try the template on the orders of roles that the problems have; a sentence for each fault."""
    sentences: dict[str, None] = {}
    for roles, part in _orders(tokenizer, data, labels).items():
        sentences |= dict.fromkeys(_faults(tokenizer, part, roles))
    begin = f"the chat template of {tokenizer.name_or_path}"
    return [Finding(f"{begin} {sentence}") for sentence in sentences]


def template_notes(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, labels: Iterable[Label]
) -> list[str]:
    """Say what a correct template does that a reader may not expect: text of its own before the first
    turn, and a system turn within the user's. One sentence each, of the orders of roles that the
    problems have."""
    found: dict[str, None] = {}
    for roles, part in _orders(tokenizer, data, labels).items():
        found |= dict.fromkeys(_surprises(tokenizer, part, roles))
    return [f"chat template: {sentence}" for sentence in found]


def lacks_thoughts(label: Label, prompt: str) -> bool:
    """Return if an earlier turn of the assistant has thoughts that the prompt does not show."""
    bare = _bare(prompt)
    for turn in label.turns or []:
        thoughts, mark, _ = turn["content"].rpartition("</think>")
        said = _bare(thoughts.rpartition("<think>")[2])
        if turn["role"] == "assistant" and mark and said and said not in bare:
            return True
    return False


def thought_notes(number: int, total: int) -> list[str]:
    """Say in how many of all prompts the template leaves out the thoughts of earlier turns."""
    if number == 0:
        return []
    return [
        f"chat template: {number:,} of {total:,} prompts are without the thoughts (up to </think>) of earlier turns"
    ]


def _surprises(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, roles: Sequence[str]
) -> Iterator[str]:
    """Yield what the template adds to a conversation of these roles, or merges in it."""
    texts = [f"zqx{place}zqx" for place in range(len(roles))]
    messages = [
        {"role": role, "content": text} for role, text in zip(roles, texts, strict=True)
    ]
    again = [*messages, {"role": "assistant", "content": "zqxazqx"}, _user("zqxuzqx")]
    try:
        prompt = in_template(tokenizer, data, messages)
        longer = in_template(tokenizer, data, again)
    except DataError:
        return  # the prompt of the problem itself says it
    if roles[0] == "system":
        between = prompt.partition(texts[0])[2].partition(texts[1])[0]
        if not _words(tokenizer, between) and not _has_special(tokenizer, between):
            yield f"the system turn is written into the {roles[1]}'s turn"
        return
    # what is before a later turn of the user is no text of its own
    usual = longer.partition("zqxazqx")[2].partition("zqxuzqx")[0]
    head = prompt.partition(texts[0])[0]
    extra = head[: len(head) - len(_common_end(head, usual))]
    if _words(tokenizer, extra):
        yield f"it writes a text of its own before the first turn: {quoted(extra.strip())}"


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _common_end(first: str, second: str) -> str:
    return os.path.commonprefix([first[::-1], second[::-1]])[::-1]


def _has_special(tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
    return any(
        token.content in text
        for token in tokenizer.added_tokens_decoder.values()
        if token.content
    )


def _words(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return the letters and digits of a text without the tokenizer's special tokens."""
    for token in tokenizer.added_tokens_decoder.values():
        text = text.replace(token.content, "")
    return "".join(letter for letter in text if letter.isalnum())


def _bare(text: str) -> str:
    return "".join(text.split())


def _orders(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, labels: Iterable[Label]
) -> dict[tuple[str, ...], DataConfig]:
    """Return the first orders of roles that the problems have, each with its source's settings."""
    orders: dict[tuple[str, ...], DataConfig] = {}
    for label in labels:
        part = data.parts[label.source]
        if part.chat_template and has_template(tokenizer, part):
            orders.setdefault(_roles(part, label), part)
        if len(orders) == _MOST:
            break
    return orders


def _roles(data: DataConfig, label: Label) -> tuple[str, ...]:
    roles = [turn["role"] for turn in label.turns or []]
    has_system = data.system_prompt is not None or roles[:1] == ["system"]
    roles = [role for place, role in enumerate(roles) if place or role != "system"]
    return (
        *["system"] * has_system,
        *["user", "assistant"] * len(data.few_shot),
        *roles,
        "user",
    )


def _faults(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, roles: Sequence[str]
) -> Iterator[str]:
    """Yield what is wrong with a conversation of these roles, of texts that occur nowhere else."""
    texts = [f"zqx{place}zqx" for place in range(len(roles))]
    messages = [
        {"role": role, "content": text} for role, text in zip(roles, texts, strict=True)
    ]
    try:
        prompt = in_template(tokenizer, data, messages)
    except DataError:
        return  # the prompt of the problem itself says it
    turns = ", ".join(roles)
    for role, text in zip(roles, texts, strict=True):
        if prompt.count(text) > 1:
            yield f"shows the {role} turn {prompt.count(text)} times, of the turns {turns}"
    places = [prompt.index(text) for text in texts]
    if places != sorted(places):
        order = ", ".join(
            roles[place] for place in sorted(range(len(roles)), key=places.__getitem__)
        )
        yield f"shows the turns {turns} in another order: {order}"
    yield from _no_begin(tokenizer, data, messages, prompt)
    yield from _foreign_marks(tokenizer, prompt)


def _no_begin(
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    messages: list[dict[str, str]],
    prompt: str,
) -> Iterator[str]:
    """Yield a sentence if the prompt ends before what the template writes in front of an answer."""
    closed = replace(
        data, chat_template_kwargs={**data.chat_template_kwargs, "add_generation_prompt": False}
    )
    answered = [*messages, {"role": "assistant", "content": "zqxzqx"}, messages[-1]]
    try:
        is_same = in_template(tokenizer, closed, messages) == prompt
        whole = in_template(tokenizer, data, answered)
    except DataError:
        return
    head = whole.partition("zqxzqx")[0]
    lacking = head[len(prompt) :] if is_same and head.startswith(prompt) else ""
    if _THINKING.sub("", lacking):
        yield (
            f"does not begin the assistant's turn: {quoted(lacking.strip())} is not at the end of the prompt; write it there, under "
            "{% if add_generation_prompt %}, in a copy"
        )


def _foreign_marks(tokenizer: PreTrainedTokenizerBase, prompt: str) -> Iterator[str]:
    """Yield a sentence if the tokenizer splits marks of the template, and has marks of its own."""
    own = {
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if _MARK.fullmatch(token.content)
    }
    # a begin of the text is no mark of a turn
    marks = [
        mark for mark in dict.fromkeys(_MARK.findall(prompt)) if mark != tokenizer.bos_token
    ]
    foreign = [mark for mark in marks if mark not in own]
    if foreign and own and not own.intersection(marks):
        yield (
            f"marks turns with {quoted(foreign[0])}, which the tokenizer splits into pieces; its own marks are "
            f"{', '.join(sorted(own, key=lambda mark: ('reserved' in mark, mark))[:4])}, so it may be the template of another model"
        )
