"""The program in a response: its last fenced block. Linear in the text, which is hostile."""

from __future__ import annotations

import re

from r3_openrlhf.rewards.answers.extraction import after_thinking

_FENCE = re.compile(r"^([ \t]{0,12})(`{3,20}|~{3,20})[ \t]*([^\n`]{0,200})$", re.MULTILINE)
# how a block names its language, where that is not the word of the table
ALIASES = {"python": ("python", "python3", "py", "py3")}


def last_program(response: str, *, language: str = "python") -> str | None:
    """The last closed block after the thinking part that names `language`, else the last that names
    none. None: there is neither.

    A block that is still open is no program: the token limit may have cut it off anywhere."""
    text = after_thinking(response)
    if text is None:
        return None
    text = text.replace("\r\n", "\n")
    names = ALIASES.get(language, (language,))
    named = bare = None
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        word = fence[3].strip()
        if opened is None:
            opened = fence
        elif not word and fence[2].startswith(opened[2]):
            tag, block = (
                opened[3].strip().split(" ")[0].strip("{}.").casefold(),
                text[opened.end() + 1 : fence.start()],
            )
            if tag in names:
                named = _without_indent(block, opened[1])
            elif not tag:
                bare = _without_indent(block, opened[1])
            opened = None
        elif word and fence[2] == opened[2] and word.split(" ")[0].casefold() in names:
            opened = fence  # the one before was never closed
    program = bare if named is None else named
    return program if program is not None and program.strip() else None


def _without_indent(block: str, indent: str) -> str:
    """A block inside a list is indented as its fence is."""
    return re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) if indent else block
