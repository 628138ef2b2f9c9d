"""The site's page api.md, from the docstrings of the public names. `python tools/api_page.py` prints it."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import docstring_parser

import r3_openrlhf

HEAD = """# Python interface

`from r3_openrlhf import NAME`. This page is made from the docstrings (`tools/api_page.py`).
[`examples/own_loop.py`](../examples/own_loop.py) uses the method in a loop of plain torch, and
[`examples/read_a_run.ipynb`](../examples/read_a_run.ipynb) reads a run. The fields of `R3Config` and of all `...Settings` are
[the settings](settings.md).
"""
SECTIONS = {
    "Runs": ("train", "Run", "compare", "evaluate"),
    "Grading": ("grade", "read_reference", "outcome_reward"),
    "The method": ("R3", "MixedBatch", "ChatPrompts", "RowPrompts", "uid_of", "HistoryStore"),
    "Equations": ("group_advantages", "ranking_rewards", "entropy_statistics", "batch_metrics"),
    "Records": ("Rollout", "EntropyStatistics", "TeacherScores", "Verdict", "Context"),
}
# Documented as docs/settings.md, or as the module that has the other names; an error has no signature.
ELSEWHERE = {name for name in r3_openrlhf.__all__ if name.endswith(("Settings", "Config"))} | {
    "method",
    "ConfigError",
}


def page() -> str:
    """The whole page in Markdown."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += described(name, getattr(r3_openrlhf, name))
    return "\n".join(parts)


def described(name: str, thing: Any) -> Iterator[str]:
    """A heading, the signature and the docstring; of a class its public methods and attributes, too."""
    source = inspect.unwrap(thing)
    if isinstance(source, enum.EnumType):
        yield f"### {name}\n\n{text_of(source)}\nMembers: {', '.join(f'`{member.name}`' for member in source)}.\n"
        return
    yield f"### {name}\n\n```python\n{name}{signature_of(source)}\n```\n"
    yield text_of(source)
    if inspect.isclass(source) and not dataclasses.is_dataclass(source):
        for method, value in vars(source).items():
            public = not method.startswith("_") and (
                inspect.isroutine(value) or isinstance(value, property)
            )
            if public and inspect.getdoc(value):
                function = (
                    value.fget if isinstance(value, property) else getattr(source, method)
                )
                call = (
                    method
                    if isinstance(value, property)
                    else f"{method}{signature_of(function)}"
                )
                yield f"#### `{name}.{call}`\n"
                yield text_of(function)


def signature_of(thing: Any) -> str:
    """Without annotations, which the text explains, and without `self`."""
    found = inspect.signature(thing)
    parameters = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in found.parameters.values()
        if one.name not in ("self", "cls")
    ]
    return re.sub(
        r"<factory>",
        "...",
        str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty)),
    )


def text_of(thing: Any) -> str:
    """The docstring: its text with examples as code, then arguments, result and errors."""
    doc = inspect.getdoc(thing) or ""
    parsed = docstring_parser.parse(doc, style=docstring_parser.DocstringStyle.GOOGLE)
    lines = [
        paragraphs(
            re.split(r"^(?:Args|Attributes|Returns|Raises|Yields):$", doc, flags=re.MULTILINE)[
                0
            ].strip()
        )
    ]
    if arguments := [one for one in parsed.params if one.args[0] in ("param", "attribute")]:
        lines += ["| Name | Meaning |\n|---|---|"]
        lines += [f"| `{one.arg_name}` | {cell(one.description)} |" for one in arguments]
        lines.append("")
    if parsed.returns is not None:
        lines.append(f"**Returns** {cell(parsed.returns.description)}\n")
    for error in parsed.raises:
        lines.append(f"**Raises** `{error.type_name}`: {cell(error.description)}\n")
    return "\n".join(lines)


def paragraphs(text: str) -> str:
    """Markdown, in which an indented formula or example is a fenced block."""
    text = re.sub(
        r"METHOD sections? ([\d, and]*\d)", r"section \1 of [the method](method.md)", text
    )
    parts = []
    for part in text.split("\n\n"):
        code = all(line.startswith("    ") for line in part.splitlines() if line)
        parts.append(
            f"```text\n{inspect.cleandoc(part)}\n```"
            if code and part.strip()
            else inspect.cleandoc(part)
        )
    return "\n\n".join(parts) + "\n"


def cell(text: str | None) -> str:
    """One line of a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
