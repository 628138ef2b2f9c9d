"""docs/works-with.md, made from stand-ins that are tried: `python -m tests.works_with > docs/works-with.md`.

Every file of this directory with a function `section() -> str` is a section of the page, in the order of SECTIONS.
"""

import importlib
from pathlib import Path

SECTIONS = ("data_sets", "models", "rewards")
HEAD = """# What it works with

This page is generated (`python -m tests.works_with > docs/works-with.md`): each line was tried on made-up rows, tokenizers
and functions in the published shape. Nothing was downloaded.
"""


def rows_of(outcomes: dict[str, str]) -> str:
    """The items of a list. Names with the same outcome share an item, where the first of them is."""
    names: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        names.setdefault(outcome, []).append(name)
    return "".join(f"- {', '.join(same)}: {outcome}\n" for outcome, same in names.items())


def page() -> str:
    """The whole page."""
    there = [name for name in SECTIONS if Path(__file__).with_name(f"{name}.py").is_file()]
    return "\n".join(
        [
            HEAD,
            *(importlib.import_module(f"tests.works_with.{name}").section() for name in there),
        ]
    )
