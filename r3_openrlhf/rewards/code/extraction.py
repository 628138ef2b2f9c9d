"""The program in a response: its last fenced block. Linear in the text, which is hostile."""

import re
from collections.abc import Sequence

from r3_openrlhf.rewards.answers.reading.scanner import after_thinking

_FENCE = re.compile(r"^([ \t]{0,12})(`{3,20}|~{3,20})[ \t]*([^\n`]{0,200})$", re.MULTILINE)
# how a block names its language, where that is not the word of the table
ALIASES = {"python": ("python", "python3", "py", "py3"), "cpp": ("cpp", "c++", "cc", "cxx")}


def last_program(
    response: str, *, language: str = "python", names: Sequence[str] = ()
) -> str | None:
    """Return the last closed block after the thinking part that names `language` and defines one of `names`;
    else the last that names `language`, else the last that names none. None: there is none.

    A block that is still open is no program: the token limit may have cut it off anywhere."""
    text = after_thinking(response)
    if text is None:
        return None
    text = text.replace("\r\n", "\n")
    known = ALIASES.get(language, (language,))
    defines = re.compile(
        rf"^(?:async def|def|class|)[ \t]*(?:{'|'.join(map(re.escape, names))}|Solution)\b",
        re.MULTILINE,
    )
    blocks: dict[str, str] = {}  # kind of block -> the last one
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif (
            not fence[3].strip()
            and fence[2].startswith(opened[2])
            and len(fence[1]) < len(opened[1]) + 4
        ):
            tag = _tag(opened)
            # inside a list it is indented as its fence is
            block = text[opened.end() + 1 : fence.start()]
            block = re.sub(rf"^{opened[1]}", "", block, flags=re.MULTILINE).removeprefix(
                "\ufeff"
            )
            if tag in known:
                blocks["named"] = block
                if names and defines.search(block):
                    blocks["defining"] = block
            elif not tag:
                blocks["bare"] = block
            opened = None
        elif fence[2] == opened[2] and _tag(fence) in known:
            opened = fence  # the one before was never closed
    program = next(
        (blocks[kind] for kind in ("defining", "named", "bare") if kind in blocks), None
    )
    return program if program is not None and program.strip() else None


def _tag(fence: re.Match[str]) -> str:
    return re.sub(r"^[ \t{.]*([\w+#.-]*).*", r"\1", fence[3], flags=re.DOTALL).casefold()
