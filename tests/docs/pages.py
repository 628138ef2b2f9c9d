"""The documents of the repository, and the code blocks in them."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
SITE_PAGES = sorted(DOCS.glob("*.md"))
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    *SITE_PAGES,
]
PARSER = MarkdownIt("commonmark").enable("table")

SHELL, PYTHON = "bash", "python"
DATA = ("text", "json", "yaml", "toml")  # what a program prints or reads
_MARK = re.compile(r"<!-- (not executed: \S.*|executed by \S+|part of \S+) -->\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block. `mark` is what the comment right above it says, "" without one."""

    page: str  # path inside the repository
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path, *, root: Path = REPOSITORY) -> list[Block]:
    """Every block of code. One that is only indented has the language "indented"."""
    found, mark = [], ""
    for token in PARSER.parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            language = (token.info.split() or [""])[0] if token.type == "fence" else "indented"
            place = {"page": page.relative_to(root).as_posix(), "line": token.map[0] + 1}
            found.append(Block(**place, language=language, text=token.content, mark=mark))
        matched = _MARK.fullmatch(token.content) if token.type == "html_block" else None
        mark = matched[1] if matched else ""
    return found


def _within(page: Path) -> list[tuple[int, Token]]:
    """(line, token) of everything within the lines of text."""
    tokens = PARSER.parse(page.read_text(encoding="utf-8"))
    return [
        (token.map[0] + 1, child)
        for token in tokens
        if token.type == "inline"
        for child in token.children
    ]


def inline_code(page: Path) -> list[tuple[int, str]]:
    """(line, text) of each piece of inline code."""
    return [
        (line, child.content) for line, child in _within(page) if child.type == "code_inline"
    ]


def links_of(page: Path) -> list[str]:
    """The targets of all links and pictures."""
    targets = [
        child.attrs for _, child in _within(page) if child.type in ("link_open", "image")
    ]
    return [str(attrs.get("href") or attrs.get("src")) for attrs in targets]


def environment() -> dict[str, str]:
    """This process's, with the programs and the package of this checkout."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": programs, "PYTHONPATH": str(REPOSITORY)}
